"""The bundled problems: sound under every simulation, told whole by their shards, and none of the published ones."""

import re

import pytest

from collab.environments.loading import bundled_file, load_tasks
from collab.environments.lost_in_conversation.domain import domain
from collab.environments.lost_in_conversation.loading import load_instructions
from collab.environments.lost_in_conversation.simulations import Simulation
from collab.environments.lost_in_conversation.splits import check_disjoint
from collab.environments.registry import load_domain
from collab.rewards.accuracy import gold_answer


@pytest.mark.parametrize("simulation", [str(each) for each in Simulation])
def test_every_simulation_can_be_played(simulation: str) -> None:
    loaded = load_domain("lost_in_conversation", {"simulation": simulation})  # its split is train: published problems are refused
    train, test = (load_tasks("bundled", loaded, split=split).tasks for split in ("train", "test"))
    assert len(train) >= 4 and len(test) >= 6
    assert not {task.goal for task in train} & {task.goal for task in test}


def test_what_is_measured_is_not_what_is_trained_on() -> None:
    with bundled_file("lost_in_conversation") as path:
        training, evaluation = (load_instructions(path, split).instructions for split in ("train", "evaluation"))
    assert (len(training), len(evaluation)) == (4, 6)
    check_disjoint(training, evaluation)


def test_shards_tell_every_number_of_the_problem_and_the_answer_is_stated() -> None:
    for split in ("train", "test"):
        for task in load_tasks("bundled", domain(), split=split).tasks:
            record = task.metadata["instruction"]["record"]
            told = " ".join(shard["shard"] for shard in record["shards"])
            assert set(re.findall(r"\d+", told)) >= set(re.findall(r"\d+", task.goal)), task.id
            assert gold_answer(record["answer"]), task.id
