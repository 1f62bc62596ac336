"""Building a dataset with canned replies, journal on, through the recipe: `make bench-building`.

500 tasks of MATH-Chat, 4 candidates a turn, 3 futures of 2 turns, datasets written: everything that `collab build` does but the
model. Once with the user made of rules (the policy makes the calls) and once with a role-play user and a judge, whose prompts are
long. Each run is a process of its own; 100 tasks beside 500 show what memory does. Last, the same command again: everything is
there already. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROLE_PLAY = (
    "user=role_play",
    "user.backend=scripted",
    "user.model=recipes.dry_run:reply",
    "judge=llm",
    "judge.backend=scripted",
    "judge.model=recipes.dry_run:reply",
)


def write_tasks(path: Path, count: int) -> None:
    """Write arithmetic problems of three sentences and a question."""
    records = []
    for number in range(count):
        boxes, each, gone = 3 + number % 17, 4 + number % 23, 1 + number % 5
        question = (
            f"A shop in street {number} has {boxes} boxes of pens. Every box holds {each} pens. On Monday it sells {gone} pens. "
            "How many pens are left?"
        )
        records.append({"id": f"pens-{number:05d}", "question": question, "answer": f"#### {boxes * each - gone}"})
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def measure(overrides: list[str]) -> dict[str, float]:
    """Build in this process; return model calls, seconds and peak memory in MB, and what the imports alone take."""
    from hydra import initialize_config_dir

    from recipes import build
    from recipes.configuration.choices import conf_dir, register
    from recipes.configuration.overrides import stage_configuration
    from recipes.configuration.schema import Build

    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        config = stage_configuration(Build, overrides)
    before_mb = peak_mb()
    started, cpu = time.perf_counter(), time.process_time()
    build.run(config)
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    entry = json.loads((Path(config.output_dir) / "metrics.jsonl").read_text().splitlines()[-1])
    calls = sum(counts["made"] for counts in entry["calls"].values())
    return {"calls": calls, "wall_s": wall_s, "cpu_s": cpu_s, "rss_mb": peak_mb(), "imports_mb": before_mb}


def peak_mb() -> float:
    """Peak memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_own_process(overrides: list[str]) -> dict[str, float]:
    """Do what `measure` does in a process that does nothing else."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.building", "--child", json.dumps(overrides)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        sys.exit(f"the build failed: {done.stderr.strip()[-500:]}")
    row: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def show(name: str, row: dict[str, float]) -> None:
    """Print one measurement."""
    rate = f"{row['calls'] / row['wall_s']:.0f} calls/s" if row["calls"] else "no call"
    per_cpu = f"{row['calls'] / row['cpu_s']:.0f} calls/CPU s" if row["calls"] else f"{row['cpu_s']:.1f} CPU s"
    print(f"{name:>28}: {row['calls']:.0f} calls, {row['wall_s']:.1f} s, {rate}, {per_cpu}, {row['rss_mb']:.0f} MB", flush=True)


def main() -> None:
    """Measure everything and print the figures, JSON last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(json.loads(arguments.child))))
        return
    few = max(1, arguments.tasks // 5)
    with tempfile.TemporaryDirectory() as folder:
        tasks = Path(folder) / "tasks.jsonl"
        write_tasks(tasks, arguments.tasks)

        def build(name: str, *more: str) -> dict[str, float]:
            common = ["environment=math_chat", "policy=scripted", f"tasks={tasks}", f"output_dir={folder}/{name}"]
            return in_own_process([*common, *more])

        rows: dict[str, Any] = {
            "few": build("few", f"limit={few}"),
            "rules": build("rules"),
            "again": build("rules"),
            "role play and judge": build("role_play", *ROLE_PLAY),
        }
    show(f"user of rules, {few} tasks", rows["few"])
    show(f"user of rules, {arguments.tasks} tasks", rows["rules"])
    show("the same again", rows["again"])
    show("role-play user and judge", rows["role play and judge"])
    assert rows["again"]["calls"] == 0
    growth = rows["rules"]["rss_mb"] - rows["few"]["rss_mb"]
    figures = {
        "calls_per_s": rows["rules"]["calls"] / rows["rules"]["wall_s"],
        "calls_per_cpu_s": rows["rules"]["calls"] / rows["rules"]["cpu_s"],
        "calls_per_s_role_play": rows["role play and judge"]["calls"] / rows["role play and judge"]["wall_s"],
        "rss_mb": rows["rules"]["rss_mb"],
        "rss_growth_mb": growth,
        "bytes_per_call": growth * 2**20 / (rows["rules"]["calls"] - rows["few"]["calls"]),
        "resume_s": rows["again"]["wall_s"],
    }
    print(json.dumps({key: round(value, 1) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
