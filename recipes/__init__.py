"""One thin script a pipeline stage; `recipes.command_line` is the `collab` command."""
