"""`collab report`: every stage in a small run without a model, reports of runs that are there, and what is refused."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from recipes.report import labelled
from tests.conftest import REPOSITORY
from tests.recipes.conftest import Collab

SCRIPTED = "policy=scripted"
STAGES = [
    "stages=[build,ablation,evaluate]",
    f"build=['{SCRIPTED}','candidates=mixed','limit=4','forward_sampling.num_samples=2','max_turns=2']",
    f"ablation=['{SCRIPTED}','limit=2','windows=[1,2]','num_samples=1','outcome_samples=1']",
    f"evaluate=['{SCRIPTED}','runs=1','limit=2','score_turns=true','environments.errands.limit=3','environments.abg_coqa.limit=3']",
]


def test_every_stage_lands_in_one_report(collab: Collab) -> None:
    ended = collab("report", *STAGES, "output_dir=all")
    assert ended.status == 0, ended.err
    summary = json.loads(ended.out.strip().splitlines()[-1])
    rows = pq.read_table("all/evaluate/conversations.parquet").to_pylist()
    assert summary["conversations"] == len(rows) == 2 * 2 * 3
    assert summary["unscored"] == 0 and list(summary["stages"]) == ["build", "ablation", "evaluate"]
    text = Path("all/report.md").read_text()
    for part in ("CollabLLM Table 1", "CollabLLM Table 2", "CollabLLM Table 5", "(CollabLLM Figure 4)"):
        assert part in text, part
    figures = {path.name for path in Path("all/figures").iterdir()}
    assert {"r-star.svg", "score-by-turn.svg", "mr-distributions-0.svg", "mechanisms.svg"} <= figures
    assert len(re.findall(r"^## ", text, re.MULTILINE)) == len(set(re.findall(r"^## .*", text, re.MULTILINE)))

    again = collab("report", *STAGES, "output_dir=all", "title=Once more")
    assert again.status == 0, again.err
    assert " 0 made, " in again.out  # the build asks nobody a second time
    assert Path("all/report.md").read_text().startswith("# Once more\n")
    changed = [each.replace("max_turns=2", "max_turns=3") for each in STAGES]
    refused = collab("report", *changed, "output_dir=all")
    assert refused.status == 1 and "all/build holds a run with max_turns=2, and this one has 3" in refused.sentence


def test_runs_that_are_there_are_reported_without_running_anything(collab: Collab) -> None:
    assert collab("build", SCRIPTED, "candidates=mixed", "limit=4", "output_dir=data/mine").status == 0
    Path("trained").mkdir()
    lines = ({"stage": "sft", "step": step, "loss": 1 / step} for step in (1, 2, 3))
    Path("trained/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = collab("report", "stages=[]", "runs=[data/mine,trained]", "output_dir=report")
    assert ended.status == 0, ended.err
    text = Path("report/report.md").read_text()
    assert "| mine | 4 |" in text and "figures/training-curves.svg" in text and "figures/mr-distributions-0.svg" in text
    assert "Results" not in text


def test_runs_of_one_name_and_stages_have_a_row_each(collab: Collab) -> None:
    for name, limit in (("a", 1), ("b", 2)):
        assert collab("build", SCRIPTED, f"limit={limit}", "max_turns=1", f"output_dir={name}/build").status == 0
    both = collab("report", "stages=[]", "runs=[a/build,b/build,a/build/]", "output_dir=both")
    assert both.status == 0, both.err
    assert rows_of("both") == {"a/build": "1", "b/build": "2"}
    stage = f"build=['{SCRIPTED}','limit=3','max_turns=1','num_samples=1']".replace("'num", "'forward_sampling.num")
    beside = collab("report", "stages=[build]", stage, "runs=[a/build]", "output_dir=beside")
    assert beside.status == 0, beside.err
    assert rows_of("beside") == {"a/build": "1", "build": "3"}


def rows_of(folder: str) -> dict[str, str]:
    return dict(re.findall(r"^\| (\S*build) \| (\d+) \|", Path(folder, "report.md").read_text(), re.MULTILINE))


def test_labels_are_unique_and_no_stages() -> None:
    here = Path.cwd()
    runs = [Path(each) for each in ("build", "x/build", "mine", "x/sft", ".", str(here / "mine"), "out/build")]
    assert labelled(runs, ["build"], Path("out")) == {
        str(here / "build"): Path("build"),
        "x/build": Path("x/build"),
        "mine": Path("mine"),
        "sft": Path("x/sft"),
        ".": Path(),
    }


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["stages=[bild]"], "stages: unknown 'bild' (did you mean 'build'?)"),
        (["stages=[]"], "there is nothing to report; name stages, or runs=[FOLDER, ...]"),
        (["stages=[]", "runs=[nowhere]"], "runs: there is no folder nowhere"),
        (["stages=[]", "runs=[empty]"], "runs: empty is neither a build nor a training run"),
        (
            ["stages=[build]", "build=['polcy=scripted']"],
            "stage build: unknown configuration key 'polcy' (did you mean 'policy'?)",
        ),
    ],
)
def test_what_cannot_be_reported_is_refused(collab: Collab, overrides: list[str], said: str) -> None:
    Path("empty").mkdir()
    ended = collab("report", *overrides)
    assert ended.status == 1
    assert ended.sentence.startswith(f"collab: {said}")


def test_make_report_runs_what_the_configuration_says() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    assert re.search(r"^report: \$\(STAMP\)\n\t\$\(BIN\)/collab report$", makefile, re.MULTILINE)
