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


SCRIPTED = ["policy=scripted", "output_dir=run"]
BUNDLED = ["lost-in-conversation", "instructions=bundled", "simulations=[full,sharded]", "limit=3", *SCRIPTED]


def test_the_budget_ends_it_and_a_larger_one_goes_on(collab: Collab) -> None:
    ended = collab(*BUNDLED, "runs=2", "budget.max_calls=10")
    assert ended.status == 1
    assert ended.sentence == "collab: the budget is spent (10 of 10 calls); raise it and start the same command again to go on"
    again = collab(*BUNDLED, "runs=2", "budget.max_calls=1000")
    assert again.status == 0, again.err
    calls = json.loads(Path("run/summary.json").read_text())["calls"]["policy"]
    assert calls["reused"] + calls["made"] > 10 and calls["made"] > 0
    more = collab(*BUNDLED, "runs=3", "simulations=[full,sharded,recap]", "limit=2")
    assert more.status == 0, more.err


def test_it_is_replayed_without_a_call(collab: Collab) -> None:
    assert collab(*BUNDLED, "runs=2").status == 0
    ended = collab("replay", "run")
    assert ended.status == 0, ended
    assert "12 trees replayed" in ended.out and ", 0 made" in ended.out and "every tree is as recorded" in ended.out


def test_a_folder_of_other_settings_or_of_another_problem_is_refused(collab: Collab, collab_data: Path) -> None:
    source = json.loads((collab_data / "lic-sharded-gsm8k" / "sharded_gsm8k_v2.json").read_text())[:2]
    Path("mine.json").write_text(json.dumps(source))
    command = ["lost-in-conversation", "instructions=mine.json", "split=train", "simulations=[full]", "runs=1", "policy=scripted"]
    assert collab(*command, "output_dir=run").status == 0
    refused = collab(*command, "output_dir=run", "policy.sampling.temperature=0.5")
    assert refused.status == 1 and "holds a run with policy.sampling.temperature=1.0, and this one has 0.5" in refused.sentence
    source[0]["answer"] = "#### 12345"
    Path("mine.json").write_text(json.dumps(source))
    refused = collab(*command, "output_dir=run")
    assert refused.status == 1 and "run holds results about another task called " in refused.sentence


def test_failed_conversations_are_kept_apart_and_stop_the_run(collab: Collab) -> None:
    Path("gone.py").write_text(
        "from simulators.errors import ChatModelError\n\ndef gone(request, rng):\n    raise ChatModelError('away')\n"
    )
    failing = [*BUNDLED, "policy.model=gone:gone", "simulations=[full]"]
    ended = collab(*failing, "runs=2")
    assert ended.status == 0 and json.loads(ended.out.strip().splitlines()[-1])["failures"] == {"infrastructure": 6}
    assert len(Path("run/stopped.jsonl").read_text().splitlines()) == 1 + 6
    replayed = collab("replay", "run")
    assert replayed.status == 0 and "6 trees replayed: 0 calls from the journal, 6 failed as recorded, 0 made" in replayed.out
    stopped = collab(*failing, "runs=20")
    assert stopped.status == 1
    assert "conversations failed, more than the 30% allowed; most often infra_error: away" in stopped.sentence
