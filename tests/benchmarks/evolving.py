"""Conversion of all of GSM8K into evolving-intent conversations by rules: how many, how fast, and the same twice.

    python -m tests.benchmarks.evolving

Test problems are converted with the socratic sub-questions (as the published prototype figures are) and without; train problems
without. The last line is JSON: t4_test_share, t7_test_share, t4_train_share, t7_train_share, seconds, identical. `seconds` is one
run over test and train, with conversion, scheduling, checks and rendering; `identical` compares its bytes with a second run whose
processes hash strings differently.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from collab.environments.domain import BadRecord
from collab.environments.evolving_intent.conversations import evolve
from collab.environments.evolving_intent.conversion import Rejected
from collab.environments.evolving_intent.gsm8k.builder import convert_by_rules, source_task
from collab.environments.evolving_intent.rendering import MATH
from collab.environments.evolving_intent.schedule import Shape

REPOSITORY = Path(__file__).resolve().parent.parent.parent
DATA = Path(os.environ.get("COLLAB_DATA", REPOSITORY.parent / "shared" / "data")) / "gsm8k"
SHAPES = {"t4": Shape(4, 1, 1), "t7": Shape(7, 2, 2)}
FILES = {"test": "test_socratic.jsonl", "train": "train.jsonl"}
CHUNK = 250


def converted(job: tuple[str, int, list[dict[str, Any]]]) -> tuple[bytes, Counter[str]]:
    """Convert one chunk of records; return the bytes of everything made from it, and the counts."""
    name, start, records = job
    counts: Counter[str] = Counter()
    lines = []
    for index, record in enumerate(records, start):
        counts["problems"] += 1
        try:
            conversion = convert_by_rules(source_task(record, f"{name}-{index}"))
        except (Rejected, BadRecord) as rejection:
            counts[f"rejected: {rejection}"] += 1
            continue
        made: dict[str, Any] = {"conversion": conversion.to_record()}
        counts["converted"] += 1
        counts["exact"] += conversion.exact
        informative = sum(argument.informative for argument in conversion.ingredients.arguments)
        for key, shape in SHAPES.items():
            try:
                made[key] = evolve(conversion, shape, MATH).to_record()
            except Rejected:
                continue
            counts[key] += informative >= 2
            counts[f"{key} exact"] += informative >= 2 and conversion.exact
        lines.append(json.dumps(made, ensure_ascii=False, sort_keys=True))
    return "\n".join(lines).encode(), counts


def jobs(name: str, path: Path) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
    """Yield a file's records in chunks."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for start in range(0, len(records), CHUNK):
        yield name, start, records[start : start + CHUNK]


def run(files: dict[str, str]) -> tuple[str, dict[str, Counter[str]]]:
    """Convert files in two processes; return the digest of all bytes, in order, and the counts by name."""
    digest = hashlib.sha256()
    counts: dict[str, Counter[str]] = {name: Counter() for name in files}
    with ProcessPoolExecutor(max_workers=2) as pool:
        work = [job for name, file in files.items() for job in jobs(name, DATA / file)]
        for (name, _, _), (made, found) in zip(work, pool.map(converted, work), strict=True):
            digest.update(made + b"\n")
            counts[name] += found
    return digest.hexdigest(), counts


def main() -> int:
    """Print the yields and the line of JSON."""
    if not DATA.is_dir():
        print(f"GSM8K not found in {DATA}; set COLLAB_DATA to the folder that holds gsm8k/", file=sys.stderr)
        return 1
    if sys.argv[1:] == ["--digest"]:
        print(run(FILES)[0])
        return 0
    started = time.perf_counter()
    digest, counts = run(FILES)
    seconds = time.perf_counter() - started
    again = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.evolving", "--digest"],
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    _, plain = run({"test without sub-questions": "test.jsonl"})
    for name, found in (counts | plain).items():
        total = found["problems"]
        print(f"{name}: {total} problems")
        for key, count in sorted(found.items(), key=lambda entry: -entry[1]):
            if key != "problems":
                print(f"  {count:5d}  {count / total:6.1%}  {key}")
    shares = {f"{key}_{name}_share": round(counts[name][key] / counts[name]["problems"], 4) for name in FILES for key in SHAPES}
    print(json.dumps(shares | {"seconds": round(seconds, 1), "identical": digest == again}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
