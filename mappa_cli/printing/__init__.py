"""What a person reads in a terminal: tables, pages, live progress, and JSON for scripts."""
