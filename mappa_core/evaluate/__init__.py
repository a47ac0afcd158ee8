"""Whether policies got better: comparison, report, promotion."""
