import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.conversation import ConversationTree, Message
from simulators.errors import ConfigurationError, StorageError
from simulators.record_file import RecordFile
from simulators.tree_file import TreeFile, read_trees

RECORDS = [{"n": 1}, {"n": 2, "text": "é\ud800\n\u2028"}, [3]]


def written(path: Path, records: list[object] = RECORDS) -> Path:
    with RecordFile(path, "test", 1) as file:
        for record in records:
            file.append(record)
    return path


def contents(path: Path) -> list[object]:
    with RecordFile(path, "test", 1, writable=False) as file:
        return [record for _, _, record in file.records()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "records.jsonl"


def test_records_come_back_in_order_and_by_place(path: Path) -> None:
    with RecordFile(path, "test", 1) as file:
        places = [file.append(record) for record in RECORDS]
        assert [file.read_at(*place) for place in places] == RECORDS
        assert [(offset, length) for offset, length, _ in file.records()] == places
    with RecordFile(path, "test", 1) as file:
        file.append("more")
    assert contents(path) == [*RECORDS, "more"]


@given(cut=st.integers(1, 400))
def test_a_file_cut_anywhere_keeps_every_whole_record_and_goes_on(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = written(tmp_path_factory.mktemp("cut") / "records.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    kept = max(0, whole[: max(0, len(whole) - cut)].count(b"\n") - 1)
    with RecordFile(path, "test", 1) as file:
        assert [record for _, _, record in file.records()] == RECORDS[:kept]
        file.append("more")
    assert contents(path) == [*RECORDS[:kept], "more"]


def test_a_reader_leaves_a_torn_line_alone(path: Path) -> None:
    written(path)
    with path.open("ab") as stream:
        stream.write(b'{"half')
    size = path.stat().st_size
    assert contents(path) == RECORDS
    assert path.stat().st_size == size


def test_a_long_torn_line_is_cut_off(path: Path) -> None:
    written(path)
    with path.open("ab") as stream:
        stream.write(b"x" * 200_000)
    with RecordFile(path, "test", 1) as file:
        file.append("more")
    assert contents(path) == [*RECORDS, "more"]


def test_a_killed_writer_loses_nothing_it_had_appended(path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom simulators.record_file import RecordFile\n"
        f"file = RecordFile(Path({str(path)!r}), 'test', 1)\n"
        "for n in range(100): file.append(n)\nos.kill(os.getpid(), 9)"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    assert process.returncode == -9
    assert contents(path) == list(range(100))


def test_a_second_writer_is_refused_and_the_first_goes_on(path: Path) -> None:
    with RecordFile(path, "test", 1) as file:
        with pytest.raises(ConfigurationError, match="in use by another run"):
            RecordFile(path, "test", 1)
        file.append(1)
        assert contents(path) == [1]  # reading is allowed
    written(path, [2])
    assert contents(path) == [1, 2]


@pytest.mark.parametrize("bytes_taken", [0, 5])
def test_a_full_disk_keeps_what_was_written_before(path: Path, monkeypatch: pytest.MonkeyPatch, bytes_taken: int) -> None:
    file = RecordFile(path, "test", 1)
    file.append(RECORDS[0])
    real_write = os.write
    taken = bytes_taken

    def full(fd: int, data: bytes) -> int:
        nonlocal taken
        if taken:
            part, taken = taken, 0
            return real_write(fd, data[:part])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="the disk is full"):
        file.append({"lost": "x" * 100})
    monkeypatch.setattr(os, "write", real_write)
    file.append(RECORDS[1])  # room again
    file.close()
    assert contents(path) == RECORDS[:2]


def test_a_write_in_parts_is_one_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:7]))
    written(path)
    monkeypatch.undo()
    assert contents(path) == RECORDS


def test_damage_in_the_middle_is_named_by_line(path: Path) -> None:
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"n": 2, oops\n'
    path.write_bytes(b"".join(lines))
    with pytest.raises(ConfigurationError, match="line 3: not valid JSON"):
        contents(path)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"format": "collab-test", "version": 2}, "newer than the 1"),
        ({"format": "collab-other", "version": 1}, "is not a test file"),
        ([1], "is not a test file"),
        ({"format": "collab-test"}, "is not a test file"),
        ({"format": "collab-test", "version": "1"}, "is not a test file"),
    ],
)
def test_another_file_is_refused_and_left_as_it_is(path: Path, header: object, reason: str) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps(header) + "\n")
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=reason):
        RecordFile(path, "test", 1)
    assert path.read_bytes() == before


def test_a_file_without_any_line_that_is_not_ours_is_left_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("someone's notes, one line, no newline")
    with pytest.raises(ConfigurationError, match="not a test file"):
        RecordFile(path, "test", 1)
    assert path.read_text() == "someone's notes, one line, no newline"


def test_reading_what_is_not_there_says_so(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        RecordFile(path, "test", 1, writable=False)
    path.parent.mkdir()
    path.touch()
    with pytest.raises(ConfigurationError, match="is empty"):
        RecordFile(path, "test", 1, writable=False)


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot open"):
        RecordFile(tmp_path / "file" / "records.jsonl", "test", 1)


def test_trees_are_stored_once_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "trees.jsonl"
    file = TreeFile(path)
    for task in "ab":
        tree = ConversationTree(task)
        tree.add(None, Message("user", task), "user")
        file.append(tree)
    with pytest.raises(ValueError, match="already holds"):
        file.append(ConversationTree("a"))
    assert [tree.task_id for tree in read_trees(tmp_path)] == ["a", "b"]  # while it is being written
    file.close()
    file = TreeFile(path)
    assert (len(file), "a" in file, "c" in file) == (2, True, False)
    assert file.read("b").nodes[0].message.content == "b"
    assert [tree.task_id for tree in file] == ["a", "b"]
    file.close()


def test_a_record_that_is_no_tree_is_named(tmp_path: Path) -> None:
    with RecordFile(tmp_path / "trees.jsonl", "trees", 1) as file:
        file.append({"task_id": "t"})
    with pytest.raises(ConfigurationError, match="not a conversation tree"):
        list(read_trees(tmp_path))
