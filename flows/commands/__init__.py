"""What a person types: one module per command or family of commands; `flows.cli` lists them."""
