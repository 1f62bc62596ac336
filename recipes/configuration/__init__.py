"""What stands on the command line, and what becomes of it: dataclasses, checked before anything is loaded."""
