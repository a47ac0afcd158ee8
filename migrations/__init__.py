"""The history of the store's tables: each file in `versions` is one step, applied by Alembic."""
