"""Running simulations: resuming, settings, failures, and what ends up in the trees."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from collab.environments.lost_in_conversation.assessment import ScoreMode
from collab.environments.lost_in_conversation.simulations import ALL_SIMULATIONS, Simulation, UserSettings
from collab.environments.lost_in_conversation.verifiers import Verifiers
from collab.evaluation.lost_in_conversation.runner import SimulationSettings, row_from_tree
from collab.rewards.component import ScoringError
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import ConversationTree, Outcome
from simulators.errors import ChatModelError, ConfigurationError, TooManyFailures
from simulators.failure_share import FailureShare
from simulators.policy import Policy
from simulators.tree_file import read_trees
from simulators.users.sharded import FELL_BACK
from tests.lost_in_conversation.assistants import Assistants, answers
from tests.lost_in_conversation.in_folder import simulate
from tests.lost_in_conversation.records import gold_number, math_instruction

INSTRUCTIONS = [math_instruction(number) for number in range(1, 4)]
ASSISTANTS = Assistants(INSTRUCTIONS, *answers({each.id: f"Answer: {gold_number(each)}" for each in INSTRUCTIONS}, "Answer: 7"))
SETTINGS = SimulationSettings(runs=2)


def policy_of(script, **settings):
    return Policy(ScriptedChatModel(lambda request, rng: script(request, rng)), **settings)


async def test_every_conversation_becomes_a_row_and_a_tree(tmp_path):
    counted = []
    results = await simulate(
        INSTRUCTIONS, ASSISTANTS.perfect(), tmp_path, settings=SETTINGS, on_conversation=lambda: counted.append(1)
    )
    assert len(results.rows) == len(counted) == 3 * 6 * 2
    trees = {tree.task_id: tree for tree in read_trees(tmp_path)}
    assert len(trees) == 36
    for row in results.rows:
        tree = trees[f"{row.instruction}|{row.simulation}|{row.run}"]
        assert row_from_tree(tree) == row
        assert row.outcome is Outcome.ENDED or row.simulation.single_turn
    sharded = trees[f"{INSTRUCTIONS[0].id}|sharded|0"]
    assert [node.author for node in sharded.nodes] == ["user", "policy"] * 4
    assert sharded.nodes[-1].annotations["assessed"]["score"] == 1.0
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 36
    assert json.loads((tmp_path / "summary.json").read_text())["metrics"]["math"]["sharded"]["P"][0] == pytest.approx(100)


async def test_nothing_is_made_twice_and_runs_can_be_added(tmp_path):
    policy = ASSISTANTS.perfect()
    first = await simulate(INSTRUCTIONS, policy, tmp_path, settings=SETTINGS)
    calls = policy.model.calls
    again = await simulate(INSTRUCTIONS, policy, tmp_path, settings=SETTINGS)
    assert policy.model.calls == calls and again.rows == first.rows
    more = await simulate(INSTRUCTIONS, policy, tmp_path, settings=replace(SETTINGS, runs=3))
    assert all(row in more.rows for row in first.rows) and len(more.rows) == 54


async def test_a_killed_run_goes_on_from_its_journal(tmp_path):
    """The policy breaks down in the middle; what was answered before is not asked again."""
    made = []

    def script(request, rng):
        if len(made) == 20:
            raise ConfigurationError("the server went away")
        made.append(request)
        return "How many rolls were sold?"

    with pytest.raises(ConfigurationError, match="went away"):
        await simulate(INSTRUCTIONS, policy_of(script), tmp_path, settings=SETTINGS, max_open=3)
    finished = len(list(read_trees(tmp_path)))
    whole = await simulate(INSTRUCTIONS, policy_of(lambda request, rng: "How many rolls were sold?"), tmp_path, settings=SETTINGS)
    fresh = await simulate(
        INSTRUCTIONS, policy_of(lambda request, rng: "How many rolls were sold?"), tmp_path / "fresh", settings=SETTINGS
    )
    assert 0 < finished < len(whole.rows) and whole.rows == fresh.rows
    assert whole.calls["policy"]["made"] + 20 == fresh.calls["policy"]["made"]


async def test_the_same_run_twice_gives_the_same_trees_in_any_order(tmp_path):
    def script(request, rng):
        return f"Is it {rng.randint(1, 99)}?"

    trees = []
    for folder, at_once in (("a", 1), ("b", 16)):
        await simulate(INSTRUCTIONS, policy_of(script), tmp_path / folder, settings=SETTINGS, max_open=at_once)
        trees.append({tree.task_id: tree.fingerprint() for tree in read_trees(tmp_path / folder)})
    assert trees[0] == trees[1]
    runs = [trees[0][f"{INSTRUCTIONS[0].id}|sharded|{run}"]["nodes"][1]["message"]["content"] for run in (0, 1)]
    assert runs[0] != runs[1], "another run is another draw"


async def test_recap_goes_on_from_the_sharded_conversation_for_free(tmp_path):
    def script(request, rng):
        return f"Is it {rng.randint(1, 99)}?"

    results = await simulate(INSTRUCTIONS, policy_of(script), tmp_path, ("sharded", "recap"), SETTINGS)
    trees = {tree.task_id: tree for tree in read_trees(tmp_path)}
    for instruction in INSTRUCTIONS:
        sharded, recap = (trees[f"{instruction.id}|{kind}|0"] for kind in ("sharded", "recap"))
        messages = [node.message for node in recap.nodes]
        assert messages[: len(sharded)] == [node.message for node in sharded.nodes] and len(messages) == len(sharded) + 2
    assert results.calls["policy"]["made"] == 3 * 2 * (4 + 1) and results.calls["policy"]["shared"] == 3 * 2 * 4


@pytest.mark.parametrize(
    ("instructions", "simulations", "changes", "complaint"),
    [
        ([], ("full",), {}, "nothing to simulate"),
        (INSTRUCTIONS, (), {}, "nothing to simulate"),
        ([INSTRUCTIONS[0], INSTRUCTIONS[0]], ("full",), {}, "stands twice"),
        (INSTRUCTIONS, ("sharded",), {"max_turns": 3}, "has 4 shards"),
    ],
)
async def test_what_cannot_work_is_refused_before_anything_is_asked(tmp_path, instructions, simulations, changes, complaint):
    policy = ASSISTANTS.perfect()
    with pytest.raises(ConfigurationError, match=complaint):
        await simulate(instructions, policy, tmp_path, simulations, replace(SETTINGS, **changes))
    assert policy.model.calls == 0


def test_settings_that_make_no_sense():
    with pytest.raises(ConfigurationError, match="runs"):
        SimulationSettings(runs=0)
    with pytest.raises(ConfigurationError, match="judge_model"):
        SimulationSettings(classifier="model")


async def test_the_task_prompt_follows_the_policys_own_and_is_a_setting(tmp_path):
    seen = []

    def script(request, rng):
        seen.append(request.messages[0].content if request.messages[0].role == "system" else None)
        return "7"

    await simulate(INSTRUCTIONS[:1], policy_of(script, system_prompt="Be brief."), tmp_path / "a", ("full",), SETTINGS)
    assert seen[0].startswith("Be brief.\n\n") and "math problem" in seen[0]
    seen.clear()
    await simulate(INSTRUCTIONS[:1], policy_of(script), tmp_path / "b", ("full",), replace(SETTINGS, task_prompt=False))
    assert seen == [None, None]


async def test_early_stop_is_a_setting(tmp_path):
    """An assistant that is right at first and then changes its mind."""

    def script(request, rng):
        replies = sum(message.role == "assistant" for message in request.messages)
        return f"Answer: {gold_number(INSTRUCTIONS[0]) if replies == 1 else 7}"

    stopped = await simulate(INSTRUCTIONS[:1], policy_of(script), tmp_path / "a", ("sharded",), SETTINGS)
    played = await simulate(
        INSTRUCTIONS[:1], policy_of(script), tmp_path / "b", ("sharded",), replace(SETTINGS, stop_when_right=False)
    )
    assert [len(row.replies) for row in stopped.rows] == [2, 2] and [len(row.replies) for row in played.rows] == [4, 4]
    for mode, first, second in ((ScoreMode.MAX, 1, 1), (ScoreMode.LAST, 1, 0), (ScoreMode.FINAL_TURN, 1, 0)):
        assert (stopped.rows[0].score(mode), played.rows[0].score(mode)) == (first, second)


# ---------------------------------------------------------------- failures


async def test_a_user_who_keeps_the_shards_back_is_not_the_policys_failure(tmp_path):
    user = ScriptedChatModel(lambda request, rng: '{"response": "I do not know.", "shard_id": -1}', name="silent")
    settings = replace(SETTINGS, user=UserSettings(user))
    counted = Counter()
    results = await simulate(
        INSTRUCTIONS, ASSISTANTS.perfect(), tmp_path, ("sharded", "full"), settings, count=lambda how, why: counted.update([how])
    )
    rows = [row for row in results.rows if row.simulation is Simulation.SHARDED]
    assert counted == {Outcome.USER_ERROR: 6, Outcome.WINDOW_FULL: 6}
    assert {row.failure for row in rows} == {"simulator_kept_back"} and {len(row.replies) for row in rows} == {8}
    assert all(row.score(ScoreMode.MAX) is None for row in rows)
    assert Simulation.SHARDED not in results.metrics()["math"] and results.metrics()["math"][Simulation.FULL].unscored == 0
    assert "6 of 12 conversations have no score: simulator_kept_back." in results.warnings()


async def test_a_last_reply_that_was_cut_does_not_make_it_the_policys_failure(tmp_path):
    user = ScriptedChatModel(lambda request, rng: '{"response": "I do not know.", "shard_id": -1}', name="silent")

    class Cut(ScriptedChatModel):
        async def complete(self, request):
            return [replace(each, finish_reason="length") for each in await super().complete(request)]

    policy = Policy(Cut(lambda request, rng: "Tell me more", name="wordy"), name="wordy")
    results = await simulate(INSTRUCTIONS[:1], policy, tmp_path, ("sharded",), replace(SETTINGS, user=UserSettings(user)))
    assert {(row.outcome, row.failure) for row in results.rows} == {(Outcome.TRUNCATED, "simulator_kept_back")}


async def test_a_simulator_that_falls_back_is_flagged_in_a_conversation_that_counts(tmp_path):
    user = ScriptedChatModel(lambda request, rng: "no json at all", name="broken")
    results = await simulate(
        INSTRUCTIONS, ASSISTANTS.perfect(), tmp_path, ("sharded",), replace(SETTINGS, user=UserSettings(user))
    )
    assert all(row.score(ScoreMode.MAX) == 1.0 and row.simulator_flags[FELL_BACK] == 3 for row in results.rows)
    assert "told verbatim" in results.warnings()[0]
    assert results.settings["user"] == "broken" and results.settings["user_temperature"] == 1.0


async def test_a_policy_that_says_nothing_fails_by_itself_and_scores_0(tmp_path):
    results = await simulate(INSTRUCTIONS, policy_of(lambda request, rng: " "), tmp_path, ("sharded",), SETTINGS)
    assert {row.outcome for row in results.rows} == {Outcome.POLICY_ERROR}
    assert {row.failure for row in results.rows} == {None} and {row.score(ScoreMode.MAX) for row in results.rows} == {0.0}


class FailingOnce(Verifiers):
    broken = True

    async def verify(self, reply, instruction):
        if type(self).broken:
            raise ScoringError("the judge is away")
        return await super().verify(reply, instruction)


async def test_a_judge_that_fails_leaves_no_score_and_is_tried_again(tmp_path):
    settings = replace(SETTINGS, verifiers=FailingOnce())
    FailingOnce.broken = True
    first = await simulate(INSTRUCTIONS, ASSISTANTS.perfect(), tmp_path, ("full",), settings)
    assert {row.failure for row in first.rows} == {"judge"} and not list(read_trees(tmp_path))
    stopped = {row_from_tree(tree).instruction: row_from_tree(tree) for tree in read_trees(tmp_path / "stopped.jsonl")}
    assert len(first.rows) == 6 and all(stopped[row.instruction].error == row.error for row in first.rows)
    FailingOnce.broken = False
    second = await simulate(INSTRUCTIONS, ASSISTANTS.perfect(), tmp_path, ("full",), settings)
    assert {row.failure for row in second.rows} == {None} and second.calls["policy"]["made"] == 0


async def test_calls_that_fail_are_infrastructure_and_are_tried_again(tmp_path):
    failing = True

    def script(request, rng):
        if failing:
            raise ChatModelError("timeout")
        return "Answer: 7"

    first = await simulate(INSTRUCTIONS, policy_of(script), tmp_path, ("full",), SETTINGS)
    assert {row.failure for row in first.rows} == {"infrastructure"} and first.rows[0].error == "timeout"
    failing = False
    second = await simulate(INSTRUCTIONS, policy_of(script), tmp_path, ("full",), SETTINGS)
    assert {row.failure for row in second.rows} == {None}


async def test_too_many_failures_stop_the_run(tmp_path):
    def script(request, rng):
        raise ChatModelError("timeout")

    policy, share = policy_of(script), FailureShare()
    with pytest.raises(TooManyFailures, match="20 of the last 20 conversations failed, more than the 30% allowed"):
        await simulate(INSTRUCTIONS, policy, tmp_path, ALL_SIMULATIONS, replace(SETTINGS, runs=20), max_open=2, count=share.add)
    assert policy.model.calls <= 22


def test_a_foreign_tree_is_refused():
    with pytest.raises(ConfigurationError, match="is not a simulation"):
        row_from_tree(ConversationTree("x", {"environment": "math_chat"}))
