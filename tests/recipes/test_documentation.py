"""The examples of the documentation run as they stand: files, records and commands are taken from the pages."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from collab.environments.registry import load_domain
from recipes.command_line import RECIPES
from simulators.conversation import Message, ToolCall
from simulators.errors import ConfigurationError
from simulators.tools import Toolbox
from simulators.tree_file import read_trees
from tests.conftest import REPOSITORY
from tests.recipes.conftest import Collab

README = "../README.md"


def blocks(language: str, page: str = "own_domain.md") -> list[str]:
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page: str = "own_domain.md") -> list[list[str]]:
    return [shlex.split(line)[1:] for block in blocks("bash", page) for line in block.splitlines()]


def test_the_example_of_the_page_runs(collab: Collab, tmp_path: Path) -> None:
    source, _ = blocks("python")
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


def saved_files(page: str) -> dict[str, str]:
    """The Python files that a page asks the reader to save, by name."""
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    found = re.findall(r"[Ss]ave (?:this|it) as `(\w+\.py)`[^`]*\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return dict(found)


GUIDES = {"own_reward.md": 5, "own_simulator.md": 3, "scaling_out.md": 5}
"""The guides, and how many commands each of them has to be run."""


@pytest.mark.parametrize("page", GUIDES)
def test_the_commands_of_a_guide_run(page: str, collab: Collab, tmp_path: Path) -> None:
    for name, source in saved_files(page).items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    assert len(commands(page)) == GUIDES[page]
    for command in commands(page):
        ended = collab(*command)
        assert ended.status == 0, (command, ended.err)


def test_the_readme_runs_and_names_every_command(collab: Collab) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(commands(README)) == 8
    for command in commands(README):
        ended = collab(*command)
        assert ended.status == 0, (command, ended.err)
    (example,) = blocks("python", README)
    exec(compile(example, "README.md", "exec"), {"__name__": "example"})
    for words in RECIPES:
        assert f"`{' '.join(words)}`" in text or words in (("demo",), ("model", "fetch")), words
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (REPOSITORY / target).is_file(), target


def test_the_make_targets_of_the_readme_are_there() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`(?:make )?((?:bench|test|venv)[\w-]*|demo|docs|report|learn[\w-]*)`", readme)
    assert len(named) >= 8
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


async def test_the_tools_of_the_page_can_be_called() -> None:
    module: dict[str, Any] = {}
    exec(compile("\n".join(blocks("python")), "own_domain.md", "exec"), module)
    box = Toolbox.of(module["make_tools"](None, None))
    place = box.schemas[0]["function"]["parameters"]["properties"]["place"]
    assert place == {"type": "string", "description": "a town or a region"}
    assert await box.call(ToolCall("weather", '{"place": "Oslo", "month": "January"}'), ()) == "cold"
    asked = Message("assistant", "", tool_calls=(ToolCall("weather", "{}"),))
    assert await box.call(ToolCall("calls_so_far"), (asked,)) == "1"


@pytest.mark.parametrize("page", GUIDES)
def test_the_python_examples_of_a_guide_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    saved = saved_files(page).values()
    examples = [source for source in blocks("python", page) if source not in saved]
    assert examples
    for source in examples:
        exec(compile(source, page, "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.strip()


def test_the_reward_of_the_guide_is_measured_and_rewarded_by_its_weight(collab: Collab, tmp_path: Path) -> None:
    (tmp_path / "patient.py").write_text(saved_files("own_reward.md")["patient.py"], encoding="utf-8")
    for weight in (0.2, 0.0):
        name, own = f"outputs/{weight}", f"{{name: patient:few_questions, weight: {weight}}}"
        terms = f"reward.terms=[{{name: accuracy}}, {{name: token_cost}}, {own}]"
        ended = collab("build", "environment=math_chat", terms, "policy=scripted", f"output_dir={name}", "limit=2")
        assert ended.status == 0, ended.err
        tree = next(iter(read_trees(Path(name))))
        assert tree.metadata["reward"]["few_questions"] == weight
        (opening,) = tree.children(None)
        for reply in tree.children(opening.id):
            for future in reply.annotations["mr"]["futures"]:
                parts = future["components"]
                worth = parts["accuracy"] + parts["token_cost"] + weight * parts["few_questions"]
                assert future["reward"] == pytest.approx(worth)


def test_the_user_of_the_guide_leaves_early_and_says_so(collab: Collab, tmp_path: Path) -> None:
    (tmp_path / "hurried.py").write_text(saved_files("own_simulator.md")["hurried.py"], encoding="utf-8")
    options = ["environment=math_chat", "user=hurried:user", "user.options.hurry=1.0", "policy=scripted", "limit=3"]
    assert collab("build", *options, "output_dir=outputs/hurried").status == 0
    flags = [node.annotations.get("flags") for tree in read_trees(Path("outputs/hurried")) for node in tree.nodes]
    assert ["gave_up"] in flags


def test_the_page_lists_options_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = blocks("python")
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
        ("json:decoder", "is not a function or a class"),
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
