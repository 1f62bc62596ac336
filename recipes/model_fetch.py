"""Fetch the embedded default model into the user's cache, check it, and print where it is."""

from __future__ import annotations

from collab.embedded_model import LICENCE, fetch_embedded_model
from recipes.configuration.launch import run_guarded


def main() -> None:
    """Start the recipe from the command line."""

    def fetch() -> None:
        print(f"{fetch_embedded_model()}  ({LICENCE})")

    run_guarded(fetch)


if __name__ == "__main__":
    main()
