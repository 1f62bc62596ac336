"""The conversation viewer: a run's trees in one HTML file that opens anywhere, from a file, without a server.

The page holds a short index of all trees, and the trees themselves in compressed blocks of which the browser unpacks only the one
it shows (or, to search in texts, one after another). So a run of thousands of conversations opens at once. The file is written
as the trees are read; a run need not fit into memory.

Text is data here from end to end: it travels as base64, is parsed as JSON and set as `textContent`; see `page` for the content
policy that holds even if all of that were wrong.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from collab.evaluation.markup import escape_html
from collab.evaluation.page import asset, fill
from collab.evaluation.tree_summary import summarise
from simulators.conversation import ConversationTree, Node
from simulators.errors import ConfigurationError, StorageError
from simulators.tree_file import read_trees

BLOCK_CHARACTERS = 1 << 18
"""Size of a block before compression: small enough to unpack in some milliseconds, large enough to compress well."""

_SCRIPTS = ("inflate", "data", "elements", "thread", "candidates", "list", "keyboard", "start")
_DEPTHS = ("*", "*/*", "*/*/*", "*/*/*/*")
"""How far below a run its parts lie: an evaluation has a folder for each environment, user, policy and seed."""
_MAGNITUDE = 2**53
"""JavaScript holds larger whole numbers (seeds have 63 bits) only approximately, so they travel as text."""


def write_viewer(
    trees: Iterable[ConversationTree], path: Path, title: str, *, token_text: Callable[[int], str] | None = None
) -> Path:
    """Write a viewer of these trees to `path` and return it; what stood there is replaced when the new one is complete.

    With `token_text` (a tokenizer's decoding of one id) tokens are shown as text, otherwise as ids.

    Raises:
        ConfigurationError: when there are no trees, or as their reader does.
        StorageError: when the disk refuses.
    """
    page = fill(
        asset("viewer/viewer.html"),
        {"title": escape_html(title)},
        styles=["theme.css", "viewer/viewer.css", "viewer/thread.css"],
        scripts=["theme.js", *(f"viewer/{name}.js" for name in _SCRIPTS)],
    )
    head, tail = page.split("<!--data-->")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".viewer-", encoding="utf-8", delete=False) as stream:
            part = Path(stream.name)
            try:
                stream.write(head)
                _write_data(trees, stream, token_text)
                stream.write(tail)
                stream.close()
                part.chmod(0o644)
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise StorageError(f"cannot write the viewer to {path}: {error.strerror}; choose another place with more room") from None
    return path


def view_run(run_folder: Path, output: Path | None = None) -> Path:
    """Write the viewer of a run, by default to `viewer.html` in its folder; return its path.

    A run is a `trees.jsonl`, a folder that has one, or a folder whose parts have one each, as an evaluation of several policies
    does: then all of them are in one viewer, and can be told apart by the part's name.

    Raises:
        ConfigurationError: when there is no such run, or its file is not one of conversation trees.
        StorageError: when the disk refuses.
    """
    if not run_folder.exists():
        raise ConfigurationError(f"there is no run {run_folder}; name the output folder of a build or an evaluation")
    folder = run_folder if run_folder.is_dir() else run_folder.parent
    return write_viewer(_trees_of(run_folder), output or folder / "viewer.html", title=folder.resolve().name)


def _trees_of(run_folder: Path) -> Iterator[ConversationTree]:
    if not run_folder.is_dir() or (run_folder / "trees.jsonl").is_file():
        yield from _with_stopped(run_folder)
        return
    parts = sorted(file.parent for depth in _DEPTHS for file in run_folder.glob(f"{depth}/trees.jsonl"))
    if not parts:
        raise ConfigurationError(
            f"{run_folder} holds no trees.jsonl, nor does any folder in it; name the output folder of a build or an evaluation"
        )
    for part in parts:
        for tree in _with_stopped(part):
            tree.metadata["policy"] = part.relative_to(run_folder).as_posix()
            yield tree


def _with_stopped(run: Path) -> Iterator[ConversationTree]:
    """Yield the trees of a file, or of a folder with those of tasks that stopped early or were spoilt by a failure."""
    yield from read_trees(run)
    if (stopped := run / "stopped.jsonl").is_file():
        yield from read_trees(stopped)


def _write_data(trees: Iterable[ConversationTree], stream: IO[str], token_text: Callable[[int], str] | None) -> None:
    """Write the blocks, then the index that says where each tree stands."""
    index: list[dict[str, Any]] = []
    texts: dict[int, str] = {}
    blocks = 0
    for number, (block, lines) in enumerate(_blocks(trees)):
        packed = base64.b64encode(gzip.compress(block.encode("ascii"), compresslevel=6, mtime=0)).decode()
        stream.write(f'<script type="application/octet-stream" id="block-{number}">{packed}</script>\n')
        blocks = number + 1
        for place, tree in enumerate(lines):
            if token_text is not None:
                for node in tree.nodes:
                    for token in node.token_ids or ():
                        if token not in texts:
                            texts[token] = token_text(token)
            index.append({**asdict(summarise(tree)), "block": number, "place": place})
    if not index:
        raise ConfigurationError("there are no conversations to view; the run has not finished a single task")
    data = _json({"trees": index, "blocks": blocks, "token_text": texts})
    stream.write(f'<script type="application/json" id="index">{data.replace("<", chr(92) + "u003c")}</script>\n')


def _blocks(trees: Iterable[ConversationTree]) -> Iterator[tuple[str, list[ConversationTree]]]:
    """Group trees into blocks; yield each as (JSON array, its trees)."""
    texts: list[str] = []
    members: list[ConversationTree] = []
    for tree in trees:
        texts.append(_json(_tree_data(tree)))
        members.append(tree)
        if sum(map(len, texts)) >= BLOCK_CHARACTERS:
            yield f"[{','.join(texts)}]", members
            texts, members = [], []
    if texts:
        yield f"[{','.join(texts)}]", members


def _tree_data(tree: ConversationTree) -> dict[str, Any]:
    """Return the tree's record as `to_record` has it, made fit for browsers, without copying every token twice."""
    nodes = [{name: value for name, value in _node_data(node).items() if value not in (None, {}, [])} for node in tree.nodes]
    return {"task_id": tree.task_id, "metadata": _for_browsers(tree.metadata), "nodes": nodes}


def _node_data(node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "parent": node.parent,
        "message": node.message.as_dict(),
        "author": node.author,
        "model": node.model,
        "weights_version": node.weights_version,
        "finish_reason": node.finish_reason,
        "token_ids": node.token_ids,
        "logprobs": node.logprobs and [round(value, 3) if math.isfinite(value) else None for value in node.logprobs],
        "usage": node.usage and asdict(node.usage),
        "latency_s": _for_browsers(node.latency_s),
        "seed": _for_browsers(node.seed),
        "outcome": node.outcome,
        "annotations": _for_browsers(node.annotations),
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _for_browsers(value: Any) -> Any:
    """Return JSON data that every browser parses to the same: no NaN, no whole number that it would round."""
    match value:
        case dict():
            return {str(key): _for_browsers(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_for_browsers(inner) for inner in value]
        case float() if not math.isfinite(value):
            return None
        case int() if not -_MAGNITUDE < value < _MAGNITUDE:
            return str(value)
    return value
