"""What the audit computes: pure functions on arrays, and the SQL that gives the same figures."""
