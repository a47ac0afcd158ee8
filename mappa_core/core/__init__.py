"""Records, ids, errors, concurrency, and retry after an outage."""
