"""Under which licence the tasks of a dataset stand, as far as that can be known without asking anybody."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from collab.environments.loading import BUNDLED

OURS = "apache-2.0"
"""The licence of the bundled tasks, which is that of this project."""

_LONGEST = 20_000
_MARKS = (
    ("cc0-1.0", ("cc0 1.0",)),
    ("cc-by-sa-4.0", ("attribution-sharealike 4.0", "cc by-sa 4.0")),
    ("cc-by-4.0", ("attribution 4.0 international", "cc by 4.0")),
    ("apache-2.0", ("apache license",)),
    ("mit", ("mit license", "permission is hereby granted, free of charge, to any person obtaining a copy")),
)


def licence_of(source: str, known: Mapping[str, str]) -> str | None:
    """Return the licence of a source of tasks as the Hub writes it (`mit`); None where it is not known.

    `known` are licences by Hub id in lower case. Of a local file or folder it is what a `LICENSE` file beside it says.
    """
    if source == BUNDLED:
        return OURS
    if (found := known.get(source.partition(":")[0].lower())) is not None:
        return found
    path = Path(source).expanduser()
    folder = path if path.is_dir() else path.parent
    if not path.exists():
        return None
    for file in sorted([*folder.glob("LICEN[CS]E*"), *folder.glob("licen[cs]e*")]):
        try:
            text = " ".join(file.read_text(encoding="utf-8", errors="replace")[:_LONGEST].lower().split())
        except OSError:
            continue
        for name, marks in _MARKS:
            if any(mark in text for mark in marks):
                return name
    return None
