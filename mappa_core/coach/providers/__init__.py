"""Clients of the providers' models, one module each; `coach.provider_table` lists them."""
