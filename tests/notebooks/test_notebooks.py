"""The notebooks: stripped of outputs, every cell parses, and (slowly) each runs top to bottom and shows what its text says."""

import ast
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
MR, BUILD, GRPO = "mr_step_by_step", "build_a_dataset", "grpo_on_evolving_intent"


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_the_notebooks_are_there() -> None:
    assert {path.stem for path in NOTEBOOKS} == {MR, BUILD, GRPO}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_small_and_without_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert path.stat().st_size < 50_000
    for cell in notebook.cells:
        assert not cell.metadata
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert notebook.metadata.keys() <= {"kernelspec", "language_info"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_code_cell_parses_and_is_introduced_by_text(path: Path) -> None:
    cells = read(path).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    for cell in cells:
        if cell.cell_type == "code":
            compile(cell.source, f"{path.name}:{cell.id}", "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert sum(cell.cell_type == "markdown" for cell in cells) >= 6


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (path.parent / target).is_file(), target
    for name in re.findall(r"`((?:collab|simulators|docs|conf)/[\w./]+)`", text):
        assert (REPOSITORY / name).exists(), name


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a notebook in an empty folder, with one OpenMP thread; returns what its cells printed, in order."""
    from nbclient import NotebookClient

    from collab.embedded_model import fetch_embedded_model
    from simulators.errors import ConfigurationError

    try:
        fetch_embedded_model()
    except ConfigurationError as error:
        pytest.skip(str(error))
    for name, value in {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    # The kernel of this environment, whatever else is installed for the user.
    kernels = tmp_path / "jupyter" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    (kernels / "kernel.json").write_text(
        f'{{"argv": ["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"], '
        '"display_name": "Python 3", "language": "python"}'
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    here = tmp_path / "work"
    here.mkdir()

    def run(name: str) -> tuple[str, Path]:
        notebook = read(REPOSITORY / "notebooks" / f"{name}.ipynb")
        client = NotebookClient(notebook, timeout=1200, kernel_name="python3", resources={"metadata": {"path": str(here)}})
        client.execute()
        return "\n".join(_printed(cell) for cell in notebook.cells if cell.cell_type == "code"), here

    return run


def _printed(cell: Mapping[str, Any]) -> str:
    return "".join(output.get("text", "") for output in cell["outputs"] if output.get("name") == "stdout")


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, f"{pattern} not in:\n{text}"
    return float(found[1])


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_an_mr_step_by_step(outputs: Any) -> None:
    text, here = outputs(MR)
    by_hand, estimated = number(r"MR by hand: (\S+)", text), number(r"MR: (\S+)", text)
    assert -1 <= by_hand <= 1 and -1 <= estimated <= 1
    assert "over 3 futures, 0 failed" in text
    assert abs(number(r"asking less guessing: window 0 (\S+),", text)) < 0.15
    assert number(r"asking less guessing: .* window 2 (\S+)", text) > 0.2
    assert (here / "mr_step_by_step" / "viewer.html").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_dataset_is_built(outputs: Any) -> None:
    text, here = outputs(BUILD)
    assert "12 trees with" in text
    assert number(r"(\d+) conversations", text) >= 4
    assert number(r"turns, (\d+) pairs", text) >= 4
    assert "columns: messages, task_id, mr, turns" in text
    assert "columns: prompt, chosen, rejected, task_id" in text
    assert "license: apache-2.0" in text
    assert (here / "build_a_dataset" / "viewer.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_grpo_on_evolving_intent(outputs: Any) -> None:
    text, here = outputs(GRPO)
    assert "16 training tasks, 8 held out, 0 skipped" in text
    assert re.findall(r"^\d\. (\w+)", text, re.MULTILINE) == ["opening", "reveal", "revision", "switch"]
    steps = [float(reward) for reward in re.findall(r"^step \d: reward (\S+),", text, re.MULTILINE)]
    assert len(steps) == 3 and all(-1 <= reward <= 2 for reward in steps)
    assert text.count("'conversations': 8") == 3
    folder = here / "grpo_on_evolving_intent" / "training"
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()
    assert (folder / "conversations.jsonl").is_file()
