"""The values an episode is made of and the errors that can end one; standard library only."""
