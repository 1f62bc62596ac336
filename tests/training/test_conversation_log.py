"""Sample conversations as a table: in a file always, in wandb where the run reports there."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collab.training.conversation_log import COLUMNS, ConversationLog
from collab.training.episode import Episode, PolicyTurn
from collab.training.settings import OptimizationSettings, trainer_arguments
from simulators.errors import ConfigurationError

EPISODES = [
    Episode(
        f"task-{at // 2}",
        at % 2,
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}],
        turns=[PolicyTurn(0, 2)],
        reward=0.5 if at else None,
    )
    for at in range(6)
]
CREDIT: list[list[float] | None] = [[0.1 * at] if at else None for at in range(6)]


def test_rows_are_spread_over_the_batch(tmp_path: Path) -> None:
    path = tmp_path / "conversations.jsonl"
    log = ConversationLog(path, 3, enabled=True, wandb=False)
    log.write(7, "train", EPISODES, CREDIT)
    log.write(8, "eval", EPISODES[:1], CREDIT[:1])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["start"] for row in rows] == ["task-0", "task-1", "task-2", "task-0"]
    assert [row["step"] for row in rows] == [7, 7, 7, 8] and rows[0]["reward"] is None and rows[0]["advantages"] is None
    assert rows[1]["worths"] == [0.5] and rows[1]["conversation"] == EPISODES[2].messages


@pytest.mark.parametrize(("limit", "enabled"), [(0, True), (3, False)])
def test_nothing_is_written_where_it_is_not_wanted(limit: int, enabled: bool, tmp_path: Path) -> None:
    log = ConversationLog(tmp_path / "conversations.jsonl", limit, enabled=enabled, wandb=False)
    log.write(1, "train", EPISODES, CREDIT)
    assert not list(tmp_path.iterdir())


def test_wandb_gets_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    fake = SimpleNamespace(
        run=object(),
        Table=lambda columns, data: (columns, data),
        log=lambda values, commit: logged.append((values, commit)),
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    ConversationLog(tmp_path / "conversations.jsonl", 2, enabled=True, wandb=True).write(1, "train", EPISODES, CREDIT)
    (((values, commit),),) = (logged,)
    columns, data = values["conversations"]
    assert columns == list(COLUMNS) and len(data) == 2 and not commit
    assert json.loads(data[1][columns.index("conversation")]) == EPISODES[3].messages


def test_a_run_that_reports_to_wandb_without_wandb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"wandb, which is not installed; pip install 'collab\[wandb\]'"):
        trainer_arguments(dict, OptimizationSettings(report_to="wandb"), tmp_path, 0)
