"""The reference: made from the source alone, and nothing public is missing from it."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

SCRIPT = REPOSITORY / "docs" / "reference.py"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages by name, written by a Python without site-packages: whatever imports torch, or us, would fail."""
    folder = tmp_path_factory.mktemp("reference")
    subprocess.run([sys.executable, "-I", "-S", str(SCRIPT), str(folder)], check=True, capture_output=True, timeout=60)
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_every_module_and_every_public_definition_has_its_place(pages: dict[str, str]) -> None:
    text = "\n".join(pages.values())
    count = 0
    for package in ("simulators", "collab", "recipes"):
        for path in (REPOSITORY / package).rglob("*.py"):
            module = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
            assert f"# {module}\n" in text
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                    assert f"### {node.name}\n" in text, f"{module}.{node.name}"
                    count += 1
    assert count > 500


def test_signature_and_docstring_are_those_of_the_source(pages: dict[str, str]) -> None:
    section = pages["collab.md"].partition("### MultiturnReward\n")[2]
    assert section.startswith(
        "\n```python\n@dataclass(frozen=True, slots=True)\nclass MultiturnReward:\n    environment: Environment\n"
    )
    assert "Paper defaults (Table 6): `window_turns` 2 and `num_samples` 3." in section
    assert "- ValueError: for a negative window or fewer than one sample." in section
    assert "#### MultiturnReward.estimate\n" in section
    assert "async def estimate(self, conversation: Conversation, task: Task, candidate_index: int=0) -> MREstimate" in section
    assert "_future_record" not in pages["collab.md"]


def test_the_index_leads_to_what_the_packages_export(pages: dict[str, str]) -> None:
    index = pages["README.md"]
    for package in ("simulators", "collab"):
        for name in importlib.import_module(package).__all__:
            (target,) = re.findall(rf"^\| `{package}\.{name}` \| \[[\w.]+\]\(([\w.]+)#", index, re.MULTILINE)
            assert f"### {name}\n" in pages[target] or name == "Conversation"  # a type alias, which has no docstring
    for target in re.findall(r"\]\(([\w.]+\.md)", index):
        assert target in pages


def test_pages_of_an_earlier_run_do_not_stay(tmp_path: Path) -> None:
    (tmp_path / "collab.gone.md").write_text("# collab.gone\n")
    subprocess.run([sys.executable, "-I", "-S", str(SCRIPT), str(tmp_path)], check=True, capture_output=True, timeout=60)
    assert not (tmp_path / "collab.gone.md").exists()
    assert (tmp_path / "collab.md").is_file()
