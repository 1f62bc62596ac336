"""`collab build` as a user types it: a dataset from real records, resumed, and refused in one sentence where it cannot work."""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from collab.data.export import read_rows
from simulators.tree_file import read_trees
from tests.recipes.conftest import Collab, Ended
from tests.simulators.fault_server import Body, FaultServer

SMALL = ["environment=math_chat", "forward_sampling.window_turns=1", "forward_sampling.num_samples=2", "max_turns=2"]
DATASET = ("sft.parquet", "dpo.parquet", "README.md")


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def different(requests: list[Body]) -> int:
    """How many different calls these are. Some reach the server after their sender was killed, and are made again rightly."""
    return len({json.dumps(body, sort_keys=True) for body in requests})


def dataset_bytes(folder: Path) -> list[bytes]:
    return [(folder / "dataset" / name).read_bytes() for name in DATASET]


def sentence(ended: Ended, status: int = 1) -> str:
    assert ended.status == status, ended
    return ended.sentence.removeprefix("collab: ")


# ---------------------------------------------------------------- from records to a dataset


def test_twenty_gsm8k_problems_become_a_dataset(
    collab: Collab, collab_data: Path, served: list[str], chat_server: FaultServer, tmp_path: Path, tiny_model_folder: Path
) -> None:
    records = (collab_data / "gsm8k" / "train.jsonl").read_text().splitlines()[:20]
    (tmp_path / "gsm8k.jsonl").write_text("\n".join(records))
    ended = collab("build", *SMALL, "tasks=gsm8k.jsonl", *served, f"policy.tokenizer={tiny_model_folder}")
    assert ended.status == 0, ended.err
    folder = Path("outputs/build/math_chat")

    trees = list(read_trees(folder))
    assert sorted(tree.task_id for tree in trees) == [f"math_chat-train-{number:05d}" for number in range(20)]
    sft, dpo = read_rows(folder, "sft"), read_rows(folder, "dpo")
    assert [row["task_id"] for row in sft] == sorted(row["task_id"] for row in sft)  # in the order of the tasks
    assert len(sft) == 20
    assert all(row["messages"][-1]["role"] == "assistant" for row in sft)
    assert all(row["mr_chosen"] > row["mr_rejected"] for row in dpo)

    (metrics,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    made = metrics["calls"]["policy"]["made"]
    assert made == chat_server.answered == lines_of(folder / "journal.jsonl") - 1
    assert (metrics["conversations"], metrics["pairs"], metrics["failed_futures"]) == (20, len(dpo), 0)
    assert f"20 conversations, {metrics['turns']} turns, {len(dpo)} pairs -> {folder}/dataset" in ended.out
    assert f"model calls: {made} made, 0 read from the journal" in ended.out
    assert "tasks 20/20 " in ended.err  # progress, where there is no terminal
    assert '"window_turns": 1' in (folder / "dataset" / "README.md").read_text()
    assert "window_turns: 1" in (folder / "config.yaml").read_text()
    assert json.loads((folder / "versions.json").read_text())["transformers"]


def test_the_same_command_again_makes_no_call_and_the_same_dataset(
    collab: Collab, served: list[str], chat_server: FaultServer, problems: Path
) -> None:
    command = ["build", *SMALL, f"tasks={problems}", "limit=3", *served]
    folder = Path("outputs/build/math_chat")
    assert collab(*command).status == 0
    asked, before = len(chat_server.requests), dataset_bytes(folder)
    again = collab(*command)
    assert (again.status, len(chat_server.requests)) == (0, asked)
    assert "model calls: 0 made, 0 read from the journal" in again.out  # finished tasks are not even looked up
    assert dataset_bytes(folder) == before
    more = collab(*command, "limit=4")
    assert more.status == 0
    assert more.out.startswith("4 conversations")
    assert len(chat_server.requests) == asked + 24  # one task: 2 turns of 4 candidates with 2 futures each


def test_finished_calls_of_unfinished_tasks_are_not_repeated(
    collab: Collab, served: list[str], chat_server: FaultServer, problems: Path
) -> None:
    command = ["build", *SMALL, f"tasks={problems}", "limit=3", *served]
    folder = Path("outputs/build/math_chat")
    assert collab(*command).status == 0
    asked, before = len(chat_server.requests), dataset_bytes(folder)
    (folder / "trees.jsonl").unlink()
    again = collab(*command)
    assert len(chat_server.requests) == asked
    assert f"model calls: 0 made, {asked} read from the journal" in again.out
    assert dataset_bytes(folder) == before


def test_the_run_can_be_replayed_without_any_model(
    collab: Collab, served: list[str], chat_server: FaultServer, problems: Path
) -> None:
    assert collab("build", *SMALL, f"tasks={problems}", "limit=2", *served).status == 0
    asked = len(chat_server.requests)
    replayed = collab("replay", "outputs/build/math_chat")
    assert (replayed.status, len(chat_server.requests)) == (0, asked), replayed
    assert "every tree is as recorded" in replayed.out


def test_another_configuration_in_the_same_folder_is_refused(collab: Collab, served: list[str], problems: Path) -> None:
    command = ["build", *SMALL, f"tasks={problems}", "limit=1", *served]
    assert collab(*command).status == 0
    folder = Path("outputs/build/math_chat")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    said = sentence(collab(*command, "seed=1"))
    assert said.startswith("outputs/build/math_chat holds a run with seed=0, and this one has 1; choose another output_dir")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert collab(*command, "policy.max_concurrency=2", "budget.max_calls=1000", "policy.deadline_s=9").status == 0


def test_a_command_that_never_got_going_does_not_block_the_corrected_one(
    collab: Collab, served: list[str], problems: Path
) -> None:
    assert "does not exist" in sentence(collab("build", *SMALL, "tasks=typo.jsonl", *served))
    assert "no server at" in sentence(collab("build", *SMALL, f"tasks={problems}", *served, "policy.urls=[http://127.0.0.1:9]"))
    assert collab("build", *SMALL, f"tasks={problems}", "limit=1", *served).status == 0


def test_half_a_configuration_file_does_not_block_either(collab: Collab, served: list[str], problems: Path) -> None:
    """What a power cut may leave; a killed process leaves the old file or the new one."""
    folder = Path("outputs/build/math_chat")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("environment:\n  na")
    assert collab("build", *SMALL, f"tasks={problems}", "limit=1", *served).status == 0


def test_a_model_in_this_process_builds_the_bundled_errands(collab: Collab, tiny_model_folder: Path) -> None:
    ended = collab(
        "build", "candidates=stems", f"policy.model={tiny_model_folder}", "limit=2", "policy.sampling.max_tokens=6",
        "forward_sampling.window_turns=1", "forward_sampling.num_samples=1", "max_turns=1",
    )  # fmt: skip
    assert ended.status == 0, ended.err
    sources = {
        node.annotations["candidate"]["source"]
        for tree in read_trees(Path("outputs/build/errands"))
        for node in tree.nodes
        if "candidate" in node.annotations
    }
    assert sources == {"plain", "proactive", "asking"}


# ---------------------------------------------------------------- failures on the way


def test_a_server_that_refuses_everything_stops_the_run(
    collab: Collab, served: list[str], chat_server: FaultServer, problems: Path
) -> None:
    chat_server.plan = lambda number, body: "400 nope"
    command = ["build", *SMALL, f"tasks={problems}", *served]
    said = sentence(collab(*command))
    assert said.startswith(
        "20 of the last 20 conversations failed, more than the 30% allowed; most often infra_error: the server at"
    )
    assert "answered 400 (nope)" in said
    chat_server.plan = lambda number, body: None
    assert collab(*command, "limit=2").out.startswith("2 conversations")


def test_tasks_that_stopped_are_tried_again(collab: Collab, served: list[str], chat_server: FaultServer, problems: Path) -> None:
    command = ["build", *SMALL, f"tasks={problems}", "limit=3", "max_failure_share=1.0", *served]
    chat_server.plan = lambda number, body: (
        "400 nope" if "Ada has 4 pens" in json.dumps(body) or "1 more" in json.dumps(body) else None
    )
    chat_server.plan = lambda number, body: "400 nope"
    said = sentence(collab(*command))
    assert said.startswith("3 of 3 tasks stopped early; the first at turn 1: no candidate could be scored (the server at ")
    chat_server.plan = lambda number, body: None
    ended = collab(*command)
    assert ended.out.startswith("3 conversations")
    assert "stopped" not in ended.out


def test_what_stopped_tasks_have_is_exported(collab: Collab, served: list[str], chat_server: FaultServer, problems: Path) -> None:
    command = ["build", *SMALL, f"tasks={problems}", "limit=2", "max_failure_share=1.0", *served]
    chat_server.plan = lambda number, body: "400 nope" if len(body["messages"]) > 3 else None  # no second turn
    ended = collab(*command)
    assert ended.status == 0
    assert ended.out.startswith("2 conversations, 2 turns")
    assert "2 of 2 tasks stopped early; the first at turn 2" in ended.out
    assert "start the same command again to try them again" in ended.out
    chat_server.plan = lambda number, body: None
    assert collab(*command).out.startswith("2 conversations, 4 turns")


def test_a_spent_budget_stops_and_a_higher_one_goes_on(
    collab: Collab, served: list[str], chat_server: FaultServer, problems: Path
) -> None:
    command = ["build", *SMALL, f"tasks={problems}", "limit=3", *served]
    said = sentence(collab(*command, "budget.max_calls=30"))
    assert "30" in said and "budget" in said
    journal = Path("outputs/build/math_chat/journal.jsonl")
    recorded = lines_of(journal) - 1
    assert 0 < recorded <= 30
    ended = collab(*command, "budget.max_calls=1000")
    assert ended.status == 0
    assert f"model calls: {3 * 24 - recorded} made, " in ended.out
    assert lines_of(journal) - 1 == 3 * 24


def test_skipped_records_are_reported(collab: Collab, served: list[str], problems: Path, tmp_path: Path) -> None:
    (tmp_path / "mixed.jsonl").write_text('{"question": "How many?", "answer": "some"}\n' + problems.read_text())
    command = ["build", *SMALL, "tasks=mixed.jsonl", "limit=1", *served]
    assert "mixed.jsonl, line 1: the answer has no final result" in sentence(collab(*command))
    ended = collab(*command, "on_bad_record=skip")
    assert ended.status == 0
    assert "skipped: mixed.jsonl, line 1: the answer has no final result" in ended.out


# ---------------------------------------------------------------- bad input, each in one sentence


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["tasks=missing.jsonl"], "task file missing.jsonl does not exist"),
        (["tasks=column.jsonl"], "column.jsonl, line 1: needs a column 'question' (GSM8K) or 'problem'"),
        (["tasks=empty.jsonl"], "empty.jsonl has no task of split 'train'"),
        (["environment.options.levle=5"], "environment math_chat has no option 'levle' (did you mean 'level'?)"),
        (["on_bad_record=drop"], "on_bad_record is 'drop'; it must be refuse or skip"),
        (["forward_sampling.window_turns=-1"], "forward_sampling: window_turns is -1; it must be 0"),
        (["forward_sampling.num_samples=0"], "forward_sampling: num_samples is 0"),
        (["candidates.plain.count=0", "candidates.proactive.count=1"], "the builder ranks candidates: give it at least"),
        (["max_turns=0"], "max_turns is 0"),
        (["limit=0"], "limit is 0; it must be at least 1"),
        (["max_open_tasks=0"], "max_open_tasks is 0; it must be at least 1"),
        (["max_failure_share=2"], "max_failure_share is 2.0; it must lie in [0, 1]"),
        (["policy.sampling.temperature=-1"], "sampling: temperature is -1.0; it must not be negative"),
        (["policy.sampling.top_p=0"], "sampling: top_p is 0.0; it must lie in (0, 1]"),
        (["policy.urls=[http://127.0.0.1:9]"], "no server at http://127.0.0.1:9/v1"),
        (["policy.urls=[]"], "a server backend needs urls=[http://HOST:PORT/v1]"),
        (["policy.api_key_env=NO_SUCH_KEY"], "the API key is missing: set the environment variable NO_SUCH_KEY"),
        (["policy.backend=vlm"], "unknown backend 'vlm'; known are transformers, "),
        (["user.kind=human"], "unknown user kind 'human'; known are scripted and role_play"),
        (["user=role_play"], "the API key is missing: set the environment variable OPENAI_API_KEY"),
        (["judge=llm"], "the API key is missing: set the environment variable OPENAI_API_KEY"),
        (["output_dir=taken"], "cannot write to output_dir taken: "),
        (["output_dir=/proc/nowhere"], "cannot write to output_dir /proc/nowhere: "),
    ],
)  # fmt: skip
def test_what_can_never_work_is_refused(
    collab: Collab, served: list[str], problems: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], said: str
) -> None:
    for name in ("OPENAI_API_KEY", "NO_SUCH_KEY"):
        monkeypatch.delenv(name, raising=False)
    Path("column.jsonl").write_text('{"query": "3?", "answer": "#### 3"}\n')
    Path("empty.jsonl").write_text("")
    Path("taken").write_text("a file")
    found = sentence(collab("build", *SMALL, f"tasks={problems}", *served, *overrides))
    assert found.startswith(said), found


def test_a_served_model_needs_a_tokenizer_to_count_with(
    collab: Collab, served: list[str], problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = sentence(collab("build", *SMALL, f"tasks={problems}", *served, "policy.tokenizer=./nowhere"))
    assert "set policy.tokenizer to its folder or Hub id" in said
    assert "model folder ./nowhere does not exist" in said


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda path: [file.unlink() for file in path.glob("tokenizer*")], "model folder model has no tokenizer; save"),
        (
            lambda path: (path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}"),
            "the chat template of model fails on a conversation with roles user: roles must alternate",
        ),
        (
            lambda path: os.truncate(path / "model.safetensors", 20_000),
            "cannot load a causal language model from model: Error while deserializing header",
        ),
    ],
)
def test_a_broken_model_folder_is_refused(collab: Collab, tiny_model_folder: Path, break_it, said: str) -> None:  # type: ignore[no-untyped-def]
    shutil.copytree(tiny_model_folder, "model")
    break_it(Path("model"))
    found = sentence(collab("build", "limit=1", "policy.model=model", "policy.sampling.max_tokens=4"))
    assert found.startswith(said), found


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["policy.adapter=./nowhere"], "adapter folder ./nowhere does not exist; give a folder or a Hub id"),
        (["policy.dtype=float17"], "unknown dtype 'float17'; use auto, float32, bfloat16 or float16"),
        (["policy.max_batch_size=0"], "max_batch_size is 0; it must be at least 1"),
    ],
)
def test_a_model_that_cannot_be_loaded_as_asked_is_refused(
    collab: Collab, tiny_model_folder: Path, overrides: list[str], said: str
) -> None:
    assert sentence(collab("build", "limit=1", f"policy.model={tiny_model_folder}", *overrides)).startswith(said)


# ---------------------------------------------------------------- a disk that fills up


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB; skips where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_the_run_and_nothing_finished_is_lost(
    collab: Collab, served: list[str], chat_server: FaultServer, problems: Path, small_disk: Path
) -> None:
    command = ["build", *SMALL, f"tasks={problems}", f"output_dir={small_disk}/run", *served]
    said = sentence(collab(*command))
    assert "the disk is full; everything before is kept, mend it and start the same command again" in said
    kept = lines_of(small_disk / "run" / "journal.jsonl") - 1
    assert kept > 50
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    asked = len(chat_server.requests)
    ended = collab(*command)
    assert ended.status == 0, ended.err
    assert different(chat_server.requests[asked:]) == 20 * 24 - kept  # only what was never written down
    assert f"model calls: {20 * 24 - kept} made, " in ended.out
    assert ended.out.startswith("20 conversations")


@pytest.mark.parametrize("name", ["journal.jsonl", "trees.jsonl"])
def test_a_disk_that_refuses_a_record_ends_the_run(
    collab: Collab, served: list[str], problems: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    command = ["build", *SMALL, f"tasks={problems}", "limit=2", *served]
    write = os.write

    def refuse(fd: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().name == name and b'"format"' not in data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        assert f"cannot write to outputs/build/math_chat/{name}: the disk is full" in sentence(collab(*command))
    assert collab(*command).out.startswith("2 conversations")


@pytest.mark.parametrize("name", ["config.yaml", "versions.json", "models.json", "metrics.jsonl", "sft.parquet"])
def test_a_disk_that_refuses_any_other_file_ends_the_run(
    collab: Collab, served: list[str], problems: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    command = ["build", *SMALL, f"tasks={problems}", "limit=1", *served]
    open_ = Path.open

    def refuse(self: Path, mode: str = "r", *rest: object, **more: object) -> object:
        if name in self.name and mode[0] in "wa":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_(self, mode, *rest, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        assert "No space left on device" in sentence(collab(*command))
    assert collab(*command).out.startswith("1 conversations")
