"""The configuration that a run left in its folder, read back as what it was.

It may come from anybody. Unless it is trusted nothing in it is run: an interpolation (`${oc.env:...}`, which a run never writes)
is refused here, and code that it names (`module:function`) by whoever looks it up within `built_in_names_only`.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipes.configuration.overrides import typed
from recipes.configuration.schema import SCHEMAS, Recipe
from simulators.errors import ConfigurationError


def stored_configuration(folder: Path, *, trust: bool = False) -> Recipe:
    """Return the configuration of the run in a folder, wherever the folder lies now.

    Raises:
        ConfigurationError: there is none, it is not that of a run of this version, or it holds an interpolation.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigurationError(f"{folder} holds no run: it has no config.yaml; give the output folder of a run")
    try:
        raw = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except Exception:  # whatever YAML and OmegaConf make of a file that is not theirs
        raw = None
    if not isinstance(raw, dict):
        raise ConfigurationError(f"{path} is not the configuration of a run")
    if not trust and "${" in json.dumps(raw, default=str):
        raise ConfigurationError(f"{path} holds an interpolation (${{...}}), which is not resolved unasked; see --trust")
    kind = _kind_of({str(key) for key in raw}, path)
    try:
        config: Any = OmegaConf.merge(OmegaConf.structured(kind), raw, {"output_dir": str(folder)})
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{path}: {str(error).splitlines()[0]}") from None
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise ConfigurationError(f"{path} is not the whole configuration of a run: it has no {missing[0]}")
    return typed(kind, config)


def _kind_of(keys: set[str], path: Path) -> type[Recipe]:
    """Return the schema that has all these keys and the fewest others."""
    known = {kind: {each.name for each in fields(kind)} for kind in SCHEMAS.values()}
    fitting = {kind: names - keys for kind, names in known.items() if keys <= names}
    if not fitting:
        raise ConfigurationError(f"{path} is of no command of this version of collab; use the one that versions.json names")
    return min(fitting, key=lambda kind: len(fitting[kind]))
