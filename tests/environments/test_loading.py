"""Every source of tasks, and for every way it can be wrong the one sentence that says so."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from collab.environments.domain import Domain, Unsuitable
from collab.environments.errands import ERRANDS, generate
from collab.environments.loading import load_tasks
from collab.environments.registry import load_domain
from collab.tasks.task import Task
from simulators.errors import ConfigurationError
from tests.environments.hub_mirror import HubMirror

MATH = load_domain("math_chat")
ERRAND = load_domain("errands")
SUMS: list[dict[str, Any]] = [
    {"question": f"Ada has {n} pens and gets 4. How many has she?", "answer": f"#### {n + 4}"} for n in range(5)
]


def lines(records: list[Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def refusal(source: Path | str, domain: Domain = MATH, **settings: Any) -> str:
    """Return the sentence with which a source is refused."""
    with pytest.raises(ConfigurationError) as caught:
        load_tasks(str(source), domain, **settings)
    text = str(caught.value)
    assert "\n" not in text
    return text


# ---------------------------------------------------------------- files


def write_jsonl(path: Path) -> None:
    path.write_text("\n" + lines(SUMS).replace("\n", "\r\n"))


def write_json(path: Path) -> None:
    path.write_text(json.dumps(SUMS))


def write_csv(path: Path) -> None:
    rows = "".join(f'"{record["question"]}",{record["answer"]}\n' for record in SUMS)
    path.write_text("\ufeffquestion,answer\n" + rows, encoding="utf-8")


def write_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(SUMS), path)


@pytest.mark.parametrize(
    ("name", "write"),
    [("sums.jsonl", write_jsonl), ("sums.json", write_json), ("sums.csv", write_csv), ("sums.parquet", write_parquet)],
)
def test_each_format_gives_the_same_tasks(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path / name)
    loaded = load_tasks(str(tmp_path / name), MATH)
    assert [task.reference for task in loaded.tasks] == ["4", "5", "6", "7", "8"]
    assert loaded.tasks[0].goal == "Ada has 0 pens and gets 4. How many has she?"
    assert [task.id for task in loaded.tasks] == [f"math_chat-train-{number:05d}" for number in range(5)]
    assert loaded.skipped == []


@pytest.mark.parametrize("splits", [False, True])
def test_a_folder_written_by_datasets(tmp_path: Path, splits: bool) -> None:
    import datasets

    dataset = datasets.Dataset.from_list(SUMS)
    (datasets.DatasetDict({"train": dataset}) if splits else dataset).save_to_disk(str(tmp_path / "sums"))
    assert len(load_tasks(str(tmp_path / "sums"), MATH).tasks) == 5
    if splits:
        assert "has no split 'test'; it has train" in refusal(tmp_path / "sums", split="test")


def test_a_path_may_start_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_jsonl(tmp_path / "sums.jsonl")
    assert len(load_tasks("~/sums.jsonl", MATH).tasks) == 5


def test_math_records_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "math.jsonl"
    path.write_text(lines([{"problem": "Find x.", "solution": "So $x = \\boxed{\\frac{1}{2}}$.", "level": "Level 5"}]))
    assert load_tasks(str(path), MATH).tasks[0].reference == "\\frac{1}{2}"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.jsonl",
            lines(SUMS[:1]) + '{"question": "3\n',
            "a.jsonl, line 2: not valid JSON (Invalid control",
        ),
        ("a.jsonl", lines([SUMS[0], [1]]), "a.jsonl, line 2: a record must be a JSON object, not a JSON array"),
        ("a.jsonl", "1" * 10_000, "a.jsonl, line 1: not valid JSON"),
        ("a.jsonl", "[" * 100_000, "a.jsonl, line 1: not valid JSON"),
        ("a.jsonl", "", "a.jsonl has no task of split 'train'"),
        ("a.jsonl", "\n\n", "a.jsonl has no task of split 'train'"),
        ("a.json", "[]", "a.json has no task of split 'train'"),
        ("a.json", '{"train": []}', "a.json holds one JSON object; a task file is a list of records or JSON lines"),
        ("a.json", "3", "a.json holds one JSON number"),
        ("a.json", "null", "a.json holds one JSON null"),
        ("a.json", '"text"', "a.json holds one JSON string"),
        ("a.json", '[\n{"question": ', "a.json, line 2: not valid JSON (Expecting value, column 14)"),
        ("a.json", '["text"]', "a.json, record 1: a record must be a JSON object, not a JSON string"),
        ("a.csv", "", "a.csv has no task of split 'train'"),
        ("a.csv", "question,answer\n", "a.csv has no task of split 'train'"),
        ("a.csv", "question,reply\n3?,3\n", "a.csv, line 2: needs a column 'answer' (GSM8K) or 'solution' (MATH)"),
        ("a.csv", "question\n3?,#### 3\n", "a.csv, line 2: needs a column 'answer'"),
        ("a.csv", 'question,answer\n"' + "x" * 200_000 + '"\n', "a.csv, after line 1: not valid CSV (field larger than"),
        ("a.parquet", "no parquet", "a.parquet cannot be read as Parquet"),
        ("a.parquet", "", "a.parquet cannot be read as Parquet"),
        ("a.txt", "3", "a.txt has an unknown format; use .jsonl, .json, .csv or .parquet"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    assert said in refusal(tmp_path / name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes('[{"question": "größer?"}]'.encode("latin-1"))
    assert "is not UTF-8 text; save it as UTF-8" in refusal(tmp_path / name)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("missing.jsonl", "task file missing.jsonl does not exist; give an existing file or a Hub id"),
        ("some/where/missing.csv", "task file some/where/missing.csv does not exist"),
        ("./missing", "task source ./missing does not exist; give `bundled`, a file, a folder or a Hub id"),
        ("gsm8k", "task source gsm8k does not exist"),
    ],
)
def test_a_source_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refusal(source)


def test_a_domain_without_tasks_of_its_own_says_so() -> None:
    said = refusal("bundled", dataclasses.replace(MATH, bundled=None))
    assert said == "environment math_chat has no bundled tasks; set tasks=FILE or tasks=HUB_ID"


def test_the_bundled_tasks_of_another_domain_are_found_by_name() -> None:
    own = load_tasks("bundled", MATH).tasks
    assert load_tasks("bundled:math_chat", dataclasses.replace(MATH, bundled=None)).tasks == own
    said = refusal("bundled:../errands", MATH)
    assert said.startswith("there are no bundled tasks 'bundled:../errands'; known are abg_coqa, ")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert "was not written by datasets' save_to_disk; name a file in it instead" in refusal(tmp_path)


# ---------------------------------------------------------------- records

GOOD: dict[str, Any] = {
    "opening": "Write a name tag for the new cook.", "fact": "Iris", "told": "The name is Iris.", "lacking": True
}  # fmt: skip


def errands_file(tmp_path: Path, *records: dict[str, Any]) -> Path:
    path = tmp_path / "errands.jsonl"
    path.write_text(lines(list(records)))
    return path


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (GOOD | {"fact": " "}, "field 'fact' must be a text that is not empty"),
        (GOOD | {"lacking": "yes"}, "field 'lacking' must be true or false"),
        (GOOD | {"id": "one"}, "task id 'one' stands twice"),
    ],
)
def test_a_bad_record_is_refused_or_skipped_and_reported(tmp_path: Path, record: dict[str, Any], said: str) -> None:
    path = errands_file(tmp_path, GOOD | {"id": "one"}, record, GOOD | {"id": "three"})
    assert refusal(path, ERRAND) == f"{path}, line 2: {said}; mend it or set on_bad_record=skip"
    loaded = load_tasks(str(path), ERRAND, on_bad_record="skip")
    assert [task.id for task in loaded.tasks] == ["one", "three"]
    assert loaded.skipped == [f"{path}, line 2: {said}"]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"question": "3?", "answer": "three"}, "the answer has no final result"),
        ({"question": "3?", "answer": "#### "}, "the answer has no final result"),
        ({"question": "3?", "answer": 3}, "field 'answer' must be a text"),
        ({"question": "", "answer": "#### 3"}, "field 'question' must be a text that is not empty"),
        ({"question": None, "answer": "#### 3"}, "field 'question' must be a text that is not empty"),
        (
            {"query": "3?", "answer": "#### 3"},
            "needs a column 'question' (GSM8K) or 'problem' (MATH); the record has answer, query",
        ),
        ({}, "needs a column 'question' (GSM8K) or 'problem' (MATH); the record has no column"),
    ],
)
def test_a_bad_mathematics_record_is_refused(tmp_path: Path, record: dict[str, Any], said: str) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text(lines([SUMS[0], record]))
    assert f"sums.jsonl, line 2: {said}" in refusal(path)


def test_a_record_without_a_column_is_bad_and_a_file_without_it_is_refused(tmp_path: Path) -> None:
    lacking = {key: value for key, value in GOOD.items() if key != "told"}
    complaint = "environment errands needs column 'told'; the record has fact, lacking, opening"
    for records in ((lacking,), (lacking, lacking)):
        assert f"line 1: {complaint}" in refusal(errands_file(tmp_path, *records), ERRAND, on_bad_record="skip")
    path = errands_file(tmp_path, lacking, GOOD)
    assert f"line 1: {complaint}; mend it or set on_bad_record=skip" in refusal(path, ERRAND)
    loaded = load_tasks(str(path), ERRAND, on_bad_record="skip")
    assert len(loaded.tasks) == 1 and [complaint in problem for problem in loaded.skipped] == [True]


def test_when_every_record_is_skipped_the_first_reason_is_told(tmp_path: Path) -> None:
    said = refusal(errands_file(tmp_path, GOOD | {"fact": ""}, GOOD | {"fact": ""}), ERRAND, on_bad_record="skip")
    assert "has no task of split 'train'; 2 record(s) were skipped, the first: " in said
    assert "line 1: field 'fact'" in said


def too_long(record: Mapping[str, Any], default_id: str) -> Task:
    if len(record["fact"]) > 3:
        raise Unsuitable(f"facts of {len(record['fact'])} letters are too long")
    return ERRAND.task_from_record(record, default_id)


def test_unsuitable_records_are_passed_over_and_counted_whatever_happens_to_bad_ones(tmp_path: Path) -> None:
    short = dataclasses.replace(ERRAND, task_from_record=too_long)
    path = errands_file(
        tmp_path, GOOD | {"fact": "long"}, GOOD | {"fact": "six"}, GOOD | {"fact": "more"}, GOOD | {"fact": "ten"}
    )
    loaded = load_tasks(str(path), short, limit=2)
    assert (len(loaded.tasks), loaded.skipped, loaded.unsuitable) == (2, [], {"facts of 4 letters are too long": 2})
    said = refusal(errands_file(tmp_path, GOOD | {"fact": "long"}, GOOD | {"fact": "longer"}), short)
    assert "2 record(s) do not suit errands as its options are, 1 of them: facts of 4 letters are too long" in said


def test_a_limit_counts_good_records(tmp_path: Path) -> None:
    path = errands_file(tmp_path, GOOD | {"fact": ""}, GOOD, GOOD, GOOD)
    loaded = load_tasks(str(path), ERRAND, limit=2, on_bad_record="skip")
    assert (len(loaded.tasks), len(loaded.skipped)) == (2, 1)
    assert len(load_tasks(str(path), ERRAND, limit=99, on_bad_record="skip").tasks) == 3


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    assert f"limit is {limit}; it must be at least 1" in refusal("bundled", ERRAND, limit=limit)


def test_records_of_another_split_are_left_out(tmp_path: Path) -> None:
    path = errands_file(tmp_path, GOOD | {"split": "test"}, GOOD | {"split": "train"}, GOOD)
    assert len(load_tasks(str(path), ERRAND, split="train").tasks) == 2
    assert len(load_tasks(str(path), ERRAND, split="test").tasks) == 2
    assert "has no task of split 'dev'" in refusal(errands_file(tmp_path, GOOD | {"split": "test"}), ERRAND, split="dev")


# ---------------------------------------------------------------- what is bundled, and what is real


@pytest.mark.parametrize(("split", "count"), [("train", 120), ("test", 48)])
def test_the_bundled_errands_are_what_the_generator_gives(split: str, count: int) -> None:
    tasks = load_tasks("bundled", ERRAND, split=split).tasks
    assert list(tasks) == [ERRAND.task_from_record(record, "") for record in generate(split, count, seed=0)]
    assert len({task.opening for task in tasks}) > count // 2


def test_held_out_errands_share_no_subject_with_those_trained_on() -> None:
    def found(split: str) -> set[tuple[str, str]]:
        subjects = {(errand.kind, subject) for errand in ERRANDS for subject in (*errand.train_subjects, *errand.test_subjects)}
        return {
            (kind, subject)
            for task in load_tasks("bundled", ERRAND, split=split).tasks
            for kind, subject in subjects
            if kind == task.metadata["kind"] and f" {subject}" in task.goal
        }

    train, test = found("train"), found("test")
    assert train and test
    assert not train & test
    assert {kind for kind, _ in train} == {kind for kind, _ in test} == {errand.kind for errand in ERRANDS}


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_share_of_the_errands_needs_no_question_and_says_the_fact(split: str) -> None:
    tasks = load_tasks("bundled", ERRAND, split=split).tasks
    lacking = [bool(task.metadata["lacking"]) for task in tasks]
    assert 0.35 < sum(lacking) / len(lacking) < 0.65
    for task, lacks in zip(tasks, lacking, strict=True):
        assert task.opening is not None and task.reference is not None
        assert (task.reference in task.opening) != lacks
        assert task.reference in task.goal


def test_other_errands_can_be_generated() -> None:
    assert [record["goal"] for record in generate("train", 30, seed=1)] != [record["goal"] for record in generate("train", 30, 0)]
    assert sum(record["lacking"] for record in generate("test", 30, 0, share_lacking=1.0)) == 30


def test_real_gsm8k_records_load(collab_data: Path) -> None:
    loaded = load_tasks(str(collab_data / "gsm8k" / "test.jsonl"), MATH, split="test")
    assert len(loaded.tasks) == 1319
    assert loaded.tasks[0].reference == "18"
    assert all(task.reference and "####" not in task.reference for task in loaded.tasks)


# ---------------------------------------------------------------- the Hub, through a mirror

LOAD_SEVERAL = """
import json, sys
from collab.environments.registry import load_domain
from collab.environments.loading import load_tasks
from collab.tasks.task import Task
from simulators.errors import ConfigurationError

for source, split in json.loads(sys.argv[1]):
    try:
        said = [task.reference for task in load_tasks(source, load_domain("math_chat"), split=split).tasks]
    except ConfigurationError as error:
        said = str(error)
    print("SAID " + json.dumps(said))
"""


def readme(*configurations: str) -> bytes:
    entries = [
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/train.jsonl\n" for name in configurations
    ]
    return ("---\nconfigs:\n" + "".join(entries) + "---\n").encode()


def test_a_hub_id_is_loaded_from_the_hub(tmp_path: Path) -> None:
    files = {f"{name}/train.jsonl": lines(SUMS[start:]).encode() for name, start in (("main", 0), ("hard", 3))}
    datasets = {
        "acme/sums": {"README.md": readme("main", "hard"), **files},
        "acme/many": {"README.md": readme("easy", "hard"), "easy/train.jsonl": b"{}", "hard/train.jsonl": b"{}"},
        "acme/one": {"train.jsonl": lines(SUMS[:2]).encode()},
    }
    asked = [
        ("acme/sums", "train"), ("acme/sums:hard", "train"), ("acme/one", "train"), ("acme/sums", "dev"),
        ("acme/sums:medium", "train"), ("acme/many", "train"), ("acme/nothing", "train"),
    ]  # fmt: skip
    with HubMirror(datasets) as mirror:
        environment = {**os.environ, "HF_ENDPOINT": mirror.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_TELEMETRY": "1"}
        environment.pop("HF_HUB_OFFLINE", None)
        done = subprocess.run(
            [sys.executable, "-c", LOAD_SEVERAL, json.dumps(asked)],
            env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    said = [json.loads(line.removeprefix("SAID ")) for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert len(said) == len(asked), done.stderr
    assert said[:3] == [["4", "5", "6", "7", "8"], ["7", "8"], ["4", "5"]]
    assert said[3].startswith("cannot load split 'dev' of dataset acme/sums from the Hub: ")
    assert said[4].startswith("cannot load split 'train' of dataset acme/sums from the Hub: ")
    assert "medium" in said[4]
    assert said[5] == "dataset acme/many has several configurations; use tasks=acme/many:NAME with one of easy, hard"
    assert said[6].startswith("cannot load split 'train' of dataset acme/nothing from the Hub: ")
    assert said[6].endswith("; check the id, the network and the login")
    assert any(path.endswith("main/train.jsonl") for _, path in mirror.requests)
