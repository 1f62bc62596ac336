"""Kill -9 at any point and start the same command again: the same dataset, and no finished call made twice.

The server kills its client in the middle of a given request, so the point is exact and nothing waits.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import REPOSITORY
from tests.recipes.conftest import Collab
from tests.recipes.test_build import DATASET, SMALL, dataset_bytes, different, lines_of
from tests.simulators.fault_server import Body, FaultServer

KILLED = -signal.SIGKILL
CALLS = 240
"""What the build below takes: 10 tasks, 2 turns, 4 candidates with 2 futures each."""


class Processes:
    """Runs `collab` in a process of its own, which the server kills when that process has sent so many requests."""

    def __init__(self, server: FaultServer, folder: Path, first: list[str]) -> None:
        self._server = server
        self._folder = folder
        self._forking = subprocess.Popen(
            [sys.executable, "-m", "tests.recipes.warm_process", json.dumps(first)],
            cwd=folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._forking.stdout is not None
        assert any(line == "ready\n" for line in self._forking.stdout)

    def run(self, command: list[str], kill_at: int | None = None, signal_: signal.Signals = signal.SIGKILL) -> int:
        """Return the exit status."""
        assert self._forking.stdin is not None and self._forking.stdout is not None
        before, running = len(self._server.requests), threading.Event()
        process = 0

        def plan(number: int, body: Body) -> None:
            if kill_at is not None and number - before == kill_at:
                running.wait()
                os.kill(process, signal_)

        self._server.plan = plan
        self._forking.stdin.write(json.dumps(command) + "\n")
        self._forking.stdin.flush()
        process = int(self._forking.stdout.readline())
        running.set()
        status = int(self._forking.stdout.readline())
        seen = -1
        while seen != len(self._server.requests):  # what it had sent still arrives
            seen = len(self._server.requests)
            time.sleep(0.05)
        return status

    def output(self) -> tuple[str, str]:
        """Return what the last one wrote to stdout and stderr."""
        return (self._folder / "out.txt").read_text(), (self._folder / "err.txt").read_text()

    def close(self) -> None:
        assert self._forking.stdin is not None and self._forking.stdout is not None
        self._forking.stdin.close()
        self._forking.wait(timeout=30)
        self._forking.stdout.close()


@pytest.fixture
def processes(chat_server: FaultServer, tmp_path: Path, problems: Path) -> Iterator[Processes]:
    scripted = ["policy=scripted", "limit=1", f"output_dir={tmp_path}/first"]
    made = Processes(chat_server, tmp_path, ["build", *SMALL, f"tasks={problems}", *scripted])
    yield made
    made.close()


def test_what_is_killed_goes_on_where_it_was(
    processes: Processes, collab: Collab, served: list[str], chat_server: FaultServer, problems: Path, tmp_path: Path
) -> None:
    build = ["build", *SMALL, f"tasks={problems}", "limit=10", "max_open_tasks=3", *served]
    check_build(build, processes, chat_server, tmp_path / "outputs" / "build" / "math_chat")
    evaluate = ["evaluate", "environment=math_chat", f"tasks={problems}", "limit=4", "runs=2", "max_open_tasks=2", *served]
    calls = check_evaluation(evaluate, processes, chat_server, tmp_path / "outputs" / "evaluate" / "math_chat")
    table, _ = processes.output()

    assert processes.run([*build, "output_dir=interrupted"], 30, signal.SIGINT) == 130
    assert processes.output()[1].endswith("interrupted; start the same command again to go on\n")

    (tmp_path / "never killed").mkdir()
    os.chdir(tmp_path / "never killed")
    assert collab(*build).status == 0
    killed, whole = (folder / "outputs" / "build" / "math_chat" for folder in (tmp_path, Path()))
    assert dataset_bytes(killed) == dataset_bytes(whole)
    asked = len(chat_server.requests)
    ended = collab(*evaluate)
    assert different(chat_server.requests[asked:]) == calls
    assert without_time(ended.out) == without_time(table)  # to the last digit
    assert conversations(Path("outputs/evaluate/math_chat")) == conversations(tmp_path / "outputs" / "evaluate" / "math_chat")


def without_time(table: str) -> list[str]:
    return [line for line in table.splitlines() if not line.startswith("│ seconds")]


def conversations(run: Path) -> list[dict[str, object]]:
    """The rows of an evaluation, without the seconds that its calls took."""
    rows = pq.read_table(run / "conversations.parquet").to_pylist()
    assert len(rows) == 16
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def check_build(command: list[str], processes: Processes, server: FaultServer, run: Path) -> None:
    """Kill a build at its first request, between turns, and when some tasks are finished; then let it end."""
    for kill_at in (0, 1, 40, 100):
        assert processes.run(command, kill_at) == KILLED
        assert not (run / "dataset").exists()
    recorded, asked = lines_of(run / "journal.jsonl") - 1, len(server.requests)
    assert recorded > 60
    status = processes.run(command)
    out, err = processes.output()
    assert status == 0, err
    assert lines_of(run / "trees.jsonl") == 11
    assert different(server.requests[asked:]) == CALLS - recorded  # not one of the recorded calls is made again
    assert f"model calls: {CALLS - recorded} made, " in out
    assert {path.name for path in (run / "dataset").iterdir()} == set(DATASET)


def check_evaluation(command: list[str], processes: Processes, server: FaultServer, run: Path) -> int:
    """Kill an evaluation at its first request, and twice more, and let it end; return how many different calls it takes."""
    for kill_at in (0, 20, 15):
        assert processes.run(command, kill_at) == KILLED
    recorded, asked = lines_of(run / "journal.jsonl") - 1, len(server.requests)
    assert recorded > 20
    status = processes.run(command)
    assert status == 0, processes.output()
    assert all(lines_of(run / name / "trees.jsonl") == 5 for name in ("base", "proactive"))
    return recorded + different(server.requests[asked:])
