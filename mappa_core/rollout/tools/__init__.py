"""Servers of tools, by the Model Context Protocol."""
