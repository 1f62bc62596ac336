"""trees.jsonl of an online run: every conversation of every rollout, with its tokens and the credit that its turns were given.

One tree a start and rollout holds the conversations of its group side by side (or the one whose every turn was branched, with the
futures of its replies), so `collab view` shows a training run as it shows a build. Rank 0 writes trees.jsonl, the others
trees-1.jsonl, trees-2.jsonl, ...: no rank waits for another's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collab.mr import moved_estimate
from collab.training.credit import Advantages
from collab.training.episode import Episode
from simulators.conversation import ConversationTree
from simulators.tree_file import TreeFile


class RolloutTrees:
    """Writes what a rank has played, once its credit is known. A resumed run finds what it had written and leaves it."""

    def __init__(self, folder: Path, rank: int, method: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = TreeFile(folder / ("trees.jsonl" if rank == 0 else f"trees-{rank}.jsonl"))
        self._method = method

    def write(self, step: int, mode: str, episodes: Sequence[Episode], advantages: Advantages) -> None:
        """Store a rollout's trees.

        Raises:
            StorageError: when the disk refuses.
        """
        starts: dict[str, list[Episode]] = {}
        for episode, credit in zip(episodes, advantages, strict=True):
            if episode.start_id:  # padding has none
                episode.note_credit(credit)
                starts.setdefault(episode.start_id, []).append(episode)
        for start_id, rows in starts.items():
            tree = self._tree(f"{mode}{step}|{start_id}", rows)
            tree.metadata |= {"method": self._method, "mode": mode, "step": step, "start": start_id}
            if tree.task_id not in self._file:
                self._file.append(tree)

    def _tree(self, name: str, rows: Sequence[Episode]) -> ConversationTree:
        """Return the trees of a start's rows as one."""
        tree = ConversationTree(name, dict(rows[0].tree.metadata))
        for own in {id(row.tree): row.tree for row in rows}.values():
            first = tree.adopt(own)
            for node in tree.nodes[first:]:
                if "mr" in node.annotations:
                    node.annotations = {**node.annotations, "mr": moved_estimate(node.annotations["mr"], first)}
        if failed := [{**row.to_record(), "leaf": None} for row in rows if row.failed is not None]:
            tree.metadata["failed"] = failed
        return tree

    def close(self) -> None:
        """Close the file."""
        self._file.close()


COLUMNS = ("step", "mode", "start", "sample", "turn", "outcome", "reward", "worths", "advantages", "components", "conversation")


def log_table(step: int, mode: str, episodes: Sequence[Episode], advantages: Advantages, limit: int) -> None:
    """Show a few conversations of a rollout, spread over its starts, in wandb, where a run is open there."""
    import wandb

    if wandb.run is None or limit < 1:
        return
    rows = [row for row in zip(episodes, advantages, strict=True) if row[0].start_id]
    data = [_row(step, mode, *row) for row in rows[:: max(1, len(rows) // limit)][:limit]]
    wandb.log({"conversations": wandb.Table(columns=list(COLUMNS), data=data)}, commit=False)


def _row(step: int, mode: str, episode: Episode, advantages: list[float] | None) -> list[Any]:
    plain = [step, mode, episode.start_id, episode.sample, episode.turn, episode.outcome.value, episode.reward]
    said = [message.to_record() for message in episode.conversation]
    return [*plain, *(json.dumps(each) for each in (episode.worths, advantages, episode.components, said))]
