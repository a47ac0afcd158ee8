"""The experiment store: every prompt, token, score and update, in Postgres."""
