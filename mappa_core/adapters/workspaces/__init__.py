"""The files of an episode between its turns, on this machine's disk."""
