"""The rule coach: scores from the evidence alone, without a network."""
