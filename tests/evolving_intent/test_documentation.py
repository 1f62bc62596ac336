"""docs/evolving_intent.md names every option, arm, persona and domain there is, and its example is a task."""

import inspect
import json
import re

import pytest

from collab.environments.evolving_intent.arms import ARMS
from collab.environments.evolving_intent.gsm8k.domain import domain
from collab.environments.evolving_intent.personas import PERSONAS
from collab.environments.registry import DOMAINS, load_domain
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "evolving_intent.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", [*inspect.signature(domain).parameters, *PERSONAS, *(name for name in DOMAINS if name.startswith("evolving_"))]
)
def test_the_page_names_what_can_be_chosen(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_the_page_names_every_arm() -> None:
    (rows,) = re.findall(r"^\| arm \| turns \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert {name.strip() for row in rows.splitlines() for name in row.split("|")[1].split(",")} == set(ARMS)


def test_the_example_of_written_out_parts_is_a_task() -> None:
    (record,) = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    search = load_domain("evolving_search", {"turns": 4, "switches": 1, "revisions": 1})
    task = search.task_from_record(json.loads(record), "x")
    assert task.id == "village" and task.reference == "Hollin" and len(task.metadata["evolving"]["messages"]) == 4
