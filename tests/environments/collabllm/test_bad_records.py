"""Records that are no task of a domain, by its loader: reported with file and line, refused or skipped as set, never silently."""

import json
from pathlib import Path
from typing import Any

import pytest

from collab.environments.loading import load_tasks
from collab.environments.registry import load_domain
from simulators.errors import ConfigurationError
from tests.environments.collabllm.test_abg_coqa import RECORD as QUESTION
from tests.environments.collabllm.test_code_chat import HUMANEVAL
from tests.environments.collabllm.test_doc_edit import RECORD as ARTICLE

GOOD: dict[str, dict[str, Any]] = {
    "math_chat": {"id": "sum", "question": "How many?", "answer": "#### 4"},
    "code_chat": HUMANEVAL,
    "doc_edit": ARTICLE,
    "abg_coqa": QUESTION,
}
ID = {"code_chat": "task_id"}

# domain, what is changed, what is said; None takes the field out
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("math_chat", {"question": ""}, "field 'question' must be a text that is not empty"),
    ("math_chat", {"question": 3}, "field 'question' must be a text"),
    ("math_chat", {"answer": "four"}, "the answer has no final result"),
    ("math_chat", {"question": "long " * 100_000}, "characters; at most 8,000 are taken"),
    ("code_chat", {"prompt": ""}, "field 'prompt' must be a text that is not empty"),
    ("code_chat", {"test": {"a": 1}}, "field 'test' must be a text"),
    ("doc_edit", {"text": "  \n"}, "field 'text' must be a text that is not empty"),
    ("doc_edit", {"text": "word " * 100_000}, "field 'text' has 500,000 characters; at most 60,000 are taken"),
    ("abg_coqa", {"story": ""}, "field 'story' must be a text that is not empty"),
    ("abg_coqa", {"target_turn": []}, "field 'target_turn' must be an object"),
]


def write(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("name", "change", "said"), BAD)
def test_a_bad_record_is_refused_or_skipped_with_file_and_line(
    tmp_path: Path, name: str, change: dict[str, Any], said: str
) -> None:
    domain, key = load_domain(name), ID.get(name, "id")
    records = [GOOD[name] | {key: "one"}, GOOD[name] | {key: "two"} | change, GOOD[name] | {key: "three"}]
    source = write(tmp_path / "records.jsonl", records)
    with pytest.raises(ConfigurationError) as caught:
        load_tasks(source, domain)
    assert str(caught.value).startswith(f"{source}, line 2: ")
    assert said in str(caught.value)
    assert str(caught.value).endswith("; mend it or set on_bad_record=skip")
    loaded = load_tasks(source, domain, on_bad_record="skip")
    assert [task.id for task in loaded.tasks] == ["one", "three"]
    (problem,) = loaded.skipped
    assert problem.startswith(f"{source}, line 2: ") and said in problem


@pytest.mark.parametrize("name", sorted(GOOD))
def test_two_tasks_with_one_id_are_a_bad_record(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "records.jsonl", [GOOD[name], GOOD[name]])
    with pytest.raises(ConfigurationError, match=r"line 2: task id '.*' stands twice"):
        load_tasks(source, load_domain(name))
    loaded = load_tasks(source, load_domain(name), on_bad_record="skip")
    assert (len(loaded.tasks), len(loaded.skipped)) == (1, 1)


@pytest.mark.parametrize(("name", "column"), [("code_chat", "test"), ("doc_edit", "text"), ("abg_coqa", "story")])
def test_a_missing_goal_column_is_always_refused(tmp_path: Path, name: str, column: str) -> None:
    record = {key: value for key, value in GOOD[name].items() if key != column}
    source = write(tmp_path / "records.jsonl", [record])
    with pytest.raises(ConfigurationError, match=rf"line 1: environment {name} needs column '{column}'"):
        load_tasks(source, load_domain(name), on_bad_record="skip")
