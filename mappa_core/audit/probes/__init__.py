"""Questions to a coach before it trains."""
