"""Every arrow of the house points down: a package imports only what stands below it."""

import ast
from pathlib import Path

import pytest

from recipes.command_line import RECIPES

ROOT = Path(__file__).parent.parent
FLOORS = [
    {"recipes"},
    {"recipes.running"},
    {"recipes.configuration"},
    {"recipes.dry_run"},
    {"collab.evaluation"},
    {"collab.training", "collab.data"},
    {"collab.candidates"},
    {"collab.mr"},
    {"collab.environments"},
    {"collab.rewards"},
    {"collab.sandbox", "collab.tasks", "collab.embedded_model", "collab.language"},
    {"simulators"},
]
HEIGHTS = {package: len(FLOORS) - level for level, packages in enumerate(FLOORS) for package in packages}


def package_of(module: str) -> str | None:
    parts = module.split(".")
    return next((name for name in (".".join(parts[:2]), parts[0]) if name in HEIGHTS), None)


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {
        f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


@pytest.mark.parametrize("package", sorted(HEIGHTS))
def test_a_package_imports_only_what_stands_below_it(package: str) -> None:
    place = ROOT / package.replace(".", "/")
    rooms = [ROOT / other.replace(".", "/") for other in HEIGHTS if other.startswith(f"{package}.")]
    files = sorted(place.rglob("*.py")) or [place.with_suffix(".py")]
    files = [path for path in files if not any(room in path.parents or path == room.with_suffix(".py") for room in rooms)]
    up = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files
        for module in imported(path)
        if (other := package_of(module)) not in (None, package) and HEIGHTS[other] >= HEIGHTS[package]
    }
    assert not up


def test_every_package_has_a_floor() -> None:
    found = {
        f"collab.{path.stem}" for path in (ROOT / "collab").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found - {"collab.__init__"} == {package for package in HEIGHTS if package.startswith("collab.")}


def test_what_stands_beside_the_commands_is_a_command_or_has_a_floor() -> None:
    found = {
        f"recipes.{path.stem}" for path in (ROOT / "recipes").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    commands = {module for module, _ in RECIPES.values()} | {"recipes.__init__", "recipes.command_line"}
    assert found - commands == {package for package in HEIGHTS if package.startswith("recipes.")}
