"""A report: one list of blocks, written as Markdown and as one self-contained HTML file.

    report = Report("Before and after", lead="SFT on MR-ranked replies, 40 held-out tasks.")
    report.add_heading("Results")
    report.add_table(table)
    report.add_figure(plots.before_after(...), "before-after", caption="...")
    report.add_transcript(tree.conversation(leaf), title="errands-007", note="R* 0.61, ended")
    report.set_provenance(config=config, seeds={"run": 0})
    report.write(folder)            # report.md, report.html, figures/

`add_text`, captions and notes are our own prose and know `code` and **bold**; transcripts, titles and cells are plain text,
whoever wrote them.
"""

from __future__ import annotations

import base64
import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from collab.evaluation.markup import clipped, escape_html, escape_markdown, fenced, inline_html, inline_markdown
from collab.evaluation.page import asset, fill
from collab.evaluation.tables import Table, Value, format_value
from simulators.conversation import Message
from simulators.whole_file import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_MESSAGE = 20_000
"""Characters of one message that a report shows; the viewer shows all of them."""

_PACKAGES = ("collab", "torch", "transformers", "trl", "peft", "vllm", "numpy")
_SECRET = re.compile(r"api_?key|password|secret|(access|auth|hf|hub)_token", re.IGNORECASE)


class Block(Protocol):
    """One piece of a report, in both formats."""

    def markdown(self) -> str: ...

    def html(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Heading:
    text: str
    level: int
    anchor: str

    def markdown(self) -> str:
        return f"{'#' * self.level} {escape_markdown(self.text)}"

    def html(self) -> str:
        return f'<h{self.level} id="{self.anchor}">{escape_html(self.text)}</h{self.level}>'


@dataclass(frozen=True, slots=True)
class _Text:
    text: str

    def markdown(self) -> str:
        return inline_markdown(self.text)

    def html(self) -> str:
        paragraphs = (part for part in self.text.split("\n\n") if part.strip())
        return "\n".join(f"<p>{inline_html(part.strip())}</p>" for part in paragraphs)


@dataclass(frozen=True, slots=True)
class _Facts:
    facts: tuple[tuple[str, tuple[str, str]], ...]

    def markdown(self) -> str:
        return "\n".join(f"- {escape_markdown(name)}: **{escape_markdown(''.join(value))}**" for name, value in self.facts)

    def html(self) -> str:
        items = []
        for name, (main, rest) in self.facts:
            spread = f'<span class="spread">{escape_html(rest.strip())}</span>' if rest else ""
            items.append(f'<div class="fact"><dt>{escape_html(name)}</dt><dd>{escape_html(main)}{spread}</dd></div>')
        return f'<dl class="facts">{"".join(items)}</dl>'


@dataclass(frozen=True, slots=True)
class _Picture:
    name: str
    caption: str
    alt: str
    data: bytes
    dark: bytes | None

    @property
    def file(self) -> str:
        return f"figures/{self.name}.{'png' if _is_png(self.data) else 'svg'}"

    def markdown(self) -> str:
        return f"![{escape_markdown(self.alt)}]({self.file})\n\n{inline_markdown(self.caption)}".rstrip()

    def html(self) -> str:
        alt = escape_html(self.alt)
        if self.dark is None:
            images = f'<img src="{_data_uri(self.data)}" alt="{alt}">'
        else:
            images = (
                f'<img class="light-figure" src="{_data_uri(self.data)}" alt="{alt}">'
                f'<img class="dark-figure" src="{_data_uri(self.dark)}" alt="{alt}">'
            )
        frame = "frame" if self.dark else "frame light-only"
        caption = f"<figcaption>{inline_html(self.caption)}</figcaption>" if self.caption else ""
        return f'<figure class="picture">{caption}<div class="{frame}">{images}</div></figure>'


@dataclass(frozen=True, slots=True)
class _Transcript:
    messages: tuple[Message, ...]
    title: str
    note: str

    def markdown(self) -> str:
        parts = [f"**{escape_markdown(self.title)}**"] if self.title else []
        for message in self.messages:
            parts += [f"*{escape_markdown(message.role)}*", fenced(clipped(message.content, LONGEST_MESSAGE))]
        return "\n\n".join([*parts, inline_markdown(self.note)]).rstrip()

    def html(self) -> str:
        title = f'<figcaption dir="auto">{escape_html(self.title)}</figcaption>' if self.title else ""
        messages = "".join(
            f'<div class="message {escape_html(message.role)}"><div class="who">{escape_html(message.role)}</div>'
            f'<div class="text" dir="auto">{escape_html(clipped(message.content, LONGEST_MESSAGE))}</div></div>'
            for message in self.messages
        )
        note = f'<p class="note">{inline_html(self.note)}</p>' if self.note else ""
        return f'<figure class="transcript">{title}{messages}{note}</figure>'


@dataclass(slots=True)
class Report:
    """A report under construction. Blocks appear in the order in which they are added; provenance comes last."""

    title: str
    lead: str = ""
    _blocks: list[Block] = field(default_factory=list)
    _provenance: dict[str, Any] = field(default_factory=dict)

    def add_heading(self, text: str, level: int = 2) -> None:
        """Add a heading of level 2 (a section, in the contents) or 3."""
        if level not in (2, 3):
            raise ValueError(f"heading level {level}; a report has sections (2) and subsections (3)")
        self._blocks.append(_Heading(text, level, f"section-{len(self._blocks)}"))

    def add_text(self, text: str) -> None:
        """Add paragraphs of our own prose, separated by empty lines; `code` and **bold** are known."""
        self._blocks.append(_Text(text.strip()))

    def add_facts(self, facts: Mapping[str, Value], decimals: int = 2) -> None:
        """Add a row of headline figures: {name: value}, values as in a table cell."""
        self._blocks.append(_Facts(tuple((name, format_value(value, decimals)) for name, value in facts.items())))

    def add_table(self, table: Table) -> None:
        """Add a table."""
        self._blocks.append(table)

    def add_figure(self, figure: Figure | bytes, name: str, caption: str = "", alt: str = "") -> None:
        """Add a matplotlib figure (written as SVG, light and dark) or the bytes of a PNG; `name` becomes its file's name.

        Raises:
            ValueError: for a name that is no plain file name or is taken, or bytes that are no PNG.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            raise ValueError(f"figure name {name!r}: use letters, digits, - and _ only")
        if any(isinstance(block, _Picture) and block.name == name for block in self._blocks):
            raise ValueError(f"the report has a figure {name!r} already")
        alt = alt or re.sub(r"[`*]", "", caption) or name
        if isinstance(figure, bytes):
            if not _is_png(figure):
                raise ValueError(f"figure {name!r}: the bytes are not a PNG")
            self._blocks.append(_Picture(name, caption, alt, figure, None))
            return
        from collab.evaluation.plots import as_svg, darkened

        svg = as_svg(figure)
        self._blocks.append(_Picture(name, caption, alt, svg.encode(), darkened(svg).encode()))

    def add_transcript(self, messages: Sequence[Message], title: str = "", note: str = "") -> None:
        """Add a conversation, as text."""
        self._blocks.append(_Transcript(tuple(messages), title, note))

    def set_provenance(
        self, config: Mapping[str, Any] | None = None, seeds: Mapping[str, int] | None = None, **facts: str | int | float
    ) -> None:
        """Say where the figures come from: the resolved configuration, the seeds, and whatever else (`date`, `cost`, ...).

        Versions of Python and of the packages are added. Values of keys that look like credentials are left out.
        """
        self._provenance = {
            "facts": {**{name.replace("_", " "): value for name, value in facts.items()}, "versions": _versions()},
            "seeds": dict(seeds or {}),
            "config": _without_secrets(dict(config or {})),
        }

    def markdown(self) -> str:
        """Return the report as Markdown; figures are links into `figures/`."""
        lead = [inline_markdown(self.lead)] if self.lead else []
        blocks = [block.markdown() for block in self._blocks]
        return "\n\n".join([f"# {escape_markdown(self.title)}", *lead, *blocks, *self._provenance_markdown()]) + "\n"

    def html(self) -> str:
        """Return the report as one HTML page that names no other file and no other address."""
        headings = [block for block in self._blocks if isinstance(block, _Heading)]
        contents = "".join(
            f'<li class="level-{heading.level}"><a href="#{heading.anchor}">{escape_html(heading.text)}</a></li>'
            for heading in headings
        )
        parts = {
            "title": escape_html(self.title),
            "lead": f'<p class="lead">{inline_html(self.lead)}</p>' if self.lead else "",
            "contents": f"<ol>{contents}</ol>" if contents else "",
            "body": "\n".join(block.html() for block in self._blocks),
            "provenance": self._provenance_html(),
        }
        return fill(asset("report.html"), parts, styles=["theme.css", "report.css"], scripts=["theme.js"])

    def write(self, folder: Path) -> Path:
        """Write report.md, report.html and figures/ into a folder; return the path of report.html.

        Raises:
            StorageError: when the disk refuses.
        """
        for block in self._blocks:
            if isinstance(block, _Picture):
                write_whole(folder / block.file, block.data)
        write_whole(folder / "report.md", self.markdown().encode())
        write_whole(folder / "report.html", self.html().encode())
        return folder / "report.html"

    def _provenance_markdown(self) -> list[str]:
        if not self._provenance:
            return []
        facts = {**self._provenance["facts"], **{f"seed ({name})": seed for name, seed in self._provenance["seeds"].items()}}
        lines = [f"- {escape_markdown(name)}: {escape_markdown(str(value))}" for name, value in facts.items()]
        config = self._provenance["config"]
        code = [fenced(json.dumps(config, indent=2, ensure_ascii=False, default=str))] if config else []
        return ["## Provenance", "\n".join(lines), *code]

    def _provenance_html(self) -> str:
        if not self._provenance:
            return ""
        facts = {**self._provenance["facts"], **{f"seed ({name})": seed for name, seed in self._provenance["seeds"].items()}}
        items = "".join(f"<dt>{escape_html(name)}</dt><dd>{escape_html(str(value))}</dd>" for name, value in facts.items())
        config = self._provenance["config"]
        text = escape_html(json.dumps(config, indent=2, ensure_ascii=False, default=str))
        code = f"<details><summary>Configuration</summary><pre>{text}</pre></details>" if config else ""
        return f"<h2>Provenance</h2><dl>{items}</dl>{code}"


def _versions() -> str:
    """Return the versions of Python and of the packages that are installed, without importing any of them."""
    found = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def _without_secrets(value: Any) -> Any:
    """Return a configuration in which the values of keys that look like credentials are replaced: reports are passed on."""
    if isinstance(value, Mapping):
        return {
            str(key): "(left out)" if _SECRET.search(str(key)) and isinstance(inner, str) and inner else _without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_without_secrets(inner) for inner in value]
    return value


def _is_png(data: bytes) -> bool:
    return data.startswith(b"\x89PNG\r\n\x1a\n")


def _data_uri(data: bytes) -> str:
    kind = "image/png" if _is_png(data) else "image/svg+xml"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
