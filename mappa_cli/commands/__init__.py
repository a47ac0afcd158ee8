"""Commands, one module for each command or family of commands; `mappa_cli.main` lists them."""
