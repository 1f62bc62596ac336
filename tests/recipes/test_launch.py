"""How recipes start: as a command, and as a file under `accelerate launch`."""

import subprocess
import sys

from tests.conftest import REPOSITORY


def test_a_recipe_started_as_a_file_finds_the_library_and_not_its_neighbour() -> None:
    assert (REPOSITORY / "recipes" / "evaluate.py").is_file()  # else there is nothing to mistake
    as_a_file = "import sys; sys.path.insert(0, 'recipes'); import recipes.configuration.launch; import importlib.util as util; "
    code = f"{as_a_file}print([entry for entry in sys.path if entry.endswith('recipes') and entry != '{REPOSITORY}'])"
    found = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
