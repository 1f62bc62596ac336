"""The journal of finished episodes: a run that is killed in the middle of a rollout starts again with what it had finished.

An episode is written down the moment it is finished, under a key made of everything that decides it: the run's settings, model,
seed and optimization (`fingerprint`), the rollout's name, the start and the sample's index. A resumed run trains up to the same
rollout with the same weights, asks for the same keys, and plays only what is missing. With other settings the keys differ, and a
rollout that training has moved on from is never played differently: an episode of other weights is never taken for one of these.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from collab.training.episode import Episode
from simulators.conversation import ConversationTree
from simulators.record_file import RecordFile

VERSION = 2
"""1 had episodes; now they are rows of a tree."""


class RolloutJournal:
    """The finished episodes of one process; those that other processes left behind in the folder are read as well.

    `reused` counts the episodes that were read back since it was last reset.

    Raises:
        ConfigurationError, StorageError: as `RecordFile` does.
    """

    def __init__(self, folder: Path, rank: int, fingerprint: str) -> None:
        self._path = folder / f"episodes-{rank}.jsonl"
        self._fingerprint = fingerprint
        self._file = RecordFile(self._path, "episodes", VERSION)
        self._finished: dict[str, dict[str, Any]] = {}
        self._failed: list[dict[str, Any]] = []
        self.reused = 0
        for path in sorted(folder.glob("episodes-*.jsonl")):
            if path != self._path and not _has_header(path):
                continue  # another process is only just opening it
            file = self._file if path == self._path else RecordFile(path, "episodes", VERSION, writable=False)
            for _, _, record in file.records():
                self._finished[record["key"]] = record
            if file is not self._file:
                file.close()

    def recall(self, round_name: str, start_id: str, sample: int) -> list[Episode] | None:
        """Return what was finished for one sample of a start, None when nothing was."""
        found = self._finished.get(self._key(round_name, start_id, sample))
        if found is None:
            return None
        self.reused += 1
        tree = ConversationTree.from_record(found["tree"])
        return [Episode.from_record(row, tree) for row in found["rows"]]

    def record(self, round_name: str, start_id: str, sample: int, episodes: list[Episode]) -> None:
        """Write down a finished conversation, all of whose rows are of one tree; it is on its way to the disk when this returns.

        Episodes that failed for reasons outside the policy are written by `move_on`: a run resumed before it tries them again.

        Raises:
            StorageError: when the disk refuses.
        """
        record = {
            "key": self._key(round_name, start_id, sample),
            "tree": episodes[0].tree.to_record(),
            "rows": [episode.to_record() for episode in episodes],
        }
        if any(episode.reward is None for episode in episodes):
            self._failed.append(record)
        else:
            self._file.append(record)

    def move_on(self) -> None:
        """Write down what failed in earlier rollouts, now that training has gone on without it.

        Tried again, it might succeed: that step would come out differently, and what was sampled after it, with the weights it
        gave, would be taken for what other weights sample.

        Raises:
            StorageError: when the disk refuses.
        """
        for record in self._failed:
            self._file.append(record)
        self._failed.clear()

    def forget(self) -> None:
        """Start the file anew: a checkpoint has been saved, and no resumed run will ask for what came before it."""
        self._file.close()
        self._path.unlink(missing_ok=True)
        self._finished.clear()
        self._failed.clear()
        self._file = RecordFile(self._path, "episodes", VERSION)

    def close(self) -> None:
        """Close the file and give up its lock."""
        self._file.close()

    def _key(self, round_name: str, start_id: str, sample: int) -> str:
        parts = json.dumps([self._fingerprint, round_name, start_id, sample])
        return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()


def fingerprint(*parts: Any) -> str:
    """Return a digest of settings and names: equal for equal values, whatever process makes it."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()


def _has_header(path: Path) -> bool:
    with path.open("rb") as stream:
        return b"\n" in stream.read(4096)
