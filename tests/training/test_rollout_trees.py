"""Rollouts as trees: every conversation with tokens and credit, in one file, and a few of them in wandb."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collab.mr import ScoredFuture
from collab.rewards.conversation_reward import Score
from collab.training.episode import Episode, note_score
from collab.training.rollout_trees import COLUMNS, RolloutTrees, log_table
from collab.training.settings import OptimizationSettings, trainer_arguments
from simulators.chat_models.protocol import Completion
from simulators.conversation import ConversationTree, Message, Outcome, ToolCall
from simulators.errors import ConfigurationError
from simulators.forward_sampling import Future, Step
from simulators.tree_file import read_trees
from tests.training import toy
from tests.training.test_episode_player import ask_then_say, branch, play, player


def said(text: str, context: tuple[int, ...], ids: tuple[int, ...], **more: Any) -> Step:
    completion = Completion(text, token_ids=ids, logprobs=(-0.5,) * len(ids), context_ids=context, **more)
    return Step(completion.message, "policy", 0, completion)


def episode(start: str = "t", sample: int = 0, reward: float | None = 1.0) -> Episode:
    """user, call of a tool, its result, reply, user, reply: two policy turns, the first of two messages."""
    call = ToolCall("find", '{"word": "x"}', "call00001")
    steps = [
        Step(Message("user", "Pick."), "user", 0),
        said("", (1, 2), (10, 11), tool_calls=(call,)),
        Step(Message("tool", "found", tool_call_id="call00001"), "tool", 0),
        said("Which?", (3, 4), (12,)),
        Step(Message("user", "It is A."), "user", 0),
        said("A", (5,), (13, 14)),
    ]
    path = Future((), steps)
    tree = ConversationTree(start, {"goal": "g"})
    leaf = path.graft(tree, None)
    assert leaf is not None
    score = None if reward is None else Score(reward, {"said": reward})
    note_score(tree.nodes[leaf], ScoredFuture(sample, path, Outcome.WINDOW_FULL, score))
    return Episode(start, sample, tree, leaf)


def test_an_episode_is_a_view_of_a_path_and_results_of_tools_are_never_trained() -> None:
    row = episode()
    assert row.prompt_ids == [1, 2]
    assert row.completion_ids == [10, 11, 3, 4, 12, 5, 13, 14]
    assert row.policy_mask == [1, 1, 0, 0, 1, 0, 1, 1]
    assert row.logprobs == [-0.5, -0.5, 0.0, 0.0, -0.5, 0.0, -0.5, -0.5]
    assert [(turn.start, turn.end) for turn in row.turns] == [(0, 5), (6, 8)]
    assert (row.reward, row.components, row.worths) == (1.0, {"said": 1.0}, [None, 1.0])


def test_a_row_of_one_reply_is_trained_on_that_reply_alone() -> None:
    whole = episode()
    row = Episode("t", 0, whole.tree, whole.leaf, turn=2, whole=False)
    assert (row.prompt_ids, row.completion_ids, row.policy_mask) == ([1, 2, 10, 11, 3, 4, 12, 5], [13, 14], [1, 1])
    assert row.worths == [1.0]


def test_a_row_is_the_same_after_the_journal() -> None:
    for row in (episode(), play(player(ask_then_say("A")), toy.tasks(1)[0])):
        tree = ConversationTree.from_record(json.loads(json.dumps(row.tree.to_record())))
        again = Episode.from_record(json.loads(json.dumps(row.to_record())), tree)
        for name in ("prompt_ids", "completion_ids", "policy_mask", "logprobs", "turns", "reward", "outcome", "conversation"):
            assert getattr(again, name) == getattr(row, name), name


def test_conversations_of_a_start_stand_side_by_side_with_their_credit(tmp_path: Path) -> None:
    trees = RolloutTrees(tmp_path, 0, "grpo")
    rows = [episode("t", 0), episode("t", 1, None), episode("u", 0), Episode.padding(0)]
    trees.write(7, "train", rows, [[0.5, -0.5], None, [1.0, 1.0], None])
    trees.close()
    first, second = read_trees(tmp_path)
    assert (first.task_id, second.task_id) == ("train7|t", "train7|u")
    assert first.metadata == {"goal": "g", "method": "grpo", "mode": "train", "step": 7, "start": "t"}
    credit = [node.annotations.get("credit") for node in first.nodes if node.author == "policy"]
    assert credit == [0.5, 0.5, -0.5, None, None, None]
    assert [leaf.annotations["score"]["total"] for leaf in first.leaves()] == [1.0, None]


def test_a_branched_conversation_keeps_its_replies_futures_in_place(tmp_path: Path) -> None:
    rows = branch(player(ask_then_say("A")), toy.tasks(1)[0], size=2)
    trees = RolloutTrees(tmp_path, 1, "online_dpo")
    trees.write(0, "train", [episode(rows[0].start_id), *rows], [[0.0, 0.0], *([0.5] for _ in rows)])
    trees.close()
    (tree,) = read_trees(tmp_path / "trees-1.jsonl")
    candidates = [node for node in tree.nodes if "mr" in node.annotations]
    assert len(candidates) == len(rows) == 4
    for node in candidates:
        for future in node.annotations["mr"]["futures"]:
            assert node in tree.path(future["leaf"]), "a future's last node lies below its candidate"


def test_what_a_resumed_run_plays_again_is_not_written_twice(tmp_path: Path) -> None:
    for _ in range(2):
        trees = RolloutTrees(tmp_path, 0, "grpo")
        trees.write(3, "train", [episode()], [[0.5, 0.5]])
        trees.close()
    assert len(list(read_trees(tmp_path))) == 1


def test_what_could_not_be_played_is_noted(tmp_path: Path) -> None:
    failed = Episode("t", 2, ConversationTree("t"), failed=(Outcome.USER_ERROR, "the user is away"))
    trees = RolloutTrees(tmp_path, 0, "grpo")
    trees.write(0, "train", [failed], [None])
    trees.close()
    (tree,) = read_trees(tmp_path)
    assert tree.metadata["failed"][0]["failed"] == ["user_error", "the user is away"]
    assert (failed.reward, failed.outcome, failed.completion_ids) == (None, Outcome.USER_ERROR, [])


def test_wandb_gets_a_table_spread_over_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    fake = SimpleNamespace(
        run=object(),
        Table=lambda columns, data: (columns, data),
        log=lambda values, commit: logged.append((values, commit)),
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    rows = [episode(f"t{at // 2}", at % 2) for at in range(6)]
    log_table(1, "train", rows, [[0.1, 0.1]] * 6, 2)
    (((values, commit),),) = (logged,)
    columns, data = values["conversations"]
    assert columns == list(COLUMNS) and len(data) == 2 and not commit
    assert [row[columns.index("start")] for row in data] == ["t0", "t1"]
    assert json.loads(data[1][columns.index("conversation")])[0] == {"role": "user", "content": "Pick."}
    log_table(1, "train", rows, [None] * 6, 0)
    assert len(logged) == 1


def test_a_run_that_reports_to_wandb_without_wandb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"wandb, which is not installed; pip install 'collab\[wandb\]'"):
        trainer_arguments(dict, OptimizationSettings(report_to="wandb"), tmp_path, 0)
