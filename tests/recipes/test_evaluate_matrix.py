"""`collab evaluate` over policies x environments x users x seeds: parts, tables, Parquet rows and the report."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.evaluation.chromium import Chromium, needs_chromium
from tests.recipes.conftest import Collab
from tests.recipes.threaded_server import assistant_reply, drawn
from tests.simulators.fault_server import Body, FaultServer

RUN = Path("run")
HOSTILE = "</script><script>window.hacked=1</script><img src=https://evil.example/x> The answer is 4."


@pytest.fixture
def command(served: list[str], problems: Path) -> list[str]:
    """Two environments, two policies, two tasks each, one run."""
    return [
        "evaluate",
        f"environments.math_chat.tasks={problems}",
        "environments.errands.split=test",
        "limit=2",
        "runs=1",
        f"output_dir={RUN}",
        *served,
    ]


def rows(**wanted: Any) -> list[dict[str, Any]]:
    table = pq.read_table(RUN / "conversations.parquet").to_pylist()
    return [row for row in table if all(row[name] == value for name, value in wanted.items())]


def markdown() -> str:
    return (RUN / "report.md").read_text()


def table_of(caption: str) -> list[dict[str, str]]:
    """Return a table of report.md by its caption, a mapping of column to cell for each row."""
    text = markdown()
    lines = text[text.index(f"**{caption}") :].splitlines()[2:]
    cut = [re.split(r" \| ", line.strip("| ")) for line in lines[: lines.index("")]]
    return [dict(zip(cut[0], row, strict=True)) for row in cut[2:]]


def test_every_policy_plays_in_every_environment(collab: Collab, command: list[str]) -> None:
    ended = collab(*command, "score_turns=true", "policy.price.completion=1000000")
    assert ended.status == 0, ended.err
    for environment in ("math_chat", "errands"):
        for policy in ("base", "proactive"):
            assert (RUN / environment / policy / "trees.jsonl").is_file()
            found = rows(environment=environment, policy=policy)
            assert len(found) == 2 and len({row["task_id"] for row in found}) == 2
            for row in found:
                assert row["success"] == (row["task_score"] == row["component.accuracy"] == 1.0)
                assert len(row["asked"]) == len(row["by_turn"]) == row["turns"] == row["policy_calls"]
                assert row["by_turn"][-1] == row["task_score"]
                assert row["policy_completion_tokens"] == row["policy_tokens"] == row["cost"] > 0
                assert row["user"] is None and row["judge_calls"] == 0 and row["baseline"]
    assert "math_chat" in ended.out and "errands" in ended.out
    assert markdown().count("(CollabLLM Table 1)") == 1
    (base, _) = table_of("Task score, length and interactivity")
    assert set(base) == {
        "Method",
        *(f"{name}: {column}" for name in ("math\\_chat", "errands") for column in ("accuracy ↑", "tokens (k) ↓")),
    }
    mean = sum(row["task_score"] for row in rows(environment="errands", policy="base")) / 2 * 100
    assert base["errands: accuracy ↑"].strip("*").startswith(f"{mean:.1f}")
    assert "score-by-turn.svg" in markdown()


def test_the_figures_stand_beside_their_cost_and_time(collab: Collab, command: list[str]) -> None:
    assert collab(*command, "policy.price.prompt=2000000").status == 0
    (base, _) = table_of("Every policy in errands")
    found = rows(environment="errands", policy="base")
    assert base["cost"].startswith(f"{sum(row['cost'] for row in found) / 2:,.4f}")
    assert sum(row["cost"] for row in found) == 2 * sum(row["policy_prompt_tokens"] for row in found)
    assert base["seconds"].split()[0] == f"{sum(row['seconds'] for row in found) / 2:.1f}"
    assert (base["n"], base["unscored"]) == ("2", "0")
    assert collab(*command, "policy.price.prompt=1000000").status == 0  # prices are looked at afterwards
    assert sum(row["cost"] for row in rows(environment="errands", policy="base")) == sum(r["policy_prompt_tokens"] for r in found)


def test_mcnemar_and_the_paired_interval_stand_in_the_tables(
    collab: Collab, command: list[str], chat_server: FaultServer
) -> None:
    def reply(body: Body) -> str:
        system = body["messages"][0]["role"] == "system"
        given = re.search(r"has (\d+) pens.*gives her (\d+)", str(body["messages"]), re.DOTALL)
        return f"The answer is {int(given[1]) + int(given[2])}." if given and system else "Which pens? The answer is 0."

    chat_server.reply = reply
    ended = collab(*command, "~environments.errands", "environments.math_chat.limit=8")
    assert ended.status == 0, ended.err
    (proactive,) = table_of("Against base")
    gained = sum(row["success"] for row in rows(policy="proactive"))
    assert rows(policy="base", success=True) == [] and gained == 8
    assert proactive["tasks (McNemar): gained"] == "8" and proactive["tasks (McNemar): lost"] == "0"
    assert float(proactive["tasks (McNemar): p"]) == pytest.approx(2 / 2**8, abs=1e-4)
    assert proactive["difference: success"] == "100.0% \\[100.0, 100.0\\]"
    assert re.search(r"McNemar p \(tasks\) +│ +│ +0\.008", ended.out)


def test_a_policy_may_be_another_model_on_another_server(collab: Collab, command: list[str], chat_server: FaultServer) -> None:
    other = [
        "policies.other.policy.model=other",
        "policies.other.policy.sampling.max_tokens=7",
        f"policies.other.policy.urls=[{chat_server.url}]",
    ]
    assert collab(*command, *other).status == 0
    models = {(body["model"], body.get("max_tokens", body.get("max_completion_tokens"))) for body in chat_server.requests}
    assert models == {("served", 512), ("other", 7)}
    assert not rows(policy="other")[0]["baseline"]
    assert table_of("Task score, length and interactivity")[-1]["Method"] == "Rel. improvement (other)"


def test_policies_are_added_and_none_is_changed_in_the_same_folder(
    collab: Collab, command: list[str], chat_server: FaultServer
) -> None:
    assert collab(*command).status == 0
    asked = len(chat_server.requests)
    assert collab(*command, "policies.terse.prompt='Be brief.'").status == 0
    systems = {body["messages"][0]["content"] for body in chat_server.requests[asked:]}
    assert systems == {"Be brief."}
    asked = len(chat_server.requests)
    ended = collab(*command, "policies.terse.prompt='Be very brief.'")
    assert ended.status == 1 and len(chat_server.requests) == asked
    assert "holds a run with policy.prompt='Be brief.', and this one has 'Be very brief.'" in ended.sentence
    ended = collab(*command, "environments.errands.token_penalty=0.5")
    assert "environment.token_penalty=None, and this one has 0.5" in ended.sentence


def test_seeds_are_other_draws_and_stand_apart(collab: Collab, command: list[str], chat_server: FaultServer) -> None:
    chat_server.reply = lambda body: f"{drawn(body)}? The answer is {drawn(body) % 3}."
    assert collab(*command, "seeds=[3,4]", "runs=2").status == 0
    assert (RUN / "errands" / "base" / "seed-4" / "trees.jsonl").is_file()
    found = rows(environment="errands", policy="base")
    assert sorted((row["seed"], row["run"]) for row in found if row["task_id"] == found[0]["task_id"]) == [
        (3, 0),
        (3, 1),
        (4, 2),
        (4, 3),
    ]
    seeds = table_of("R\\* by seed")
    assert len(seeds) == 4 and {"R\\*: seed 3", "R\\*: seed 4", "over seeds"} <= set(seeds[0])
    sent = len({json.dumps(body) for body in chat_server.requests})
    assert sent == len(chat_server.requests)


def test_the_transfer_matrix_has_a_row_a_policy_and_a_column_a_user(
    collab: Collab, command: list[str], chat_server: FaultServer
) -> None:
    def reply(body: Body) -> str:
        if body["model"] == "person":
            return json.dumps({"message": f"Please help me ({drawn(body) % 9}).", "done": False})
        return assistant_reply(body)

    chat_server.reply = reply
    user = ["user=role_play", "user.backend=server", "user.model=person", "user.api_key_env=null"]
    user.append(f"user.urls=[{chat_server.url}]")
    users = ["users.rules.kind=scripted", "users.hurried.persona='in a hurry'"]
    sft = ["policies.sft.prompt=none", "policies.sft.trained_with=rules", "policies.sft.baseline=false"]
    ended = collab(*command, *user, *users, *sft)
    assert ended.status == 0, ended.err
    matrix = table_of("Simulator transfer: R\\* in math\\_chat")
    assert [row["policy"] for row in matrix] == ["base", "proactive", "sft"]
    assert [row["trained against"] for row in matrix] == ["not trained", "not trained", "rules"]
    played = {name: rows(environment="math_chat", policy="sft", user=name) for name in ("rules", "hurried")}
    own, others = (sum(row["r_star"] for row in found) / 2 for found in played.values())
    assert own != others
    assert matrix[2]["R\\* in math\\_chat, evaluated against: rules ↑"].strip("*").startswith(f"{own:.2f}")
    assert matrix[2]["others - own"] == f"{others - own:.2f}"
    assert matrix[0]["others - own"] == "–"
    assert all(row["user_calls"] > 0 for row in played["hurried"])
    assert all(row["user_calls"] == 0 for row in rows(user="rules"))


def test_what_failed_is_counted_and_never_zero(collab: Collab, command: list[str], chat_server: FaultServer) -> None:
    chat_server.plan = lambda number, body: "400 nope" if number == 0 else None
    ended = collab(*command, "max_failure_share=1.0")
    assert ended.status == 0, ended.err
    (failed,) = rows(r_star=None)
    assert failed["outcome"] == "infra_error" and "nope" in failed["error"]
    assert failed["task_score"] is None and failed["success"] is None and failed["component.accuracy"] is None
    (other,) = [row for row in rows(environment=failed["environment"], policy=failed["policy"]) if row["r_star"] is not None]
    named = failed["environment"].replace("_", "\\_")
    by_policy = {row["policy"]: row for row in table_of(f"Every policy in {named}")}
    mine = by_policy[failed["policy"]]
    assert (mine["n"], mine["unscored"]) == ("2", "1")
    assert mine["R\\* ↑"].strip("*").startswith(f"{other['r_star']:.3f}")
    assert "1 of 2 conversations of" in markdown() and "1 infra_error" in markdown()
    (difference,) = table_of(f"Against base: {named}")
    assert (difference["pairs"], difference["dropped"]) == ("1", "1")


def test_hostile_text_stays_text_and_the_page_asks_for_nothing(
    collab: Collab, command: list[str], chat_server: FaultServer
) -> None:
    chat_server.reply = lambda body: HOSTILE
    assert collab(*command).status == 0
    page = (RUN / "report.html").read_text()
    assert "window.hacked=1" in page and "<script>window.hacked" not in page and "<img src=https" not in page
    assert not re.search(r'<[^<>]*\s(src|href)\s*=\s*"?(https?:)?//', page)
    assert not re.search(r"url\((?!['\"]?data:)", page)
    assert "default-src 'none'" in page
    before, _, after = markdown().partition(HOSTILE)
    assert re.findall(r"^`{3,}\w*$", before, re.MULTILINE)[-1].startswith("```text") and after.lstrip().startswith("```")


@needs_chromium
def test_the_page_opens_without_a_fault_and_fits_a_narrow_screen(
    collab: Collab, command: list[str], chat_server: FaultServer
) -> None:
    chat_server.reply = lambda body: HOSTILE
    assert collab(*command, "score_turns=true").status == 0

    async def look() -> None:
        async with Chromium() as browser:
            for scheme, width in (("light", 1280), ("dark", 420)):
                page = await browser.open((RUN / "report.html").resolve(), scheme=scheme, width=width)
                assert await page.evaluate("window.hacked === undefined && document.querySelectorAll('.transcript').length") == 4
                assert await page.evaluate("document.documentElement.scrollWidth") == width
                assert await page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
                assert page.problems == []
                assert {request.split("#")[0] for request in page.requests} == {(RUN / "report.html").resolve().as_uri()}

    asyncio.run(look())


def test_judged_conversations_pay_for_their_judge(collab: Collab, command: list[str], chat_server: FaultServer) -> None:
    def reply(body: Body) -> str:
        return json.dumps({"reason": "fine", "rating": 3, "score": 3}) if body["model"] == "judge" else assistant_reply(body)

    chat_server.reply = reply
    judge = [
        "judge=llm",
        "judge.backend=server",
        "judge.model=judge",
        f"judge.urls=[{chat_server.url}]",
        "judge.api_key_env=null",
    ]
    ended = collab(*command, "~environments.errands", *judge, "judge.price.completion=1000000", "max_failure_share=1.0")
    assert ended.status == 0, ended.err
    found = rows(environment="math_chat")
    assert all(row["judge_calls"] > 0 and row["cost"] == row["judge_completion_tokens"] > 0 for row in found)
    assert all(row["component.interactivity"] is not None for row in found)
    assert "math\\_chat: ITR ↑" in table_of("Task score, length and interactivity")[0]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["policies.x.policy.modle=m"], "policies.x.policy.modle: there is no such key (did you mean 'model'?)"),
        (["policies.x.policy.max_batch_size=many"], "policies.x.policy: Value 'many' of type 'str' could not be converted"),
        (["policies.x.trained_with=bob", "users.bo.kind=scripted"], "policies.x.trained_with is 'bob' (did you mean 'bo'?)"),
        (["users.bo.knd=scripted"], "users.bo.knd: there is no such key (did you mean 'kind'?)"),
        (["environments.errands.taks=x"], "environments.errands.taks: there is no such key (did you mean 'tasks'?)"),
        (["environments.errnds.limit=1"], "unknown environment 'errnds' (did you mean 'errands'?)"),
        (["environments.mine.name=math_chat", "environments.mine.options.lvel=5"], "environment math_chat has no option 'lvel'"),
        (["policies.a/b.prompt=none"], "policies: 'a/b' cannot be a folder"),
        (["seeds=[1,1]"], "seeds are [1, 1]; every seed may stand there once"),
    ],
)
def test_what_is_misspelled_is_refused(collab: Collab, command: list[str], overrides: list[str], said: str) -> None:
    ended = collab(*command, *overrides)
    assert ended.status != 0
    assert ended.sentence.startswith(f"collab: {said}")
    assert not (RUN / "journal.jsonl").exists()


def test_lost_in_conversation_and_an_evolving_intent_get_their_tables(collab: Collab, served: list[str]) -> None:
    environments = [
        "environments.full={name: lost_in_conversation, options: {simulation: full}}",
        "environments.sharded={name: lost_in_conversation, options: {simulation: sharded}}",
        "environments.single={name: evolving_gsm8k, tasks: 'bundled:math_chat', options: {turns: 1}}",
        "environments.evolve={name: evolving_gsm8k, tasks: 'bundled:math_chat', options: {turns: 3, switches: 0, revisions: 1}}",
    ]
    ended = collab("evaluate", *environments, "limit=3", "runs=2", "on_bad_record=skip", f"output_dir={RUN}", *served)
    assert ended.status == 0, ended.err
    (lost, _) = table_of("Performance, aptitude and unreliability by setting")
    assert {"P: FULL", "P: SHARDED", "SHARDED / FULL", "A: FULL", "U: SHARDED"} <= set(lost)
    mean = sum(row["task_score"] for row in rows(environment="full", policy="base")) / 6 * 100
    assert lost["P: FULL"].startswith(f"{mean:.1f}")
    (evolving, _) = table_of("Intent given at once and evolving")
    single = sum(row["success"] for row in rows(environment="single", policy="base")) / 6 * 100
    assert evolving["Single ↑"].strip("*").startswith(f"{single:.1f}")
    assert "CollabLLM Table 1" not in markdown()  # all four have a table of their own
    assert "reliability.svg" in markdown()
