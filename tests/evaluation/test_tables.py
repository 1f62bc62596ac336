"""Tables: what a cell shows, which value is the best, and that text stays text in both formats."""

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collab.evaluation.statistics import Interval, MeanEstimate
from collab.evaluation.tables import Column, PlusMinus, Row, Table, format_value, scaled


def cells_of(html):
    """The texts of the table's body, row by row, as a browser would read them."""

    class Reader(HTMLParser):
        rows, inside = [], False

        def handle_starttag(self, tag, attrs):
            if tag == "tbody":
                self.rows, self.inside = [], True
            elif self.inside and tag == "tr":
                self.rows.append([])
            elif self.inside and tag in ("td", "th"):
                self.rows[-1].append("")

        def handle_endtag(self, tag):
            self.inside = self.inside and tag != "tbody"

        def handle_data(self, data):
            if self.inside and self.rows and self.rows[-1]:
                self.rows[-1][-1] += data

    reader = Reader()
    reader.feed(html)
    return reader.rows


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.50"),
        (-0.001, "0.00"),
        (1234567, "1,234,567"),
        (1234.5, "1,234.50"),
        ("plain", "plain"),
        (None, "–"),
        (float("nan"), "–"),
        (Interval(0.5, 0.25, 0.75), "0.50 [0.25, 0.75]"),
        (Interval(0.5, None, None), "0.50"),
        (MeanEstimate(0.5, 0.123, 8), "0.50 ± 0.12"),
        (MeanEstimate(0.5, None, 1), "0.50"),
        (PlusMinus(0.3, 0.1), "0.30 ± 0.10"),
    ],
)
def test_a_cell_shows_its_number_with_its_uncertainty(value, text):
    assert "".join(format_value(value)) == text


def test_units_stand_after_the_number():
    assert format_value(Interval(48.35, 40, 60), 1, "%") == ("48.4%", " [40.0, 60.0]")


def test_scaling_takes_the_uncertainty_along():
    assert scaled(Interval(0.5, 0.25, 0.75), 100) == Interval(50, 25, 75)
    assert scaled(MeanEstimate(2000, 100, 3), 1e-3) == MeanEstimate(2, pytest.approx(0.1), 3)
    assert scaled(PlusMinus(1.0, None), 2) == PlusMinus(2.0, None)
    assert scaled(None, 2) is None and scaled("text", 2) == "text"


def example():
    return Table(
        "Results",
        (Column("Policy"), Column("R*", better="higher"), Column("tokens", 1, better="lower", group="cost"), Column("n", 0)),
        (
            Row(("Base", 0.101, 30.04, 3), "baseline"),
            Row(("SFT", Interval(0.6, 0.5, 0.7), 30.01, 4)),
            Row(("DPO", None, 31.0, 5)),
            Row(("PPO", None, None, 6)),
            Row(("gain", 500.0, 99.0, 0), "summary", unit="%", decimals=0),
        ),
        note="a `note`",
    )


def test_markdown_of_a_table():
    assert example().markdown().splitlines() == [
        "**Results**",
        "",
        r"| Policy | R\* ↑ | cost: tokens ↓ | n |",
        "| --- | ---: | ---: | ---: |",
        "| Base | 0.10 | **30.0** | 3 |",
        r"| SFT | **0.60 \[0.50, 0.70\]** | **30.0** | 4 |",
        "| DPO | – | 31.0 | 5 |",
        "| PPO | – | – | 6 |",
        "| gain | 500% | 99% | 0% |",
        "",
        "a `note`",
    ]


def test_html_of_a_table_holds_the_same_cells_and_marks_the_best():
    html = example().html()
    assert cells_of(html)[:2] == [["Base", "0.10", "30.0", "3"], ["SFT", "0.60 [0.50, 0.70]", "30.0", "4"]]
    assert html.count('class="num best"') == 3, "values that print alike are both best; a summary and a gap are never"
    assert '<th scope="colgroup" colspan="1" class="group">cost</th>' in html


def test_a_single_value_is_not_the_best_of_anything():
    table = Table("t", (Column("a", better="higher"),), (Row((1.0,)), Row((None,))))
    assert "best" not in table.html() and "**1" not in table.markdown()


def test_where_all_values_print_alike_none_is_the_best():
    table = Table("t", (Column("a", better="higher"),), (Row((1.001,)), Row((1.0,)), Row((None,))))
    assert "best" not in table.html() and "**1" not in table.markdown()


def test_rows_must_have_a_cell_for_every_column():
    with pytest.raises(ValueError, match="row 2 does not have 2 cells"):
        Table("t", (Column("a"), Column("b")), (Row((1, 2)), Row((1,))))


def test_records_are_flat_and_json():
    records = example().records()
    assert records[1] == {"row": "ours", "Policy": "SFT", "R*": 0.6, "R*_low": 0.5, "R*_high": 0.7, "cost tokens": 30.01, "n": 4}
    assert records[2]["R*"] is None
    json.dumps(records)


@given(st.text())
def test_any_text_in_a_cell_stays_a_cell(text):
    table = Table("t", (Column("a"), Column("b")), (Row((text, 1.0)),))
    lines = table.markdown().splitlines()
    assert len(lines) == 5, "no text breaks the row"
    assert lines[4].replace("\\|", "").count("|") == 3
    (cells,) = cells_of(table.html())
    assert len(cells) == 2 and cells[1] == "1.00"
