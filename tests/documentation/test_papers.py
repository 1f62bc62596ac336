"""The index of papers: every module it names is there, and every paper that a docstring cites by number is in it."""

import re

from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "papers.md").read_text(encoding="utf-8")
_ARXIV = re.compile(r"\b(\d{4}\.\d{5})\b")


def rows() -> list[list[str]]:
    table = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return [row for row in table if row[0].strip() != "method"]


def test_every_module_that_is_named_exists() -> None:
    named = re.findall(r"`((?:collab|simulators)/[\w/]+\.py)`", PAGE)
    assert len(named) > 70
    assert [path for path in named if not (REPOSITORY / path).is_file()] == []


def test_every_method_has_a_source_and_a_module() -> None:
    assert len(rows()) > 50
    for method, source, module in rows():
        assert method.strip() and source.strip()
        assert re.search(r"`(?:collab|simulators)/", module), method


def test_what_docstrings_cite_is_in_the_index() -> None:
    cited = set()
    for package in ("simulators", "collab"):
        for path in (REPOSITORY / package).rglob("*.py"):
            cited |= set(_ARXIV.findall(path.read_text(encoding="utf-8")))
    assert {"2402.03300", "2305.18290"} <= cited
    assert sorted(cited - set(_ARXIV.findall(PAGE))) == []
