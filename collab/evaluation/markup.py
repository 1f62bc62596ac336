"""Plain text made safe for Markdown and HTML.

Everything a model wrote goes through here before it stands in a report: text stays text in both formats, whatever it contains.
"""

from __future__ import annotations

import html
import re

_MARKDOWN_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&$])")
_INLINE = re.compile(r"(`[^`\n]+`|\*\*[^*\n]+\*\*)")
_CONTROL = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
"""Control characters and the pictures that Unicode has for them: a NUL is shown, not swallowed."""


def visible(text: str) -> str:
    """Return the text with control characters as their pictures, and lone surrogates (half a character) as U+FFFD."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROL)
    return text.encode("utf-8", "replace").decode() if _has_surrogates(text) else text


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def escape_html(text: str) -> str:
    """Return the text for use in HTML, between tags or in a quoted attribute."""
    return html.escape(visible(text), quote=True)


def escape_markdown(text: str) -> str:
    """Return the text on one line, with everything that Markdown or HTML would act on escaped."""
    return _MARKDOWN_SPECIAL.sub(r"\\\1", " ".join(visible(text).split()))


def inline_html(text: str) -> str:
    """Return our own prose as HTML; of Markdown it knows `code` and **bold**, and nothing else."""
    return "".join(_inline_piece(piece) for piece in _INLINE.split(visible(text)))


def _inline_piece(piece: str) -> str:
    if _INLINE.fullmatch(piece):
        if piece.startswith("`"):
            return f"<code>{html.escape(piece[1:-1])}</code>"
        return f"<strong>{html.escape(piece[2:-2])}</strong>"
    return html.escape(piece)


def inline_markdown(text: str) -> str:
    """Return our own prose as Markdown; `code` and **bold** stay, a tag or a lone asterisk (R*) is text."""
    pieces = _INLINE.split(visible(text))
    return "".join(piece if _INLINE.fullmatch(piece) else _prose(piece) for piece in pieces)


def _prose(piece: str) -> str:
    return piece.replace("&", "&amp;").replace("<", "&lt;").replace("*", "\\*")


def fenced(text: str) -> str:
    """Return the text as a Markdown code block, with a fence that the text cannot close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{visible(text)}\n{fence}"


def clipped(text: str, limit: int) -> str:
    """Return at most `limit` characters of the text, and say how many were left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[… {len(text) - limit:,} more characters]"
