"""The published schema: what loads, what does not, and what a person is told about it."""

import json

import pytest

from collab.environments.domain import BadRecord
from collab.environments.lost_in_conversation.loading import load_instructions, one_cut_a_problem
from collab.environments.lost_in_conversation.schema import Split, TaskKind, instruction_from_record
from collab.tasks.held_out import fingerprint
from simulators.errors import ConfigurationError
from tests.lost_in_conversation.records import ACTIONS, CODE, OF_EACH_TASK, SUMMARY, math_instruction, math_record, shards


@pytest.mark.parametrize("record", OF_EACH_TASK, ids=lambda record: record["task"])
def test_a_record_of_each_task_is_read(record):
    instruction = instruction_from_record(record, Split.EVALUATION)
    assert instruction.kind == record["task"]
    assert instruction.id == f"evaluation/{record['task']}/{record['task_id']}"
    assert len(instruction.shards) == len(record["shards"])
    assert all(text.strip() for text in instruction.shard_texts)
    assert instruction.full.strip()


def test_context_holds_what_the_assistant_needs_anyway_and_the_gold_stays_out():
    database = instruction_from_record(OF_EACH_TASK[2], Split.EVALUATION)
    assert "CREATE TABLE singer" in database.context and "CREATE TABLE" not in database.full
    actions = instruction_from_record(ACTIONS, Split.EVALUATION)
    assert '"area"' in actions.context and actions.full.startswith("Areas of triangles")
    for record in OF_EACH_TASK:
        instruction = instruction_from_record(record, Split.EVALUATION)
        shown = instruction.context + instruction.full + " ".join(instruction.shard_texts)
        for gold in ("####", "assert candidate", "WHERE age > 30", "Ann won the Village cup three times", "Roses are named."):
            assert gold not in shown


def test_summary_shards_are_made_of_documents_and_full_hands_over_the_same_ones():
    instruction = instruction_from_record(SUMMARY, Split.EVALUATION)
    first, second = instruction.shard_texts
    assert "Which plants are named?" in first and "Document 7" in first and "Document 2" not in first
    assert second.index("Document 2") < second.index("Document 5")
    assert [shard.id for shard in instruction.shards] == [0, 1]
    assert instruction.full.index("Document 7") < instruction.full.index("Document 2") < instruction.full.index("Document 5")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"task": "poetry"}, "field 'task' is 'poetry'"),
        ({"question": None}, "field 'question' is NoneType"),
        ({"question": "  "}, "field 'question' is empty"),
        ({"shards": []}, "'shards' is empty"),
        ({"shards": "How many?"}, "'shards' is missing or not a list"),
        ({"shards": [{"shard_id": "1", "shard": "How many?"}]}, "must be a whole number"),
        ({"shards": [{"shard_id": True, "shard": "How many?"}]}, "must be a whole number"),
        ({"shards": [{"shard_id": 1}]}, "entry 0: needs a text 'shard'"),
        ({"shards": shards("How many?", "Two.") + shards("Three.")}, "numbers a shard twice"),
        ({"task_id": ""}, "field 'task_id'"),
    ],
)
def test_bad_fields_are_named(changes, complaint):
    with pytest.raises(BadRecord, match=complaint):
        instruction_from_record(math_record(**changes), Split.EVALUATION)


@pytest.mark.parametrize(
    ("record", "changes", "complaint"),
    [
        (CODE, {"metadata": {"entry": "largest"}}, "func_name"),
        (CODE, {"metadata": {"func_name": "x; import os"}}, "func_name"),
        (ACTIONS, {"fully_specified_question": [[{"role": "user"}]]}, "fully_specified_question"),
        (SUMMARY, {"documents": [{"document_index": "7", "document_text": "x"}]}, "document_index"),
        (SUMMARY, {"shards": [{"shard_id": 0, "shard": "", "doc_idxs": [99]}]}, "numbers of the record's documents"),
        (OF_EACH_TASK[4], {"references": ["", "x"]}, "references"),
    ],
)
def test_bad_fields_of_the_other_tasks(record, changes, complaint):
    with pytest.raises(BadRecord, match=complaint):
        instruction_from_record(record | changes, Split.EVALUATION)


def test_shards_without_text_say_nothing_and_are_left_out():
    record = math_record(shards=[*shards("How many?", "Two."), {"shard_id": 3, "shard": " "}])
    assert instruction_from_record(record, Split.TRAIN).shard_texts == ("How many?", "Two.")


def test_the_split_is_part_of_the_id_and_a_training_id_names_the_cut():
    assert math_instruction(split=Split.EVALUATION).id == "evaluation/math/own/1"
    first = math_instruction(split=Split.TRAIN)
    other_cut = instruction_from_record(math_record(shards=shards("How many?", "All else.")), Split.TRAIN)
    assert first.id.startswith("train/math/own/1/") and first.id != other_cut.id
    assert first.fingerprint == other_cut.fingerprint


def test_fingerprints_ignore_spacing_case_and_punctuation_only():
    assert fingerprint("How many,  apples?") == fingerprint("how many apples")
    assert fingerprint("How many apples?") != fingerprint("How many pears?")


def test_with_shards_gives_the_same_problem_under_another_id():
    instruction = math_instruction()
    variant = instruction.with_shards(("How many are left?", "Everything."), "/k2")
    assert variant.id == f"{instruction.id}/k2" and variant.fingerprint == instruction.fingerprint
    again = instruction_from_record(variant.record, Split.EVALUATION)
    assert again.shard_texts == variant.shard_texts and again.id == variant.id
    with pytest.raises(BadRecord, match="shard 2 has no text"):
        instruction.with_shards(("How many?", " "), "/k2")


def write(path, rows, as_list=False):
    path.write_text(json.dumps(rows, indent=1) if as_list else "\n".join(json.dumps(row) for row in rows), "utf-8")
    return path


@pytest.mark.parametrize("as_list", [False, True])
def test_files_of_either_form_load(tmp_path, as_list):
    path = write(tmp_path / "own.json", [math_record(1), math_record(2)], as_list)
    loaded = load_instructions(path, "evaluation")
    assert [each.id for each in loaded.instructions] == ["evaluation/math/own/1", "evaluation/math/own/2"]
    assert (loaded.rows, loaded.repeats, loaded.distinct_problems) == (2, 0, 2)


def test_a_bad_record_is_reported_with_file_and_line_and_the_others_load(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(f"{json.dumps(math_record(1))}\n\n{{broken\n[1]\n{json.dumps(math_record(2, question=3))}\n", "utf-8")
    with pytest.raises(BadRecord, match=r"own\.jsonl, line 3: not valid JSON"):
        load_instructions(path, "evaluation")
    loaded = load_instructions(path, "evaluation", strict=False)
    assert len(loaded.instructions) == 1 and loaded.rows == 4
    assert [problem.split(": ", 1)[0].rpartition(", ")[2] for problem in loaded.problems] == ["line 3", "line 4", "line 5"]


def test_a_bad_record_of_a_list_is_reported_with_the_line_it_starts_on(tmp_path):
    path = write(tmp_path / "own.json", [math_record(1), math_record(2, answer="")], as_list=True)
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if '"own/2"' in text) - 2
    with pytest.raises(BadRecord, match=rf"line {line} \(record 2\): field 'answer' is empty"):
        load_instructions(path, "evaluation")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no records"),
        ("[{}", "cut short|bad|field"),
        ('[{"task": "math"', "nothing after it can be read"),
        ("[", "cut short"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, complaint):
    path = tmp_path / "own.json"
    path.write_text(content)
    with pytest.raises((ConfigurationError, BadRecord), match=complaint):
        load_instructions(path, "evaluation")
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_instructions(tmp_path / "absent.json", "evaluation")


def test_exact_repeats_load_once_and_two_records_under_one_evaluation_id_are_refused(tmp_path):
    path = write(tmp_path / "own.jsonl", [math_record(1), math_record(1), math_record(1, shards=shards("How many?", "Rest."))])
    loaded = load_instructions(path, "train")
    assert (len(loaded.instructions), loaded.repeats, loaded.distinct_problems) == (2, 1, 1)
    assert len(one_cut_a_problem(loaded.instructions)) == 1
    with pytest.raises(ConfigurationError, match="line 3: id evaluation/math/own/1 stands for two different records"):
        load_instructions(path, "evaluation")


def test_all_published_records_load(collab_data):
    folder = collab_data / "lost-in-conversation"
    counts = {path.stem: len(load_instructions(path, "evaluation").instructions) for path in folder.glob("*.jsonl")}
    assert counts == {"math": 15} | dict.fromkeys([kind for kind in TaskKind if kind != "math"], 5)


def test_the_698_sharded_training_problems_load(collab_data):
    loaded = load_instructions(collab_data / "lic-sharded-gsm8k" / "sharded_gsm8k_v2.json", "train")
    assert loaded.rows == 698 and not loaded.problems
    assert len(loaded.instructions) + loaded.repeats == 698
    assert loaded.distinct_problems == len(one_cut_a_problem(loaded.instructions)) == 428
