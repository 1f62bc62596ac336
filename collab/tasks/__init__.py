"""Tasks, and where they come from."""
