"""Outside systems, one folder each, behind the ports."""
