"""Playing episodes: teams, problems, engines, sandboxes, tools, and the episode that joins them."""
