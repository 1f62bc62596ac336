"""Scripts for dry runs: those of one's own are found in the current folder, as environments are."""

import sys
from pathlib import Path

import pytest

from recipes.dry_run import scripted_model
from simulators.errors import ConfigurationError
from tests.recipes.conftest import Collab


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)


def test_a_script_in_the_current_folder_is_found(collab: Collab) -> None:
    Path("replies_of_mine.py").write_text("def brief(request, rng):\n    return 'As you wish.'\n")
    ended = collab("build", "policy=scripted", "policy.model=replies_of_mine:brief", "limit=1", "max_turns=1", "output_dir=run")
    assert ended.status == 0, ended.err
    assert "As you wish." in Path("run/trees.jsonl").read_text()


def test_a_script_that_is_no_python_is_refused_in_a_sentence() -> None:
    Path("broken_replies.py").write_text("def brief(:\n")
    with pytest.raises(ConfigurationError, match="script 'broken_replies:brief' cannot be loaded: "):
        scripted_model("broken_replies:brief")


def test_the_script_that_comes_along_puts_nothing_before_the_libraries() -> None:
    before = list(sys.path)
    scripted_model("recipes.dry_run:reply")
    assert sys.path == before
