"""Write a self-contained HTML viewer of a run's conversation trees: `collab view RUN [OUTPUT.html]`."""

from __future__ import annotations

import sys
from pathlib import Path

from collab.evaluation.viewer import view_run
from recipes.configuration.launch import fail, run_guarded

USAGE = "usage: collab view RUN [OUTPUT.html], RUN being the folder of a build, an evaluation or the demo"


def main() -> None:
    """Start the recipe from the command line."""
    arguments = sys.argv[1:]
    if not 1 <= len(arguments) <= 2 or arguments[0].startswith("-"):
        fail(USAGE, status=2)
    output = Path(arguments[1]) if len(arguments) == 2 else None
    run_guarded(lambda: print(view_run(Path(arguments[0]), output)))


if __name__ == "__main__":
    main()
