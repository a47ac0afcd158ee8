"""The whole of a run: its configuration, its checks and its services."""
