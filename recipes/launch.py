"""How a recipe starts: Hydra composes and checks the configuration, the run folder is prepared, errors become one sentence.

Every recipe goes through `launch`. A misspelled key, an unknown choice or a wrong type is refused before anything is loaded, and
the nearest key is named.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recipes import overrides
from simulators.errors import CollabError, ConfigurationError

Main = Callable[[Any], object]

# Started as a file (`accelerate launch recipes/grpo.py`) Python looks here first and takes recipes/datasets.py for the library.
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != Path(__file__).resolve().parent]


def launch(config_name: str, main: Main, arguments: Sequence[str] | None = None) -> None:
    """Run `main(config)` with the configuration `config_name` of `conf/` under Hydra; exit with 2 on a bad configuration.

    Takes Hydra's own flags too: `--cfg job` prints the resolved configuration, `--multirun` starts shards with a launcher.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _quiet_libraries()
    try:
        overrides.check(config_name, arguments)
    except ConfigurationError as error:
        fail(str(error), status=2)

    import hydra

    def guarded(config: Any) -> None:
        run_guarded(lambda: main(overrides.complete(config)))

    sys.argv = [f"collab-{config_name}", *overrides.as_entries(arguments)]
    hydra.main(version_base="1.3", config_path=str(overrides.conf_dir()), config_name=config_name)(guarded)()


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
