"""Kill -9 at ten random points of a build with canned replies, and start it again: the same dataset, trees and journal."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulators.journal import Journal
from simulators.tree_file import read_trees
from tests.conftest import REPOSITORY
from tests.recipes.test_shards import dataset

KILLS = 10
BUILD = [
    "build", "environment=math_chat", "policy=scripted", "limit=18", "max_open_tasks=4", "public_columns=true",
    "user=role_play", "user.backend=scripted", "user.model=recipes.dry_run:reply",
]  # fmt: skip


class Builds:
    """Starts builds in processes that have imported everything already, and kills them."""

    def __init__(self, folder: Path) -> None:
        self._forking = subprocess.Popen(
            [sys.executable, "-m", "tests.recipes.forked_builds"],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, output: Path, kill_at_bytes: int | None = None) -> int:
        """Return the exit status; kill the build once its journal has so many bytes."""
        assert self._forking.stdin is not None and self._forking.stdout is not None
        self._forking.stdin.write(json.dumps([*BUILD, f"output_dir={output}"]) + "\n")
        self._forking.stdin.flush()
        process = int(self._forking.stdout.readline())
        journal = output / "journal.jsonl"
        while kill_at_bytes is not None and (not journal.is_file() or journal.stat().st_size < kill_at_bytes):
            time.sleep(0.001)
        if kill_at_bytes is not None:
            os.kill(process, signal.SIGKILL)
        return int(self._forking.stdout.readline())

    def close(self) -> None:
        assert self._forking.stdin is not None and self._forking.stdout is not None
        self._forking.stdin.close()
        self._forking.wait(timeout=30)
        self._forking.stdout.close()


@pytest.fixture
def builds(tmp_path: Path) -> Iterator[Builds]:
    made = Builds(tmp_path)
    yield made
    made.close()


def keys(folder: Path) -> list[bytes]:
    journal = Journal(folder / "journal.jsonl", replay=True)
    found = sorted(journal._where)
    journal.close()
    return found


@pytest.mark.slow
def test_ten_kills_change_nothing(builds: Builds, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert builds.run(whole) == 0, (tmp_path / "err.txt").read_text()
    size = (whole / "journal.jsonl").stat().st_size
    points = sorted(random.Random().sample(range(100, size - 100), KILLS))  # other points every time; they are in the message
    statuses = [builds.run(killed, point) for point in points]
    assert statuses == [-signal.SIGKILL] * KILLS, points
    assert not (killed / "dataset").exists(), points
    assert builds.run(killed) == 0, (points, (tmp_path / "err.txt").read_text())

    assert dataset(killed) == dataset(whole), points
    trees = [{tree.task_id: tree.fingerprint() for tree in read_trees(folder)} for folder in (killed, whole)]
    assert trees[0] == trees[1], points
    assert keys(killed) == keys(whole), points
    lines = [len((folder / "journal.jsonl").read_bytes().splitlines()) for folder in (killed, whole)]
    assert lines[0] == lines[1], points  # no call was made twice
