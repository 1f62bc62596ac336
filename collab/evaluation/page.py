"""One self-contained HTML page: a template, style sheets and scripts from `assets/`, and a strict content policy.

The page names no other address, and the policy enforces it: nothing is fetched, only the style and the script that stand in the
page (by their hash) take effect, and no text can become markup (trusted types). So a page opens from a file, offline, and what a
model wrote stays text whatever it contains.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources

_PLACE = re.compile(r"\{\{(\w+)\}\}")


def asset(name: str) -> str:
    """Return the text of a file below `collab/evaluation/assets`."""
    return resources.files("collab.evaluation").joinpath("assets", *name.split("/")).read_text("utf-8")


def fill(template: str, parts: Mapping[str, str], styles: Sequence[str], scripts: Sequence[str]) -> str:
    """Return the page: `{{name}}` in the template becomes `parts[name]`, `{{style}}`, `{{script}}` or `{{policy}}`.

    `parts` must be HTML already; what they contain is not filled in again.
    """
    style = "\n".join(map(asset, styles))
    script = '"use strict";\n' + "\n".join(map(asset, scripts))
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    values = {**parts, "style": style, "script": script, "policy": policy}
    return _PLACE.sub(lambda match: values[match[1]], template)


def _hash(source: str) -> str:
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{digest}'"
