"""Reading dataset records: what is missing, empty, of the wrong type or far too long is said in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collab.environments.domain import BadRecord

MAX_CHARACTERS = 60_000
"""About 15,000 tokens: longer texts fill the context of the policy, the user and the judge before a word is said."""


def text_field(record: Mapping[str, Any], name: str, most: int = MAX_CHARACTERS) -> str:
    """Return a field's text.

    Raises:
        BadRecord: when it is no text, says nothing, or is longer than `most` characters.
    """
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadRecord(f"field {name!r} must be a text that is not empty")
    if len(value) > most:
        raise BadRecord(f"field {name!r} has {len(value):,} characters; at most {most:,} are taken")
    return value


def record_id(record: Mapping[str, Any], default_id: str, *names: str) -> str:
    """Return the first of the fields `names` (always tried last: `id`) that is a text or a number, else `default_id`.

    Raises:
        BadRecord: when it is something else.
    """
    for name in (*names, "id"):
        value = record.get(name)
        if value is None or value == "":
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise BadRecord(f"field {name!r} must be a text or a whole number")
        return str(value)
    return default_id
