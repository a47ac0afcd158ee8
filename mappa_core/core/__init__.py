"""Records, ids, errors, concurrency, retry after an outage, and what this machine has."""
