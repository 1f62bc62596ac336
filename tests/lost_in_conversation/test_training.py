"""The environment to train in: rewards, curriculum, and the registry's entry."""

import random
from collections import Counter

import pytest

from collab.environments.domain import BadRecord, Resources
from collab.environments.lost_in_conversation.curriculum import Curriculum, at_level, schedule
from collab.environments.lost_in_conversation.schema import Split, instruction_from_record
from collab.environments.lost_in_conversation.training import instruction_of_task, task_from_instruction
from collab.environments.registry import load_domain, load_environment
from collab.mr import score_future
from collab.tasks.task import Task
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Message, Outcome
from simulators.errors import ConfigurationError
from simulators.forward_sampling import future_seeds, sample_future
from simulators.policy import Policy
from simulators.users.sharded import ModelShardedUser, ShardedUser
from tests.lost_in_conversation.records import DATABASE, gold_number, math_instruction, math_record

RESOURCES = Resources(count_tokens=lambda text: len(text.split()))
INSTRUCTION = math_instruction(1, Split.TRAIN)
RIGHT, WRONG = f"Answer: {gold_number(INSTRUCTION)}", "Answer: 7"
ASKS, REFUSES = "How many trays does she fill?", "I cannot answer this."


def talk(*replies):
    """The sharded conversation with these replies, one a shard."""
    shards = INSTRUCTION.shard_texts
    return tuple(
        message
        for shard, reply in zip(shards, replies, strict=False)
        for message in (Message("user", shard), Message("assistant", reply))
    )


async def rewards(reward, *replies, **options):
    environment = load_environment("lost_in_conversation", RESOURCES, {"reward": reward, **options})
    task = environment.domain.task_from_record(math_record(1), "0")
    return await environment.reward.score(talk(*replies), task)


async def test_outcome_is_the_last_reply_and_nothing_else():
    assert (await rewards("outcome", ASKS, ASKS, ASKS, RIGHT)).total == 1.0
    assert (await rewards("outcome", WRONG, WRONG, WRONG, RIGHT)).total == 1.0
    assert (await rewards("outcome", RIGHT, RIGHT, RIGHT, WRONG)).total == 0.0
    assert (await rewards("outcome", ASKS, ASKS, RIGHT, ASKS)).total == 0.0
    assert (await rewards("outcome", ASKS, ASKS, RIGHT, ASKS, score_mode="last")).total == 1.0


async def test_premature_answers_cost_their_share_of_the_early_replies():
    assert (await rewards("premature", ASKS, ASKS, ASKS, RIGHT)).total == 1.0
    assert (await rewards("premature", WRONG, ASKS, ASKS, RIGHT)).total == pytest.approx(1 - 0.5 / 3)
    assert (await rewards("premature", WRONG, WRONG, WRONG, RIGHT)).total == pytest.approx(0.5)
    assert (await rewards("premature", WRONG, WRONG, WRONG, WRONG)).total == pytest.approx(-0.5)
    assert (await rewards("premature", WRONG, WRONG, WRONG, RIGHT, premature_penalty=1.0)).total == 0.0
    early_and_right = await rewards("premature", ASKS, RIGHT, RIGHT, RIGHT)
    assert early_and_right.total == 1.0, "a right answer shows that the shards sufficed"


async def test_abstention_costs_once_everything_is_known_and_never_before():
    assert (await rewards("abstention", REFUSES, REFUSES, REFUSES, RIGHT)).total == 1.0
    assert (await rewards("abstention", ASKS, ASKS, ASKS, REFUSES)).total == pytest.approx(-0.5)
    assert (await rewards("premature", ASKS, ASKS, ASKS, REFUSES)).total == 0.0
    assert (await rewards("abstention", ASKS, ASKS, ASKS, WRONG)).total == 0.0, "a wrong answer is better than none"


async def test_the_best_order_of_behaviours():
    """What the reward wants: wait and be right > hurry and be right in the end > wait and be wrong > hurry and be wrong."""
    waits = await rewards("abstention", ASKS, ASKS, ASKS, RIGHT)
    hurries = await rewards("abstention", WRONG, WRONG, WRONG, RIGHT)
    waits_wrong = await rewards("abstention", ASKS, ASKS, ASKS, WRONG)
    hurries_wrong = await rewards("abstention", WRONG, WRONG, WRONG, WRONG)
    assert waits.total > hurries.total > waits_wrong.total > hurries_wrong.total


async def test_components_are_measured_even_where_they_do_not_count():
    score = await rewards("outcome", WRONG, ASKS, ASKS, REFUSES)
    assert score.components == {"outcome": 0.0, "premature": pytest.approx(1 / 3), "withheld": 1.0} and score.total == 0.0


async def test_nobody_was_told_everything_yet():
    """A window of a conversation that is not over (MR with a small window): early replies count as early, nothing is withheld."""
    score = await rewards("abstention", WRONG, ASKS)
    assert score.components == {"outcome": 0.0, "premature": 0.5, "withheld": 0.0}


async def test_a_single_turn_is_never_premature():
    environment = load_environment("lost_in_conversation", RESOURCES, {"simulation": "full", "reward": "abstention"})
    task = environment.domain.task_from_record(math_record(1), "0")
    score = await environment.reward.score((Message("user", INSTRUCTION.full), Message("assistant", WRONG)), task)
    assert score.total == 0.0 and environment.max_turns == 1


async def test_an_episode_plays_through_the_environment():
    environment = load_environment("lost_in_conversation", RESOURCES)
    task = environment.domain.task_from_record(math_record(1), "0")
    user = environment.user_for(task)
    assert isinstance(user, ShardedUser)
    policy = Policy(ScriptedChatModel(lambda request, rng: RIGHT if len(request.messages) == 7 else ASKS))
    future = await sample_future((), user, policy, environment.max_turns, future_seeds(0, task.id, 0))
    assert future.outcome is Outcome.ENDED and len(future.policy_steps) == 4
    assert (await environment.reward.score(future.conversation, task)).total == 1.0


async def test_with_a_user_model_the_user_is_the_papers():
    environment = load_environment(
        "lost_in_conversation", Resources(count_tokens=len, user_model=ScriptedChatModel(lambda request, rng: "")), {}
    )
    assert isinstance(environment.user_for(environment.domain.task_from_record(math_record(1), "0")), ModelShardedUser)


async def test_a_user_that_keeps_the_shards_back_leaves_no_reward():
    silent = ScriptedChatModel(lambda request, rng: '{"response": "I do not know.", "shard_id": -1}')
    resources = Resources(count_tokens=len, user_model=silent)
    environment = load_environment("lost_in_conversation", resources, {"max_turns": 5})
    task = environment.domain.task_from_record(math_record(1), "0")
    policy = Policy(ScriptedChatModel(lambda request, rng: "Tell me more."))
    future = await sample_future((), environment.user_for(task), policy, environment.max_turns, future_seeds(0, task.id, 0))
    scored = await score_future(environment, task, future)
    assert (scored.reward, scored.outcome) == (None, Outcome.USER_ERROR) and "did not tell all" in scored.error
    short = await sample_future((), environment.user_for(task), policy, 3, future_seeds(0, task.id, 0))
    assert (await score_future(environment, task, short)).reward == 0.0  # it is not over yet


def test_a_record_without_an_id_makes_a_task_that_can_be_played():
    record = math_record(1)
    del record["task_id"]
    environment = load_environment("lost_in_conversation", RESOURCES, {})
    task = environment.domain.task_from_record(record, "line-7")
    assert "line-7" in task.id and environment.user_for(task) and instruction_of_task(task).id == task.id


async def test_the_context_stands_before_the_opening():
    environment = load_environment("lost_in_conversation", RESOURCES, {"task": "database"})
    task = environment.domain.task_from_record(DATABASE, "0")
    opening = await environment.user_for(task).next_turn((), 0)
    assert "CREATE TABLE singer" in opening.text and opening.text.endswith("names of singers")
    assert task.opening == opening.text


async def test_stop_when_right_is_off_by_default():
    policy = Policy(ScriptedChatModel(lambda request, rng: RIGHT))
    lengths = []
    for options in ({}, {"stop_when_right": True}):
        environment = load_environment("lost_in_conversation", RESOURCES, options)
        task = environment.domain.task_from_record(math_record(1), "0")
        future = await sample_future((), environment.user_for(task), policy, 16, future_seeds(0, task.id, 0))
        lengths.append(len(future.policy_steps))
    assert lengths == [4, 1]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"task": "poetry"}, "option task is 'poetry'"),
        ({"simulation": "slow"}, "option simulation is 'slow'; it must be one of full, concat"),
        ({"split": "test"}, "option split"),
        ({"score_mode": "best"}, "option score_mode"),
        ({"reward": "more"}, "option reward"),
        ({"classifier": "magic"}, "option classifier"),
        ({"premature_penalty": -1}, "must not be negative"),
        ({"simulations": "full"}, "did you mean 'simulation'"),
    ],
)
def test_options_that_cannot_be(options, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        load_domain("lost_in_conversation", options)


def test_a_model_classifier_needs_a_judge():
    with pytest.raises(ConfigurationError, match="needs a judge"):
        load_environment("lost_in_conversation", RESOURCES, {"classifier": "model"})


def test_records_of_other_tasks_and_too_many_shards_are_bad_records():
    with pytest.raises(BadRecord, match="task=math"):
        load_domain("lost_in_conversation").task_from_record(DATABASE, "0")
    assert load_domain("lost_in_conversation", {"task": "all"}).task_from_record(DATABASE, "0").id.startswith("train/database/")
    with pytest.raises(BadRecord, match="4 shards need as many turns"):
        load_domain("lost_in_conversation", {"max_turns": 3}).task_from_record(math_record(1), "0")


def test_tasks_carry_their_instruction_and_foreign_tasks_are_refused():
    task = task_from_instruction(INSTRUCTION)
    assert instruction_of_task(task) == INSTRUCTION
    with pytest.raises(ConfigurationError, match="not one of lost_in_conversation"):
        instruction_of_task(Task("x", "goal"))


# ---------------------------------------------------------------- curriculum

INSTRUCTIONS = [math_instruction(number, Split.TRAIN) for number in range(1, 6)]
SHORT = instruction_from_record(
    math_record(6, shards=[{"shard_id": 1, "shard": "How many?"}, {"shard_id": 2, "shard": "17 trays of 6, less 40."}]),
    Split.TRAIN,
)


def shards_of(task):
    return len(instruction_of_task(task).shards)


def test_levels_tell_the_same_problem_in_fewer_shards():
    assert [len(at_level(INSTRUCTIONS[0], level).shards) for level in (1, 2, 3, 4, 9)] == [1, 2, 3, 4, 4]
    assert at_level(INSTRUCTIONS[0], 2).fingerprint == INSTRUCTIONS[0].fingerprint


def test_the_schedule_goes_from_few_shards_to_many_and_uses_every_instruction_alike():
    tasks = schedule([*INSTRUCTIONS, SHORT], 48, seed=1)
    longest = [max(shards_of(task) for task in tasks[start : start + 12]) for start in range(0, 48, 12)]
    assert longest == [1, 2, 3, 4]
    uses = Counter(instruction_of_task(task).fingerprint for task in tasks)
    assert set(uses.values()) == {8}
    assert [task.id for task in tasks] == [task.id for task in schedule([*INSTRUCTIONS, SHORT], 48, seed=1)]
    assert [task.id for task in tasks] != [task.id for task in schedule([*INSTRUCTIONS, SHORT], 48, seed=2)]
    assert {shards_of(task) for task in schedule(INSTRUCTIONS, 10, first_level=4)} == {4}


def test_the_curriculum_moves_on_when_the_policy_copes_and_not_before():
    curriculum = Curriculum(INSTRUCTIONS, first_level=2, threshold=0.75, window=4, rehearsal=0.0)
    rng = random.Random(0)
    for score in (1.0, 1.0, 0.0, 0.0, 1.0):
        task, level = curriculum.draw(rng)
        assert level == 2 == shards_of(task)
        curriculum.report(level, score)
    assert curriculum.level == 2
    curriculum.report(2, 1.0)
    assert curriculum.level == 2, "the last four: 0 0 1 1"
    curriculum.report(2, 1.0)
    assert curriculum.level == 3, "the last four: 0 1 1 1"
    for _ in range(20):
        curriculum.report(3, 1.0)
    assert curriculum.level == 4, "there is nothing above the most shards"


def test_rehearsal_draws_from_below_and_its_scores_do_not_count():
    curriculum = Curriculum(INSTRUCTIONS, first_level=1, window=2, threshold=1.0, rehearsal=0.5)
    curriculum.load_state_dict({"level": 3, "scores": []})
    rng = random.Random(0)
    levels = Counter(curriculum.draw(rng)[1] for _ in range(400))
    assert set(levels) == {1, 2, 3} and 150 < levels[3] < 250
    for _ in range(10):
        curriculum.report(1, 1.0)
    assert curriculum.level == 3


def test_a_checkpoint_goes_on_where_it_was():
    curriculum = Curriculum(INSTRUCTIONS, window=3, threshold=1.0)
    curriculum.report(1, 1.0)
    curriculum.report(1, 1.0)
    other = Curriculum(INSTRUCTIONS, window=3, threshold=1.0)
    other.load_state_dict(curriculum.state_dict())
    other.report(1, 1.0)
    assert other.level == 2 and curriculum.level == 1


@pytest.mark.parametrize("settings", [{"first_level": 0}, {"first_level": 5}, {"window": 0}, {"rehearsal": 1.0}])
def test_curriculum_settings_out_of_range(settings):
    with pytest.raises(ConfigurationError, match="curriculum"):
        Curriculum(INSTRUCTIONS, **settings)
    with pytest.raises(ConfigurationError, match="at least one instruction"):
        schedule([], 3)
