"""Training and evaluation never share a problem."""

import json

import pytest

from collab.environments.lost_in_conversation.domain import domain
from collab.environments.lost_in_conversation.loading import load_instructions
from collab.environments.lost_in_conversation.schema import Split, instruction_from_record
from collab.environments.lost_in_conversation.splits import check_disjoint, check_may_train
from collab.tasks.held_out import gsm8k_test_fingerprints
from simulators.errors import ConfigurationError
from tests.lost_in_conversation.records import CODE, math_instruction, math_record


def test_there_is_a_fingerprint_for_each_gsm8k_test_question():
    assert len(gsm8k_test_fingerprints()) == 1319
    assert all(len(each) == 16 and int(each, 16) >= 0 for each in gsm8k_test_fingerprints())


def test_mixing_is_refused_whatever_the_ids_say():
    training, evaluation = math_instruction(1, Split.TRAIN), math_instruction(1, Split.EVALUATION)
    assert training.id != evaluation.id
    with pytest.raises(ConfigurationError, match="1 training problems are also evaluation problems"):
        check_disjoint([math_instruction(2, Split.TRAIN), training], [evaluation])
    check_disjoint([math_instruction(2, Split.TRAIN)], [evaluation])


def test_an_instruction_loaded_for_evaluation_is_not_trained_on():
    with pytest.raises(ConfigurationError, match="was loaded for evaluation"):
        check_may_train(math_instruction(1, Split.EVALUATION))


def test_published_ids_of_the_other_tasks_are_refused_for_training():
    published = instruction_from_record(CODE | {"task_id": "sharded-HumanEval/105"}, Split.TRAIN)
    with pytest.raises(ConfigurationError, match="published evaluation set"):
        check_may_train(published)
    check_may_train(instruction_from_record(CODE, Split.TRAIN))


def test_gsm8k_test_rows_are_refused_for_training_under_any_id(collab_data, tmp_path):
    """The published math records, and any other record made from a GSM8K test question."""
    with pytest.raises(ConfigurationError, match="must not be trained on"):
        load_instructions(collab_data / "lost-in-conversation" / "math.jsonl", "train")
    row = json.loads((collab_data / "gsm8k" / "test.jsonl").read_text("utf-8").splitlines()[700])
    path = tmp_path / "smuggled.jsonl"
    path.write_text(json.dumps(math_record(question=row["question"].upper() + "  ", task_id="harmless")), "utf-8")
    with pytest.raises(ConfigurationError, match="must not be trained on"):
        load_instructions(path, "train")


def test_the_domain_refuses_them_too(collab_data):
    line = (collab_data / "lost-in-conversation" / "math.jsonl").read_text("utf-8").splitlines()[0]
    with pytest.raises(ConfigurationError, match="must not be trained on"):
        domain(split="train").task_from_record(json.loads(line), "0")
    assert domain(split="evaluation").task_from_record(json.loads(line), "0").id.startswith("evaluation/math/")


def test_problems_to_measure_with_are_held_out_whatever_the_split(collab_data):
    lines = (collab_data / "lost-in-conversation" / "math.jsonl").read_text("utf-8").splitlines()
    chosen = domain(split="evaluation")
    tasks = [chosen.task_from_record(json.loads(line), "x") for line in lines]
    assert {chosen.held_out(task) for task in tasks} == {"the evaluation problems of Lost in Conversation"}
    assert domain().held_out(domain().task_from_record(math_record(1), "x")) is None


def test_published_training_and_evaluation_problems_are_disjoint(collab_data):
    """Ids of the two files collide as they are published; here they cannot, and no question is shared."""
    evaluation = load_instructions(collab_data / "lost-in-conversation" / "math.jsonl", "evaluation").instructions
    for version in (1, 2):
        training = load_instructions(collab_data / "lic-sharded-gsm8k" / f"sharded_gsm8k_v{version}.json", "train").instructions
        check_disjoint(training, evaluation)
        raw = {each.record["task_id"] for each in training} & {each.record["task_id"] for each in evaluation}
        assert raw, "the published ids do collide: the id alone would not tell"
        assert not {each.id for each in training} & {each.id for each in evaluation}
        with pytest.raises(ConfigurationError):
            check_disjoint([*training, *evaluation], evaluation)
