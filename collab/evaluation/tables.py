"""A table as data, and the same table as Markdown, as HTML and as rows for Parquet.

Cells hold numbers with their uncertainty, not formatted text, so that one table serves a person and a program. A cell without a
value is shown as a dash: missing is never zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from collab.evaluation.markup import escape_html, escape_markdown, inline_html, inline_markdown
from collab.evaluation.statistics import Interval, MeanEstimate

MISSING = "–"


@dataclass(frozen=True, slots=True)
class PlusMinus:
    """A centre with a spread, shown as `centre ± spread`; the table's note says which spread it is."""

    center: float
    spread: float | None


Value = str | int | float | Interval | MeanEstimate | PlusMinus | None
Direction = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `better` marks its direction with an arrow and the best value in bold; `group` is a header above it."""

    header: str
    decimals: int = 2
    unit: str = ""
    better: Direction | None = None
    group: str = ""

    @property
    def title(self) -> str:
        """The header with its arrow."""
        arrow = {"higher": " ↑", "lower": " ↓", None: ""}[self.better]
        return self.header + arrow


@dataclass(frozen=True, slots=True)
class Row:
    """One row. A `baseline` is set apart from our own rows; a `summary` (a mean, a relative improvement) is never the best."""

    cells: tuple[Value, ...]
    kind: Literal["ours", "baseline", "summary"] = "ours"
    unit: str | None = None
    """The unit of this row's numbers where it is not the columns' (a relative improvement is in per cent)."""
    decimals: int | None = None
    """The same for their decimals."""


@dataclass(frozen=True, slots=True)
class Table:
    """A captioned table.

    Raises:
        ValueError: when a row has another number of cells than there are columns.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, start=1):
            if len(row.cells) != len(self.columns):
                raise ValueError(f"table {self.caption!r}: row {number} does not have {len(self.columns)} cells")

    def markdown(self) -> str:
        """Return the table as GitHub-flavoured Markdown."""
        titles = [f"{column.group}: {column.title}" if column.group else column.title for column in self.columns]
        lines = [_markdown_row(map(escape_markdown, titles))]
        lines.append(_markdown_row("---:" if numeric else "---" for numeric in self._numeric()))
        best = self._best()
        for number, row in enumerate(self.rows):
            cells = []
            for position, value in enumerate(row.cells):
                text = escape_markdown("".join(self._text(row, position, value)))
                cells.append(f"**{text}**" if (number, position) in best else text)
            lines.append(_markdown_row(cells))
        parts = [f"**{escape_markdown(self.caption)}**", "\n".join(lines)]
        if self.note:
            parts.append(inline_markdown(self.note))
        return "\n\n".join(parts)

    def html(self) -> str:
        """Return the table as an HTML figure; classes are those of report.css."""
        numeric, best = self._numeric(), self._best()
        body = []
        for number, row in enumerate(self.rows):
            cells = []
            for position, value in enumerate(row.cells):
                main, rest = self._text(row, position, value)
                text = escape_html(main) + (f'<span class="spread">{escape_html(rest)}</span>' if rest else "")
                classes = ("num " if numeric[position] else "") + ("best" if (number, position) in best else "")
                tag = "th scope=row" if position == 0 else "td"
                cells.append(f'<{tag} class="{classes.strip()}">{text}</{tag.split()[0]}>')
            body.append(f'<tr class="{row.kind}">{"".join(cells)}</tr>')
        note = f'<p class="note">{inline_html(self.note)}</p>' if self.note else ""
        return (
            f'<figure class="table"><figcaption>{inline_html(self.caption)}</figcaption><div class="scroll" tabindex="0"><table>'
            f"<thead>{self._html_head(numeric)}</thead><tbody>{''.join(body)}</tbody></table></div>{note}</figure>"
        )

    def records(self) -> list[dict[str, Any]]:
        """Return one flat mapping a row, for JSON and Parquet; intervals become `..._low` and `..._high`."""
        records = []
        for row in self.rows:
            record: dict[str, Any] = {"row": row.kind}
            for column, value in zip(self.columns, row.cells, strict=True):
                name = " ".join(filter(None, (column.group, column.header)))
                record |= _flat(name, value)
            records.append(record)
        return records

    def _html_head(self, numeric: list[bool]) -> str:
        heads = "".join(
            f'<th scope="col" class="{"num" if number else ""}">{escape_html(column.title)}</th>'
            for column, number in zip(self.columns, numeric, strict=True)
        )
        if not any(column.group for column in self.columns):
            return f"<tr>{heads}</tr>"
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and spans[-1][0] == column.group:
                spans[-1] = (column.group, spans[-1][1] + 1)
            else:
                spans.append((column.group, 1))
        groups = "".join(
            f'<th scope="colgroup" colspan="{span}" class="group">{escape_html(name)}</th>'
            if name
            else f'<td colspan="{span}"></td>'
            for name, span in spans
        )
        return f"<tr>{groups}</tr><tr>{heads}</tr>"

    def _text(self, row: Row, position: int, value: Value) -> tuple[str, str]:
        column = self.columns[position]
        decimals = column.decimals if row.decimals is None else row.decimals
        return format_value(value, decimals, column.unit if row.unit is None else row.unit)

    def _numeric(self) -> list[bool]:
        """Say which columns hold numbers (and are set flush right)."""
        return [
            any(row.cells[position] is not None for row in self.rows)
            and not any(isinstance(row.cells[position], str) for row in self.rows)
            for position in range(len(self.columns))
        ]

    def _best(self) -> set[tuple[int, int]]:
        """Return the (row, column) of the best values, as shown: values that print alike are both best, unless all do."""
        best = set()
        for position, column in enumerate(self.columns):
            if column.better is None:
                continue
            values = {
                number: round(value, column.decimals)
                for number, row in enumerate(self.rows)
                if row.kind != "summary" and (value := center(row.cells[position])) is not None
            }
            if len(set(values.values())) > 1:
                top = max(values.values()) if column.better == "higher" else min(values.values())
                best |= {(number, position) for number, value in values.items() if value == top}
        return best


def center(value: Value) -> float | None:
    """Return the number in the middle of a cell, None where there is none."""
    match value:
        case Interval(estimate=number) | MeanEstimate(mean=number) | PlusMinus(center=number):
            return _finite(number)
        case bool() | str() | None:
            return None
        case _:
            return _finite(float(value))


def scaled(value: Value, factor: float) -> Value:
    """Return a cell's value in another unit, its uncertainty with it; text and missing values stay as they are."""
    match value:
        case Interval():
            return value.scaled(factor)
        case MeanEstimate(mean=mean, std_error=error, count=count):
            return MeanEstimate(mean * factor, None if error is None else error * abs(factor), count)
        case PlusMinus(center=middle, spread=spread):
            return PlusMinus(middle * factor, None if spread is None else spread * abs(factor))
        case bool() | str() | None:
            return value
        case _:
            return value * factor


def format_value(value: Value, decimals: int = 2, unit: str = "") -> tuple[str, str]:
    """Return a cell's text as (value, uncertainty): ("0.56", " [0.41, 0.70]") or ("0.31", " ± 0.02")."""
    if isinstance(value, str):
        return value, ""
    if isinstance(value, int):
        return f"{value:,}{unit}", ""
    number = center(value)
    if number is None:
        return MISSING, ""
    main = f"{_number(number, decimals)}{unit}"
    match value:
        case Interval(low=low, high=high) if low is not None and high is not None:
            return main, f" [{_number(low, decimals)}, {_number(high, decimals)}]"
        case MeanEstimate(std_error=spread) | PlusMinus(spread=spread) if spread is not None:
            return main, f" ± {_number(spread, decimals)}"
    return main, ""


def _number(number: float, decimals: int) -> str:
    text = f"{number:,.{decimals}f}"
    return text.lstrip("-") if not text.strip("-0.,") else text  # -0.00 is 0.00


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _flat(name: str, value: Value) -> dict[str, Any]:
    match value:
        case Interval():
            return {name: value.estimate, f"{name}_low": value.low, f"{name}_high": value.high}
        case MeanEstimate():
            return {name: value.mean, f"{name}_std_error": value.std_error, f"{name}_count": value.count}
        case PlusMinus():
            return {name: value.center, f"{name}_spread": value.spread}
    return {name: value}


def _markdown_row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"
