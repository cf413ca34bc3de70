"""The command `oncelog`: one module per command group, each a few lines over the library."""
