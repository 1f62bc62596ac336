"""LoRA adapters on vLLM servers, under a new name for every version.

vLLM knows an adapter by its name: loading other weights under a name it has seen leaves rollouts on the first ones, and prefix
caches may hold their keys and values. So a version's name carries a digest of its weights, the switch happens when every server
has it, and the old one is unloaded when the last call that uses it has ended.

The servers must run with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and see the adapter's folder under the same path.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from pathlib import Path

_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


@dataclass(frozen=True, slots=True)
class Adapter:
    """One version of a LoRA adapter: the name servers know it by, and the folder they load it from (None: loaded by others)."""

    served_name: str
    path: str | None = None


def adapter_version(path: Path) -> str:
    """Return a name for the weights in an adapter's folder: equal for equal weights, so that a resumed run finds its journal.

    A folder that cannot be read from here (it is on the server's machine) gets a new name every time, which is never stale.
    """
    digest = hashlib.sha256()
    found = False
    for name in (*_WEIGHTS, "adapter_config.json"):
        try:
            with (path / name).open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
                found = found or name in _WEIGHTS
        except OSError:
            continue
    return digest.hexdigest()[:16] if found else uuid.uuid4().hex[:16]
