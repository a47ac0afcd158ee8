"""The rule coach: reads the evidence, needs no network."""
