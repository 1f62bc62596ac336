"""`collab lost-in-conversation` as a user types it."""

import json
from pathlib import Path

from tests.recipes.conftest import Collab
from tests.simulators.fault_server import FaultServer


def command(collab_data: Path) -> list[str]:
    return [
        "lost-in-conversation",
        f"instructions={collab_data / 'lost-in-conversation' / 'math.jsonl'}",
        "limit=2",
        "runs=2",
        "simulations=[full,sharded]",
    ]


def test_a_table_a_report_and_a_resumed_run(
    collab: Collab, collab_data: Path, served: list[str], chat_server: FaultServer
) -> None:
    ended = collab(*command(collab_data), *served)
    assert ended.status == 0, ended
    assert json.loads(ended.out.strip().splitlines()[-1])["conversations"] == 8
    folder = Path("outputs/lost_in_conversation")
    text = (folder / "report.md").read_text()
    assert "(Lost in Conversation Table 1)" in text and "SHARDED / FULL" in text and "figures/reliability.svg" in text
    asked = chat_server.answered
    again = collab(*command(collab_data), *served)
    assert again.status == 0 and chat_server.answered == asked


def test_an_unknown_simulation_is_refused(collab: Collab, collab_data: Path, served: list[str]) -> None:
    ended = collab(*command(collab_data), *served, "simulations=[fool]")
    assert ended.status == 1
    assert "unknown simulation 'fool'" in ended.sentence


def test_the_bundled_problems(collab: Collab, served: list[str]) -> None:
    ended = collab("lost-in-conversation", "instructions=bundled", "runs=1", "simulations=[full,sharded]", "limit=3", *served)
    assert ended.status == 0, ended
    assert json.loads(ended.out.strip().splitlines()[-1]) == {"conversations": 6, "failures": {}}
