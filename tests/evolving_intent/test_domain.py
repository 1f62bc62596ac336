"""The environment: options, tasks, whole conversations with scripted policies, rewards, tracking, arms and the table row."""

import json
import re
from dataclasses import replace

import pytest

from collab.environments.domain import BadRecord, Environment, Resources, Unsuitable
from collab.environments.evolving_intent.answers import TurnTarget
from collab.environments.evolving_intent.arms import ARMS, EVOLVE, SINGLE, arm_shapes
from collab.environments.evolving_intent.conversion import Rejected, conversion_from_record
from collab.environments.evolving_intent.gsm8k.builder import convert_record
from collab.environments.evolving_intent.gsm8k.domain import NumberVerifier, domain
from collab.environments.evolving_intent.reader import Reader
from collab.environments.evolving_intent.rewards import FinalTurn
from collab.environments.evolving_intent.tracking import Verdict, track, tracking_figures
from collab.environments.registry import load_domain
from collab.evaluation.comparison import Cell, successes
from collab.evaluation.evolving_arms import arms_table, evolving_result, solved, tracked, tracking_table
from collab.evaluation.paper_tables import evolving_intent
from collab.evaluation.run import evaluated_conversations, evaluated_tree
from collab.mr import MultiturnReward
from collab.rewards.accuracy import MathAccuracy
from collab.tasks.held_out import in_gsm8k_test
from collab.tasks.task import Task
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Message, Outcome
from simulators.errors import ConfigurationError
from simulators.forward_sampling import future_seeds, sample_future
from simulators.policy import Policy
from simulators.users.scheduled import ScheduledUser
from tests.evolving_intent.tasks import BAKERY, PROBLEMS

RESOURCES = Resources(count_tokens=lambda text: len(text.split()))


def reading_policy(tasks: list[Task], **ignores: bool) -> Policy:
    """A policy that listens as the reader does, and says that it waits while something is missing."""
    conversions = {
        task.metadata["evolving"]["messages"][0]: conversion_from_record(task.metadata["conversion"]) for task in tasks
    }

    def script(request, rng):
        said = [message.content for message in request.messages if message.role == "user"]
        conversion = conversions[said[0]]
        if said[0] == conversion.task.text:  # the single turn and its repetitions: nothing to follow
            return f"The answer is {conversion.task.reference}."
        found = Reader(conversion, **ignores).answer(said)
        return "Could you tell me more?" if found is None else f"So the answer is {found}."

    return Policy(ScriptedChatModel(script), name="reader")


def tasks_of(**options) -> list[Task]:
    return [domain(**options).task_from_record(problem, "x") for problem in PROBLEMS]


async def test_a_conversation_is_played_and_graded_on_its_last_turn():
    environment = Environment(load_domain("evolving_gsm8k", {"turns": 7}), RESOURCES)
    tasks = tasks_of(turns=7)
    policy = reading_policy(tasks)
    for task in tasks:
        user = environment.user_for(task)
        assert isinstance(user, ScheduledUser)
        future = await sample_future((), user, policy, environment.max_turns, future_seeds(0, task.id, 0))
        assert future.outcome is Outcome.WINDOW_FULL and len(future.policy_steps) == 7
        score = await environment.reward.score(future.conversation, task)
        assert score.total == 1.0 and score.components == {"accuracy": 1.0, "intent_tracking": 1.0}


@pytest.mark.parametrize(("ignores", "accuracy"), [({"ignores_revisions": True}, 0.0), ({"ignores_switches": True}, 0.0)])
async def test_agents_that_live_in_the_past_fail(ignores, accuracy):
    environment = Environment(domain(turns=7, tracking_weight=0.5), RESOURCES)
    tasks = tasks_of(turns=7)
    policy = reading_policy(tasks, **ignores)
    for task in tasks:
        future = await sample_future((), environment.user_for(task), policy, 7, future_seeds(0, task.id, 0))
        score = await environment.reward.score(future.conversation, task)
        assert score.components["accuracy"] == accuracy
        assert score.total == pytest.approx(accuracy + 0.5 * score.components["intent_tracking"])
        assert 0 <= score.components["intent_tracking"] < 1


async def test_a_conversation_that_ends_early_scores_nothing_whatever_was_said():
    task = tasks_of(turns=7)[0]
    right = Message("assistant", f"The answer is {task.reference}.")
    turn = (Message("user", "?"), right)
    final = FinalTurn(MathAccuracy())
    assert await final.score(turn * 7, task) == 1.0
    assert await final.score(turn * 6, task) == 0.0
    assert await final.score((*turn * 6, Message("user", "?")), task) == 0.0
    assert await final.score((*turn * 6, Message("user", "?"), Message("assistant", "Which one?")), task) == 0.0


async def test_mr_of_an_early_turn_is_that_of_the_whole_conversation():
    """The last turn alone is graded, so a window that ends before it would be worth 0 however right the replies are."""
    environment = Environment(load_domain("evolving_gsm8k", {"turns": 7}), RESOURCES)
    tasks = tasks_of(turns=7)
    for ignores, mean in (({}, 1.0), ({"ignores_revisions": True}, 0.0)):
        policy = reading_policy(tasks, **ignores)
        for task in tasks:
            played = await sample_future((), environment.user_for(task), policy, 1, future_seeds(0, task.id, 0))
            estimate = await MultiturnReward(environment, policy, window_turns=2, num_samples=2).estimate(
                played.conversation, task
            )
            assert estimate.mean == mean
            assert {len(scored.future.policy_steps) for scored in estimate.futures} == {6}


def test_the_token_penalty_is_an_option_of_the_resources():
    terms = domain().make_reward(replace(RESOURCES, token_penalty=0.01)).terms
    assert [component.name for component, _ in terms] == ["accuracy", "intent_tracking", "token_cost"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"turns": 3, "switches": 2, "revisions": 2}, "3 turns are too few"),
        ({"turns": 12, "switches": 8, "revisions": 1}, "8 switches need as many predecessors"),
    ],
)
def test_tasks_that_do_not_allow_the_shape_are_unsuitable(options, complaint):
    with pytest.raises(Unsuitable, match=complaint):
        domain(**options).task_from_record(BAKERY, "x")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"recap": "some"}, "option recap is 'some'"),
        ({"control": "copy"}, "option control is 'copy'"),
        ({"user": "human"}, "option user is 'human'"),
        ({"tracking_weight": -1.0}, "option tracking_weight is -1.0"),
        ({"turns": 0}, "there must be a turn"),
        ({"mixture": {}}, "option mixture"),
        ({"mixture": {4: -1}}, "option mixture"),
        ({"late": 3, "switches": 0}, "late transitions need a switch"),
        ({"mixture": {4: 1}, "turns": 4}, "option turns stands beside mixture"),
        ({"mixture": {4: 1}, "late": 1}, "option late stands beside mixture"),
    ],
)
def test_impossible_options_are_refused(options, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        domain(**options)


def test_a_mixture_draws_its_shares_from_the_same_tasks():
    mixed = domain(mixture={1: 0.25, 4: 0.25, 7: 0.5})
    assert mixed.max_turns == 7
    lengths = []
    for number in range(200):
        task = mixed.task_from_record(BAKERY | {"id": f"bakery-{number}"}, "x")
        lengths.append(len(task.metadata["evolving"]["messages"]))
    assert {length: lengths.count(length) for length in (1, 4, 7)} == pytest.approx({1: 50, 4: 50, 7: 100}, abs=25)
    with pytest.raises(Unsuitable):  # allows T=4, but not the longest
        short = BAKERY | {
            "question": "She bakes 34 trays. Each holds 18 rolls. How many rolls does Nora bake?",
            "answer": "#### 612",
        }
        mixed.task_from_record(short, "x")


def test_exact_takes_only_problems_whose_answers_can_all_be_computed():
    hidden = BAKERY | {"answer": BAKERY["answer"].replace("Nora bakes", "It is known <<5=5>>5. Nora bakes")}
    assert domain(turns=4).task_from_record(hidden, "x").id == "bakery"
    with pytest.raises(Unsuitable, match="exact=true"):
        domain(turns=4, exact=True).task_from_record(hidden, "x")


def test_a_model_user_needs_a_model():
    task = tasks_of(turns=4)[0]
    with pytest.raises(ConfigurationError, match="needs a user model"):
        domain(turns=4, user="model").make_user(task, RESOURCES)
    model = ScriptedChatModel(lambda request, rng: "hi")
    user = domain(turns=4, user="model", persona="hasty").make_user(task, replace(RESOURCES, user_model=model))
    assert user.words == tuple(task.metadata["evolving"]["words"]) == tuple(task.metadata["evolving"]["messages"])


def test_a_persona_styles_the_messages_and_nothing_else():
    plain, styled = tasks_of(turns=7), tasks_of(turns=7, persona="hasty")
    for one, other in zip(plain, styled, strict=True):
        assert one.metadata["evolving"]["targets"] == other.metadata["evolving"]["targets"]
        assert one.metadata["evolving"]["messages"] != other.metadata["evolving"]["messages"]


def test_stored_conversions_are_taken_as_they_are():
    stored = {"conversion": convert_record(BAKERY, "x", seed=7).to_record()}
    assert domain(turns=4).task_from_record(stored, "y").id == "bakery"
    with pytest.raises(BadRecord, match="field 'conversion'"):
        domain(turns=4).task_from_record({"conversion": {"task": 3}}, "y")


# ---------------------------------------------------------------- tracking

TARGETS = (
    TurnTarget(None, told=False),
    TurnTarget("12", told=True),
    TurnTarget("15", told=True, stale_values=("12",), stale_functions=("40",)),
    TurnTarget(None, told=True),
)


@pytest.mark.parametrize(
    ("replies", "verdicts"),
    [
        (("How many?", "It is 12.", "It is 15.", "It is 3."), ("waiting", "current", "current", "unknown")),
        (("It is 7.", "It is 9.", "It is 12.", "Hm."), ("premature", "other", "stale_value", "unknown")),
        (("It is 7.", "I wonder.", "It is 40."), ("premature", "other", "stale_function")),
        (("It is 12.", "It is 12.", "It is 15.", "It is 40."), ("premature", "current", "current", "unknown")),
    ],
)
async def test_every_reply_gets_a_verdict(replies, verdicts):
    conversation = [message for reply in replies for message in (Message("user", "?"), Message("assistant", reply))]
    found = await track(tuple(conversation), TARGETS, NumberVerifier(), Task("t", "g"))
    assert found == tuple(map(Verdict, verdicts))


def test_rates_are_shares_of_the_turns_where_they_were_possible():
    figures = tracking_figures(
        [
            (("opening", "revision"), (Verdict.PREMATURE, Verdict.STALE_VALUE)),
            (("opening", "revision"), (Verdict.WAITING, Verdict.CURRENT)),
            (("opening", "revision"), (Verdict.CURRENT, Verdict.UNKNOWN)),
        ]
    )
    assert figures.rate("opening", Verdict.PREMATURE) == 0.5
    assert figures.rate("opening", Verdict.CURRENT) == 1.0
    assert figures.rate("revision", Verdict.STALE_VALUE) == 0.5
    assert figures.rate("revision", Verdict.PREMATURE) is None
    assert figures.rate("switch", Verdict.CURRENT) is None


# ---------------------------------------------------------------- arms


async def test_the_arms_are_played_on_the_same_tasks_and_make_the_tables():
    cells, figures = [], {}
    for name, options in ARMS.items():
        arm = domain(**options, every_arm=True)
        tasks = [arm.task_from_record(problem, "x") for problem in PROBLEMS]
        policy = reading_policy(tasks, ignores_switches=True)
        trees = [await evaluated_tree(policy, Environment(arm, RESOURCES), task, runs=1, seed=0) for task in tasks]
        cells.append(Cell(name, "", "deaf", list(evaluated_conversations(trees)), task_score="accuracy"))
        figures[name] = await tracked(trees, NumberVerifier())
    shares = {cell.environment: solved(cell).estimate for cell in cells}
    deaf_to = ("Evolve", "Switch", "Prompt recap", "Oracle recap", "Dump recap")
    assert shares == {name: 0.0 if name in deaf_to else 1.0 for name in ARMS}
    result = evolving_result("deaf", {cell.environment: successes(cell) for cell in cells})
    assert result.test is not None and result.test.lost == 3 and result.test.gained == 0
    assert result.paired is not None and result.paired.difference.estimate == -1.0
    assert figures[EVOLVE].rate("switch", Verdict.STALE_FUNCTION) == 1.0
    assert re.search(r"deaf", str(evolving_intent([result]).rows[0].cells))
    assert any("switch" in row.cells for row in tracking_table(figures).rows)
    rows = {row.cells[1]: row.cells for row in arms_table(cells).rows}
    assert list(rows) == list(ARMS) and rows[SINGLE][3] is None
    assert (rows["Switch"][3].estimate, rows["Switch"][4:6]) == (-100.0, (3, 0))
    assert (rows["Revision"][3].estimate, rows["Revision"][4:6]) == (0.0, (0, 0))


def test_an_arm_that_could_not_be_scored_has_no_figures():
    single, evolve = Cell(SINGLE, "", "p", []), Cell(EVOLVE, "", "p", [])
    assert solved(evolve) is None
    assert arms_table([single, evolve]).rows[1].cells == ("p", EVOLVE, None, None, None, None, None, 0, 0)
    with pytest.raises(ValueError, match="no scores for Evolve"):
        evolving_result("x", {SINGLE: {("a", 0): 1.0}, EVOLVE: {}})


def test_every_arm_takes_only_tasks_that_all_arms_can_be_played_on():
    assert max(shape.turns for shape in arm_shapes()) == 7
    short = BAKERY | {
        "id": "short",
        "question": "Nora bakes 34 trays of rolls. Each tray holds 18 rolls. Each roll brings in $6. How much does Nora earn?",
        "answer": "Nora bakes 34*18 = <<34*18=612>>612 rolls.\nShe earns 612*6 = $<<612*6=3672>>3672.\n#### 3672",
    }
    assert domain(turns=4).task_from_record(short, "x").id == "short"
    with pytest.raises(Unsuitable, match="2 switches need as many predecessors; there are 1"):
        domain(turns=1, every_arm=True).task_from_record(short, "x")


# ---------------------------------------------------------------- what may be trained on


def test_problems_of_the_test_split_are_known_whatever_their_id(collab_data):
    records = [json.loads(line) for line in (collab_data / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    single = domain(turns=1)
    loaded = [
        single.task_from_record(record | {"id": f"train-{number}"}, "x")
        for number, record in enumerate(records[:40])
        if convertible(record)
    ]
    assert len(loaded) > 20 and {single.held_out(task) for task in loaded} == {"the test split of GSM8K"}


def convertible(record):
    try:
        convert_record(record, "x", seed=0)
    except Rejected:
        return False
    return True


def test_other_problems_may_be_trained_on():
    assert [in_gsm8k_test(task) for task in tasks_of(turns=4)] == [None, None, None]
