"""The environment's entry in the registry: `lost_in_conversation`, with its options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from collab.environments.domain import BadRecord, Domain, Resources
from collab.environments.lost_in_conversation.assessment import Assessor, ScoreMode, StopWhenRight
from collab.environments.lost_in_conversation.schema import Split, TaskKind, instruction_from_record
from collab.environments.lost_in_conversation.simulations import Simulation, UserSettings, make_user, preamble_of
from collab.environments.lost_in_conversation.splits import check_may_train, is_known_evaluation_problem
from collab.environments.lost_in_conversation.strategy_judge import ModelClassifier, RuleClassifier
from collab.environments.lost_in_conversation.training import RewardName, instruction_of_task, reward_terms, task_from_instruction
from collab.environments.lost_in_conversation.verifiers import Verifiers
from collab.environments.lost_in_conversation.wording import WARNING
from collab.rewards.conversation_reward import ConversationReward
from collab.tasks.task import Task
from simulators.errors import ConfigurationError
from simulators.users.protocol import User


def domain(
    task: str = "math",
    simulation: str = "sharded",
    split: str = "train",
    reward: RewardName = "outcome",
    score_mode: str = "final_turn",
    premature_penalty: float = 0.5,
    refusal_penalty: float = 0.5,
    classifier: str = "rules",
    stop_when_right: bool = False,
    user_temperature: float = 1.0,
    max_turns: int = 16,
    databases: str | None = None,
) -> Domain:
    """Lost in Conversation as a domain.

    `task` is one of the six, or "all". `split` "train" refuses the published evaluation problems. `reward` is outcome, premature
    or abstention (`training`), over the attempts that `score_mode` counts. `classifier` "model" asks the judge. With a user
    model the user is the paper's, without one it is made of rules. `stop_when_right` uses gold feedback, which a deployed model
    never gets: leave it off for training. `databases` is a folder of Spider databases; without it queries run on synthetic ones.

    Raises:
        ConfigurationError: for a value that an option cannot have.
    """
    kind = None if task == "all" else _choice(TaskKind, task, "task")
    chosen_simulation = _choice(Simulation, simulation, "simulation")
    chosen_split = _choice(Split, split, "split")
    mode = _choice(ScoreMode, score_mode, "score_mode")
    if reward not in get_args(RewardName):
        raise ConfigurationError(f"option reward is {reward!r}; it must be one of {', '.join(get_args(RewardName))}")
    if classifier not in ("rules", "model"):
        raise ConfigurationError(f"option classifier is {classifier!r}; it must be one of rules, model")
    if premature_penalty < 0 or refusal_penalty < 0:
        raise ConfigurationError("options premature_penalty and refusal_penalty must not be negative")

    most_turns = 1 if chosen_simulation.single_turn else max_turns + (chosen_simulation is Simulation.RECAP)

    def task_from_record(record: Mapping[str, Any], default_id: str) -> Task:
        instruction = instruction_from_record(record, chosen_split, default_id)
        if kind is not None and instruction.kind is not kind:
            raise BadRecord(f"field 'task' is {instruction.kind}; this environment has task={kind} (task=all takes every task)")
        if chosen_split is Split.TRAIN:
            check_may_train(instruction)
        if not chosen_simulation.single_turn and len(instruction.shards) > max_turns:
            raise BadRecord(f"{len(instruction.shards)} shards need as many turns; max_turns is {max_turns}")
        return task_from_instruction(instruction)

    def held_out(task: Task) -> str | None:
        instruction = instruction_of_task(task)
        known = instruction.split is Split.EVALUATION or is_known_evaluation_problem(instruction)
        return "the evaluation problems of Lost in Conversation" if known else None

    def assessor_of(resources: Resources) -> Assessor:
        judge = resources.judge_model
        if classifier == "model" and judge is None:
            raise ConfigurationError("lost_in_conversation: classifier=model needs a judge; set one, or use classifier=rules")
        chosen = ModelClassifier(judge) if classifier == "model" and judge is not None else RuleClassifier()
        return Assessor(Verifiers(judge, Path(databases) if databases else None), chosen)

    def user_of(task: Task, resources: Resources) -> User:
        instruction = instruction_of_task(task)
        settings = UserSettings(resources.user_model, user_temperature)
        user = make_user(instruction, chosen_simulation, settings, preamble_of(instruction))
        if stop_when_right and not chosen_simulation.single_turn:
            return StopWhenRight(user, assessor_of(resources), instruction, chosen_simulation)
        return user

    def make_reward(resources: Resources) -> ConversationReward:
        assessor = assessor_of(resources)
        terms = reward_terms(reward, assessor, chosen_simulation, mode, premature_penalty, refusal_penalty, most_turns)
        return ConversationReward(terms)

    return Domain(
        name="lost_in_conversation",
        summary=f"Problems told {simulation} ({task}, {split}): does the policy get lost when it hears them bit by bit?",
        task_from_record=task_from_record,
        columns=("shards",),
        make_user=user_of,
        make_reward=make_reward,
        bundled="lost_in_conversation.jsonl",
        max_turns=most_turns,
        plays_to_end=True,
        held_out=held_out,
        proactive_prompt=WARNING,
    )


def _choice(kinds: Any, value: str, option: str) -> Any:
    try:
        return kinds(value)
    except ValueError:
        raise ConfigurationError(f"option {option} is {value!r}; it must be one of {', '.join(kinds)}") from None
