"""The command line: commands, what they print, local servers, benches."""
