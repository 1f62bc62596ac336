"""How a recipe starts: Hydra composes and checks the configuration, it becomes a dataclass, errors become one sentence.

Every recipe with a configuration goes through `launch`. A misspelled key, an unknown choice or a wrong type is refused before
anything is loaded, and the nearest key is named.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from recipes.configuration import overrides
from simulators.errors import CollabError, ConfigurationError

Config = TypeVar("Config")

# Started as a file (`accelerate launch recipes/online.py`) Python looks here first and takes recipes/evaluate.py for the library.
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != Path(__file__).resolve().parents[1]]


def launch(kind: type[Config], main: Callable[[Config], object], arguments: Sequence[str] | None = None) -> None:
    """Run `main` with the configuration of a kind (`recipes.configuration.schema`) under Hydra; exit with 2 on a bad one.

    Takes Hydra's own flags too: `--cfg job` prints the resolved configuration, `--multirun` starts shards with a launcher.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _quiet_libraries()
    name = overrides.name_of(kind)
    try:
        overrides.check(name, arguments)
    except ConfigurationError as error:
        fail(str(error), status=2)

    import hydra

    from recipes.configuration.choices import conf_dir

    def guarded(config: Any) -> None:
        run_guarded(lambda: main(overrides.typed(kind, config)))

    sys.argv = [f"collab-{name}", *overrides.as_entries(arguments)]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown) if {"--cfg", "-c"} & set(arguments) else contextlib.nullcontext():
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=name)(guarded)()
    print(shown.getvalue(), end="")  # here a reader may have gone (`| head`), in Hydra it would be a traceback


def run_guarded(action: Callable[[], object]) -> None:
    """Run an action; an error raised on purpose becomes one line on stderr and exit status 1 (interrupted: 130)."""
    try:
        action()
    except CollabError as error:
        fail(str(error))
    except BaseExceptionGroup as group:  # task groups wrap what their first failing task raised
        found, _ = group.split(CollabError)
        if found is None:
            raise
        fail(str(_first(found)))
    except KeyboardInterrupt:
        print("interrupted; start the same command again to go on", file=sys.stderr)
        sys.exit(130)


def fail(message: str, status: int = 1) -> None:
    """Print one line to stderr and exit."""
    print(f"collab: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _quiet_libraries() -> None:
    """Keep libraries' own progress bars and advice out of ours, and tokenizers from forking threads."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)  # between our libraries; not ours to mend
