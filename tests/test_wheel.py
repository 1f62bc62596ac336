"""The wheel: everything that the command needs travels in it, and it works outside the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

LOAD_EVERYTHING_BUNDLED = """
import collab, recipes, simulators
from collab.environments.registry import DOMAINS, load_domain
from collab.evaluation.page import asset
from collab.environments.loading import load_tasks
from recipes.configuration.choices import conf_dir

print("FROM", collab.__file__, recipes.__file__, simulators.__file__, conf_dir())
for name in DOMAINS:
    domain = load_domain(name)
    if domain.bundled is not None:
        print("TASKS", name, len(load_tasks("bundled", domain, limit=3).tasks))
print("ASSET", len(asset("report.css")))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed wheel and nothing else; the dependencies come from this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target"]
    subprocess.run([*install, str(folder / "site"), str(wheel)], check=True, capture_output=True, timeout=120)
    return folder / "site"


def run(installed: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *command], cwd=installed.parent, env={**environment, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_packages_and_the_configuration(installed: Path) -> None:
    (wheel,) = installed.parent.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for source in (REPOSITORY / "conf").rglob("*.yaml"):
        assert f"recipes/conf/{source.relative_to(REPOSITORY / 'conf')}" in names
    for package in ("collab", "simulators", "recipes"):
        for source in (REPOSITORY / package).rglob("*.py"):
            assert str(source.relative_to(REPOSITORY)) in names
    assert not [name for name in names if name.startswith(("tests/", "conf/", "outputs/"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_command_works_outside_the_checkout(installed: Path) -> None:
    script = str(installed / "bin" / "collab")
    assert "usage: collab COMMAND" in run(installed, script, "--help")
    assert "environment:\n  name: errands" in run(installed, script, "build", "--cfg", "job")


def test_what_is_bundled_is_found(installed: Path) -> None:
    said = run(installed, "-c", LOAD_EVERYTHING_BUNDLED).splitlines()
    places = said[0].split()[1:]
    assert len(places) == 4
    assert all(place.startswith(str(installed)) for place in places)
    assert "TASKS errands 3" in said
    assert said[-1].startswith("ASSET ")
