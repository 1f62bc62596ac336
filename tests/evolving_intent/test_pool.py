"""Pools: a fixed order, rejects kept with their reasons, restarts that go on where they were."""

import asyncio
import json

import pytest

from collab.environments.evolving_intent.conversion import Conversion, Rejected, build_pool, conversions_of, read_pool
from collab.environments.evolving_intent.gsm8k.builder import RulesBuilder, source_task
from collab.environments.evolving_intent.gsm8k.domain import domain
from collab.environments.loading import load_tasks
from simulators.errors import ChatModelError, ConfigurationError
from tests.evolving_intent.tasks import PROBLEMS

NO_QUESTION = {"id": "bad", "question": "Ann has 3 cats. Bob has 4.", "answer": "#### 7"}
TASKS = [source_task(record, "x") for record in (*PROBLEMS, NO_QUESTION)]


class SlowBuilder:
    """Finishes later tasks first, and counts what it is asked."""

    name = "slow"

    def __init__(self, fail: str | None = None) -> None:
        self.asked: list[str] = []
        self.fail = fail

    async def convert(self, task):
        self.asked.append(task.id)
        await asyncio.sleep(0.02 * (4 - len(self.asked)))
        if task.id == self.fail:
            raise ChatModelError("the model is down")
        return await RulesBuilder().convert(task)


async def test_entries_come_in_the_order_of_the_tasks_with_the_rejects(tmp_path):
    entries = await build_pool(TASKS, SlowBuilder(), tmp_path / "pool.jsonl")
    assert [key for key, _ in entries] == ["bakery", "orchard", "library", "bad"]
    rejection = entries[3][1]
    assert isinstance(rejection, Rejected) and (rejection.stage, rejection.reason) == ("extraction", "no question")
    assert len(conversions_of(entries)) == 3
    read = list(read_pool(tmp_path / "pool.jsonl"))
    assert [str(entry) if isinstance(entry, Rejected) else entry.to_record() for _, entry in read] == [
        str(entry) if isinstance(entry, Rejected) else entry.to_record() for _, entry in entries
    ]


async def test_a_restart_converts_only_what_is_missing(tmp_path):
    path = tmp_path / "pool.jsonl"
    whole = tmp_path / "whole.jsonl"
    await build_pool(TASKS, RulesBuilder(), whole)
    await build_pool(TASKS[:2], RulesBuilder(), path)
    with path.open("ab") as stream:
        stream.write(b'{"task_id": "libr')  # killed while writing
    builder = SlowBuilder()
    await build_pool(TASKS, builder, path)
    assert sorted(builder.asked) == ["bad", "library"]
    assert path.read_bytes() == whole.read_bytes()


async def test_a_task_whose_model_failed_is_tried_again_and_so_is_what_follows(tmp_path):
    path = tmp_path / "pool.jsonl"
    entries = await build_pool(TASKS, SlowBuilder(fail="orchard"), path)
    assert isinstance(entries[1][1], Rejected) and entries[1][1].stage == "model"
    assert isinstance(entries[2][1], Conversion)
    assert [key for key, _ in read_pool(path)] == ["bakery"]
    again = SlowBuilder()
    await build_pool(TASKS, again, path)
    assert "bakery" not in again.asked and [key for key, _ in read_pool(path)] == [task.id for task in TASKS]


async def test_pools_of_other_tasks_are_refused(tmp_path):
    path = tmp_path / "pool.jsonl"
    await build_pool(TASKS, RulesBuilder(), path)
    with pytest.raises(ConfigurationError, match="holds task 'bakery' where this run has 'orchard'"):
        await build_pool(TASKS[1:], RulesBuilder(), path)
    with pytest.raises(ConfigurationError, match="holds 4 tasks, this run has 2"):
        await build_pool(TASKS[:2], RulesBuilder(), path)
    with pytest.raises(ConfigurationError, match="two tasks have the id 'bakery'"):
        await build_pool([TASKS[0], TASKS[0]], RulesBuilder())


def test_damaged_pools_are_named(tmp_path):
    path = tmp_path / "pool.jsonl"
    header = {"format": "collab-intents", "version": 1}
    path.write_text(json.dumps(header) + "\n" + json.dumps({"task_id": "a", "conversion": {}}) + "\n")
    with pytest.raises(ConfigurationError, match="not an intent conversion"):
        list(read_pool(path))


async def test_a_pool_is_a_task_source(tmp_path):
    """The environment takes a pool's file as it is; tasks that could not be converted are passed over and counted."""
    path = tmp_path / "pool.jsonl"
    await build_pool(TASKS, RulesBuilder(), path)
    loaded = load_tasks(str(path), domain(turns=7))
    assert [task.id for task in loaded.tasks] == ["bakery", "orchard", "library"]
    assert loaded.skipped == [] and loaded.unsuitable == {"extraction: no question": 1}
