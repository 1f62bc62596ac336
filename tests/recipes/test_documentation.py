"""The examples of the documentation run as they stand: files, records and commands are taken from the pages."""

import json
import re
import shlex
from pathlib import Path

import pytest

from collab.environments.registry import load_domain
from simulators.errors import ConfigurationError
from simulators.tree_file import read_trees
from tests.conftest import REPOSITORY
from tests.recipes.conftest import Collab


def blocks(language: str, page: str = "own_domain.md") -> list[str]:
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page: str = "own_domain.md") -> list[list[str]]:
    return [shlex.split(line)[1:] for block in blocks("bash", page) for line in block.splitlines()]


def test_the_example_of_the_page_runs(collab: Collab, tmp_path: Path) -> None:
    (source,) = blocks("python")
    (tmp_path / "packing.py").write_text(source, encoding="utf-8")
    (records,) = blocks("json")
    (tmp_path / "trips.jsonl").write_text(records, encoding="utf-8")
    assert [command[0] for command in commands()] == ["build", "view", "evaluate"]
    for command in commands():
        ended = collab(*command)
        assert ended.status == 0, ended.err
    trees = list(read_trees(Path("outputs/packing")))
    assert sorted(tree.task_id for tree in trees) == ["alps", "crete", "oslo"]
    assert {tuple(tree.metadata["reward"]) for tree in trees} == {("packed", "token_cost")}
    assert len((tmp_path / "outputs" / "packing" / "dataset" / "README.md").read_text()) > 500


def test_the_commands_of_the_page_on_datasets_run(collab: Collab) -> None:
    assert len(commands("datasets.md")) == 7
    for command in commands("datasets.md"):
        ended = collab(*command)
        assert ended.status == 0, (command, ended.err)
    assert len(list(read_trees(Path("outputs/shared")))) == 21
    assert (Path("outputs/math/dataset/sft-train.parquet")).is_file()


def test_the_page_lists_options_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = blocks("python")
    (tmp_path / "packing_options.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_domain("packing_options:domain", {"token_penalty": 0.01}).name == "packing"
    with pytest.raises(ConfigurationError, match=r"option token_penalty is 'a lot'"):
        load_domain("packing_options:domain", {"token_penalty": "a lot"})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:domain", "cannot be loaded: No module named 'no_such_module'"),
        ("json:domain", "cannot be loaded: module 'json' has no attribute 'domain'"),
        ("json:decoder", "is not a function that returns a domain"),
        ("json:JSONEncoder", "is not a domain: its function returned a JSONEncoder"),
        ("packing", "known are abg_coqa, code_chat, doc_edit, errands,"),
    ],
)
def test_a_name_that_leads_to_no_domain_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_domain(name)
    assert said in str(caught.value)


def test_a_module_that_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_domain.py").write_text("def domain(:\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="environment 'broken_domain:domain' cannot be loaded"):
        load_domain("broken_domain:domain")


def test_the_records_of_the_page_are_json_lines() -> None:
    (records,) = blocks("json")
    assert all({"destination", "needed"} <= json.loads(line).keys() for line in records.splitlines())
