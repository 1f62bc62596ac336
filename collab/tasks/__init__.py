"""Tasks, those that are bundled, and those that are held out."""
