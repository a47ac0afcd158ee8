"""One file per schema revision, oldest first by name; never edited once released."""
