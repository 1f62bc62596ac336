"""Writing a viewer: which runs there are, what becomes of the old file, and what stands in the page."""

import re
import weakref

import pytest

from collab.evaluation.tree_summary import main_path, summarise
from collab.evaluation.viewer import view_run, write_viewer
from simulators.conversation import ConversationTree, Message, Outcome
from simulators.errors import ConfigurationError, StorageError
from simulators.tree_file import TreeFile
from tests.evaluation.synthetic_trees import build_tree, evaluated_tree, linear_tree


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "errands"
    trees = TreeFile(folder / "trees.jsonl")
    for number in range(3):
        trees.append(build_tree(number))
    trees.close()
    return folder


def test_a_run_becomes_a_page_beside_its_trees(run_folder):
    path = view_run(run_folder)
    assert path == run_folder / "viewer.html"
    assert "<title>errands · conversations</title>" in path.read_text()
    assert sorted(file.name for file in run_folder.iterdir()) == ["trees.jsonl", "viewer.html"]


def test_the_tree_file_itself_and_another_output_do_as_well(run_folder, tmp_path):
    output = tmp_path / "new" / "page.html"
    assert view_run(run_folder / "trees.jsonl", output) == output
    assert output.stat().st_size > 10_000


def test_the_parts_of_an_evaluation_are_in_one_page(tmp_path, monkeypatch):
    for part in ("build", "evaluate/before", "evaluate/after"):
        trees = TreeFile(tmp_path / part / "trees.jsonl")
        trees.append(evaluated_tree(0, policy="policy"))
        trees.close()
    written = []
    monkeypatch.setattr("collab.evaluation.viewer.write_viewer", lambda trees, path, title: written.extend(trees))
    view_run(tmp_path)
    assert [tree.metadata["policy"] for tree in written] == ["build", "evaluate/after", "evaluate/before"]


def test_the_same_run_gives_the_same_file(run_folder):
    first = view_run(run_folder).read_bytes()
    assert view_run(run_folder).read_bytes() == first


def test_what_is_not_a_run_is_said_in_one_sentence(run_folder, tmp_path):
    with pytest.raises(ConfigurationError, match=r"there is no run .*nowhere"):
        view_run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=r"empty holds no trees\.jsonl, nor does any folder in it"):
        view_run(tmp_path / "empty")
    (tmp_path / "text.jsonl").write_text("hello\n")
    with pytest.raises(ConfigurationError, match="not valid JSON"):
        view_run(tmp_path / "text.jsonl")
    (tmp_path / "other.jsonl").write_text('{"format": "collab-journal", "version": 1}\n')
    with pytest.raises(ConfigurationError, match="not a trees file"):
        view_run(tmp_path / "other.jsonl")


def test_a_run_without_a_finished_task_is_said(tmp_path):
    TreeFile(tmp_path / "trees.jsonl").close()
    with pytest.raises(ConfigurationError, match="no conversations to view"):
        view_run(tmp_path)
    assert not (tmp_path / "viewer.html").exists()


def test_a_failure_leaves_the_old_page_and_no_rubbish(tmp_path):
    path = write_viewer([build_tree(0)], tmp_path / "viewer.html", "old")
    before = path.read_bytes()

    def broken():
        yield build_tree(1)
        raise ConfigurationError("line 2 is damaged")

    with pytest.raises(ConfigurationError, match="line 2"):
        write_viewer(broken(), path, "new")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot write the viewer to"):
        write_viewer([build_tree(0)], tmp_path / "file" / "viewer.html", "x")


def test_nothing_in_the_page_names_another_address(tmp_path):
    text = write_viewer([build_tree(0)], tmp_path / "viewer.html", "x").read_text()
    assert re.findall(r"https?://[^\s\"']+", text) == ["http://www.w3.org/2000/svg"], "the name of a namespace, never fetched"
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert "default-src 'none'" in policy and "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy and "*" not in policy
    assert (
        len(re.findall("<script>", text)) == 1 and "</script" not in re.search("<script>(.*?)</script>\n</body>", text, re.S)[1]
    )


def test_trees_are_read_one_after_another(tmp_path):
    """A run need not fit into memory: no tree is kept once its block is written."""
    alive, most = [], 0

    def trees():
        nonlocal most
        for number in range(30):
            tree = linear_tree(f"t{number}", ("user", "x" * 100_000))
            alive.append(weakref.ref(tree))
            yield tree
            del tree
            most = max(most, sum(reference() is not None for reference in alive))

    write_viewer(trees(), tmp_path / "viewer.html", "x")
    assert most <= 8


# --- the line a tree has in the list ---------------------------------------------------------------------------------------


def test_the_summary_of_a_built_tree():
    tree = build_tree(5)
    summary = summarise(tree)
    candidates = [node for node in tree.nodes if "candidate" in node.annotations]
    futures = [future for node in candidates for future in node.annotations["mr"]["futures"]]
    chosen = [node.annotations["mr"]["mean"] for node in candidates if node.annotations["candidate"]["role"] == "chosen"]
    rejected = [node.annotations["mr"]["mean"] for node in candidates if node.annotations["candidate"]["role"] == "rejected"]
    assert (summary.candidates, summary.futures) == (9, 27)
    assert summary.failed == sum(future["reward"] is None for future in futures)
    assert summary.outcomes == {o: sum(f["outcome"] == o for f in futures) for o in dict.fromkeys(f["outcome"] for f in futures)}
    assert summary.metrics["MR"] == pytest.approx(sum(chosen) / 3)
    assert summary.metrics["MR gap"] == pytest.approx((sum(chosen) - sum(rejected)) / 3)
    assert summary.metrics["turns"] == 3 and list(summary.metrics)[:2] == ["MR", "MR gap"]
    assert (summary.environment, summary.policy) == ("errands", "base")
    assert tree.nodes[0].message.content.startswith(summary.opening[:40])


def test_the_main_path_is_the_kept_conversation():
    tree = build_tree(2, turns=2)
    path = main_path(tree)
    assert [node.message.role for node in path] == ["user", "assistant", "user", "assistant"]
    assert all(node.annotations.get("kept") for node in path[1:])
    assert path[-1].annotations["candidate"]["role"] == "chosen", "its futures are not part of the conversation"


def test_the_summary_of_an_evaluated_tree_is_over_its_runs():
    tree = evaluated_tree(0, runs=4)
    totals = [leaf.annotations["score"]["total"] for leaf in tree.leaves()]
    summary = summarise(tree)
    assert summary.metrics["score"] == pytest.approx(sum(totals) / 4)
    assert summary.outcomes == {"ended": 4} and summary.candidates == 0 and summary.metrics["turns"] == 2


def test_a_missing_score_is_left_out_not_counted_as_zero():
    tree = evaluated_tree(0, runs=2)
    first, second = tree.leaves()
    first.annotations["score"] = {"total": None, "components": {}, "errors": {"accuracy": "no judge"}}
    assert summarise(tree).metrics["score"] == second.annotations["score"]["total"]
    second.annotations["score"]["total"] = float("nan")
    assert "score" not in summarise(tree).metrics


def test_trees_without_annotations_have_a_summary_too():
    tree = linear_tree("plain", ("system", "Be brief"), ("user", "Hi  \n there"), ("assistant", "Hello"))
    tree.nodes[-1].outcome = Outcome.TRUNCATED
    summary = summarise(tree)
    assert (summary.opening, summary.outcomes, summary.metrics) == ("Hi there", {"truncated": 1}, {"turns": 1})
    empty = summarise(ConversationTree("empty"))
    assert (empty.opening, empty.metrics) == ("", {"turns": 0})


@pytest.mark.parametrize("junk", [None, 3, "text", [], [None, "x", {"leaf": "y"}], {"futures": "x"}, {"futures": [1]}])
def test_annotations_of_another_shape_are_passed_over(junk, tmp_path):
    tree = linear_tree("junk", ("user", "Hi"))
    tree.add(0, Message("assistant", "x"), "policy", annotations={"candidate": junk, "mr": junk, "score": junk, "kept": junk})
    assert summarise(tree).metrics["turns"] == 1
    write_viewer([tree], tmp_path / "viewer.html", "x")
