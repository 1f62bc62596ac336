"""How a recipe starts: Hydra composes and checks the configuration, the run folder is prepared, errors become one sentence.

Every recipe goes through `launch`. A misspelled key, an unknown choice or a wrong type is refused before anything is loaded, and
the nearest key is named.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simulators.errors import CollabError

Main = Callable[[Any], object]


def conf_dir() -> Path:
    """Return the folder of the Hydra tree: beside the package in a checkout, inside it in an installed wheel."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "conf"


def launch(config_name: str, main: Main, arguments: Sequence[str] | None = None) -> None:
    """Run `main(config)` with the configuration `config_name` of `conf/` under Hydra; exit with 2 on a bad configuration.

    Takes Hydra's own flags too: `--cfg job` prints the resolved configuration, `--multirun` starts shards with a launcher.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _quiet_libraries()
    _check(config_name, arguments)

    import hydra

    def guarded(config: Any) -> None:
        run_guarded(lambda: main(config))

    sys.argv = [f"collab-{config_name}", *arguments]
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)(guarded)()


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


def _check(config_name: str, arguments: list[str]) -> None:
    """Compose the configuration once by itself, so that an error can be told in one sentence."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from recipes import schema

    schema.register()
    overrides = [argument for argument in arguments if not argument.startswith("-") and "=" in argument]
    if any(argument in ("--multirun", "-m") for argument in arguments):
        overrides = [override for override in overrides if "," not in override and "range(" not in override]
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
            plain = compose(config_name)
            try:
                compose(config_name, overrides=[override for override in overrides if not override.startswith("hydra")])
            except (HydraException, OmegaConfBaseException) as error:
                fail(_explain(error, overrides, list(_keys(OmegaConf.to_container(plain)))), status=2)
    except (HydraException, OmegaConfBaseException) as error:
        fail(str(error), status=2)


def _explain(error: Exception, overrides: Sequence[str], known: Sequence[str]) -> str:
    """Say what is wrong with the overrides, naming the nearest key or choice."""
    groups = {path.name: sorted(file.stem for file in path.glob("*.yaml")) for path in conf_dir().iterdir() if path.is_dir()}
    for override in overrides:
        key, _, value = override.partition("=")
        key = key.lstrip("+~")
        if key in groups and value not in groups[key]:
            near = difflib.get_close_matches(value, groups[key], n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            return f"unknown {key} {value!r}; {hint}known are {', '.join(groups[key])}"
        if key not in known and key not in groups and not any(key.startswith(f"{prefix}.") for prefix in _OPEN):
            near = difflib.get_close_matches(key, [*known, *groups], n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"unknown configuration key {key!r}{hint}"
    cause = error.__cause__ or error
    reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    at = getattr(cause, "full_key", None)
    return f"{at}: {reason}" if at else reason


_OPEN = ("environment.options", "candidates", "policies", "hydra")
"""Mappings whose keys are the user's own."""


def _keys(node: Any, prefix: str = "") -> list[str]:
    if not isinstance(node, dict):
        return []
    keys = []
    for key, value in node.items():
        keys.append(f"{prefix}{key}")
        keys += _keys(value, f"{prefix}{key}.")
    return keys


def _quiet_libraries() -> None:
    """Keep libraries' own progress bars and advice out of ours, and tokenizers from forking threads."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
