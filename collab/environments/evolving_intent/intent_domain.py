"""What makes a task family evolve: how records become single-turn tasks, who takes them apart, who grades, how users talk.

An `IntentDomain` is the definition; `domain_of` makes it an environment with the options that all of them share.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collab.environments.domain import BadRecord, Domain, Resources, Unsuitable, nowhere_held_out
from collab.environments.evolving_intent.arms import arm_shapes
from collab.environments.evolving_intent.conversations import Style, evolve, plainly, repeat
from collab.environments.evolving_intent.conversion import FORMAT, Conversion, Rejected, conversion_from_record
from collab.environments.evolving_intent.personas import Persona, in_style, persona_named
from collab.environments.evolving_intent.recaps import Recap
from collab.environments.evolving_intent.rendering import Phrases
from collab.environments.evolving_intent.rewards import FinalTurn, IntentTracking
from collab.environments.evolving_intent.reworded_user import RewordedUser
from collab.environments.evolving_intent.schedule import Shape
from collab.environments.evolving_intent.tracking import ReplyVerifier, last_reply
from collab.rewards.component import RewardComponent
from collab.rewards.conversation_reward import ConversationReward
from collab.rewards.token_cost import TokenCost
from collab.tasks.task import Task
from simulators.conversation import Conversation
from simulators.errors import ConfigurationError
from simulators.seeds import derive_seed
from simulators.users.protocol import User
from simulators.users.scheduled import ScheduledUser

DEFAULT_TURNS = 7

Tools = Callable[[Task, Resources], Sequence[Callable[..., Any]]]
"""Makes the functions that the policy may call on a task."""

WORKING_PROMPT = (
    "You are helping a user who works on a task step by step. They may leave things out, correct themselves, or ask for "
    "something else. Always answer what they have asked last, with every detail at its latest value."
)


@dataclass(frozen=True, slots=True)
class IntentDomain:
    """The definition of an evolving task family.

    `convert(record, default_id, seed)` takes a record apart by rules, or raises `BadRecord` or `Rejected`; stored conversions (of
    a pool) need no rules. `verifier` grades the last reply, `reply_verifier` replies on the way (None: only the last counts).
    `metadata(conversion)` is what the verifier reads from the task. `shown(conversation, task)` is the text that is graded of a
    conversation that ends with a reply: the reply, unless the agent's work is elsewhere. `held_out` and `bundled` are as in
    `Domain`.
    """

    name: str
    summary: str
    phrases: Phrases
    convert: Callable[[Mapping[str, Any], str, int], Conversion]
    verifier: Callable[[], RewardComponent]
    reply_verifier: Callable[[], ReplyVerifier] | None = None
    metadata: Callable[[Conversion], Mapping[str, Any]] = lambda conversion: {}
    shown: Callable[[Conversation, Task], str] = last_reply
    held_out: Callable[[Task], str | None] = nowhere_held_out
    bundled: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """The options of an evolving environment, checked; see `domain_of`."""

    shapes: tuple[tuple[Shape, float], ...]
    control: str
    recap: Recap
    user: str
    persona: Persona | None
    tracking_weight: float
    exact: bool
    every_arm: bool
    seed: int


def domain_of(
    definition: IntentDomain,
    make_tools: Tools | None = None,
    *,
    turns: int | None = None,
    switches: int | None = None,
    revisions: int | None = None,
    late: int = 0,
    control: str = "none",
    recap: str = "none",
    user: str = "rules",
    persona: str | None = None,
    tracking_weight: float = 0.0,
    mixture: Mapping[int, float] | None = None,
    exact: bool = False,
    every_arm: bool = False,
    max_tool_calls: int = 8,
    seed: int = 0,
) -> Domain:
    """Return a definition as a domain.

    A conversation has `turns` turns (7 by default), `switches` and `revisions` of them what the names say (by default a third
    each of the turns after the first), the rest reveals; `late` transitions follow the final switch. `control="repeat"` asks the
    source problem `turns` times instead. `mixture` maps numbers of turns to shares ({1: 0.25, 4: 0.25, 7: 0.5}) and draws each
    task's from them, among tasks that allow the longest; it stands instead of the four numbers. `recap` is none, prompt, oracle
    or dump. `user="model"` lets the user model put the messages into words, `persona` gives the user a style. `tracking_weight`
    rewards the share of turns answered rightly. `exact` takes only tasks whose every target is known, `every_arm` only those that
    all arms of an evaluation can be played on.
    Tasks that do not allow the shape are unsuitable: they are passed over and counted. Where the family has tools,
    `max_tool_calls` bounds the calls of one turn.

    Raises:
        ConfigurationError: for a value that an option cannot have.
    """
    setting = Setting(
        shapes=_shapes(definition.name, turns, switches, revisions, late, mixture),
        control=_one_of("control", control, ("none", "repeat")),
        recap=Recap(_one_of("recap", recap, tuple(Recap))),
        user=_one_of("user", user, ("rules", "model")),
        persona=persona_named(persona) if persona else None,
        tracking_weight=tracking_weight,
        exact=exact,
        every_arm=every_arm,
        seed=seed,
    )
    if tracking_weight < 0 or (tracking_weight and definition.reply_verifier is None):
        raise ConfigurationError(
            f"option tracking_weight is {tracking_weight}; it must not be negative, and {definition.name} must grade every turn"
        )

    def task_from_record(record: Mapping[str, Any], default_id: str) -> Task:
        return task_of(definition, _conversion(definition, record, default_id, setting), setting)

    def make_user(task: Task, resources: Resources) -> User:
        evolving = task.metadata["evolving"]
        if setting.user == "rules":
            return ScheduledUser(tuple(evolving["messages"]))
        if resources.user_model is None:
            raise ConfigurationError(f"{definition.name}: user=model needs a user model; set one, or use user=rules")
        return RewordedUser(
            resources.user_model, tuple(evolving["words"]), setting.persona, evolving["preamble"], tuple(evolving["recaps"])
        )

    def make_reward(resources: Resources) -> ConversationReward:
        terms: list[tuple[RewardComponent, float]] = [(FinalTurn(definition.verifier(), definition.shown), 1.0)]
        if definition.reply_verifier is not None:
            terms.append((IntentTracking(definition.reply_verifier(), definition.shown), setting.tracking_weight))
        if resources.token_penalty is not None:
            terms.append((TokenCost(resources.count_tokens, resources.token_penalty), 1.0))
        return ConversationReward(terms)

    return Domain(
        name=definition.name,
        summary=definition.summary,
        task_from_record=task_from_record,
        columns=(),
        make_user=make_user,
        make_reward=make_reward,
        selects=_is_no_header,
        bundled=definition.bundled,
        make_tools=make_tools,
        max_tool_calls=max_tool_calls,
        held_out=definition.held_out,
        max_turns=max(shape.turns for shape, _ in setting.shapes),
        plays_to_end=True,
        proactive_prompt=WORKING_PROMPT,
    )


def domain_factory(definition: IntentDomain, tools: Callable[..., Tools] | None = None) -> Callable[..., Domain]:
    """Return the function that makes a definition a domain, with `domain_of`'s options and those of `tools`, for the registry."""
    own = inspect.signature(tools).parameters if tools is not None else {}

    @functools.wraps(domain_of)
    def domain(**options: Any) -> Domain:
        given = {name: options.pop(name) for name in own if name in options}
        return domain_of(definition, tools(**given) if tools is not None else None, **options)

    shared = [each for name, each in inspect.signature(domain_of).parameters.items() if name not in ("definition", "make_tools")]
    mine = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own.values()]
    domain.__signature__ = inspect.Signature([*shared, *mine])  # type: ignore[attr-defined]
    domain.__annotations__ = {**domain_of.__annotations__, **getattr(tools, "__annotations__", {})}
    return domain


def _is_no_header(record: Mapping[str, Any]) -> bool:
    """Select everything but the first line of a pool file."""
    return record.get("format") != FORMAT


def _conversion(definition: IntentDomain, record: Mapping[str, Any], default_id: str, setting: Setting) -> Conversion:
    """Return a record's conversion: a stored one (from a pool), or one made by rules.

    Raises:
        Unsuitable: the task cannot be taken apart, or not with certainty where that is asked for.
        BadRecord: the record is damaged, or lacks something.
    """
    try:
        if "rejected" in record:
            raise Rejected(record["rejected"]["stage"], record["rejected"]["reason"])
        if "conversion" in record:
            conversion = conversion_from_record(record["conversion"])
        else:
            conversion = definition.convert(record, default_id, setting.seed)
    except Rejected as rejection:
        raise Unsuitable(str(rejection)) from None
    except (KeyError, TypeError, ValueError) as error:
        raise BadRecord(f"field 'conversion' is not one of this project ({error!r})") from None
    if setting.exact and not conversion.exact:
        raise Unsuitable("exact=true, and not every answer of this task can be computed with certainty")
    return conversion


def task_of(definition: IntentDomain, conversion: Conversion, setting: Setting) -> Task:
    """Return the task of one conversation: what its user says, and all that grading needs.

    Raises:
        Unsuitable: when the conversion does not allow the (longest) shape, or an arm where all are asked for.
    """
    shape = _draw(setting.shapes, derive_seed(setting.seed, conversion.task.id, "turns"))
    longest = max(setting.shapes, key=lambda entry: entry[0].turns)[0]
    style = _style(conversion, setting)
    try:
        if control_is_repeat := setting.control == "repeat":
            conversation = repeat(conversion, shape.turns, definition.phrases, setting.seed, style)
        else:
            conversation = evolve(conversion, longest, definition.phrases, setting.seed, setting.recap, style)
        if shape != longest and not control_is_repeat:
            conversation = evolve(conversion, shape, definition.phrases, setting.seed, setting.recap, style)
        for arm in arm_shapes() if setting.every_arm else ():
            evolve(conversion, arm, definition.phrases, setting.seed)
    except Rejected as rejection:
        raise Unsuitable(str(rejection)) from None
    return Task(
        id=conversion.task.id,
        goal=conversion.task.text,
        reference=conversion.task.reference,
        opening=conversation.messages[0],
        metadata={
            "evolving": conversation.to_record(),
            "conversion": conversion.to_record(),
            **definition.metadata(conversion),
        },
    )


def _style(conversion: Conversion, setting: Setting) -> Style:
    """Return the persona's style where rules render it; a model is told of the persona instead."""
    persona = setting.persona
    if persona is None or setting.user != "rules":
        return plainly
    return lambda words, turn: in_style(words, persona, derive_seed(setting.seed, conversion.task.id, "style", turn))


def _shapes(
    name: str, turns: int | None, switches: int | None, revisions: int | None, late: int, mixture: Mapping[int, float] | None
) -> tuple[tuple[Shape, float], ...]:
    numbers = {"turns": turns, "switches": switches, "revisions": revisions, "late": late or None}
    if mixture is not None and (beside := [option for option, value in numbers.items() if value is not None]):
        raise ConfigurationError(
            f"{name}: option {beside[0]} stands beside mixture, which says how many turns there are; set options.mixture to null"
        )
    try:
        if mixture is None:
            turns = DEFAULT_TURNS if turns is None else turns
            third = (turns - 1) // 3
            shape = Shape(turns, third if switches is None else switches, third if revisions is None else revisions, late)
            return ((shape, 1.0),)
        lengths = [(int(length), float(share)) for length, share in mixture.items()]
        shapes = tuple((Shape(length, (length - 1) // 3, (length - 1) // 3), share) for length, share in lengths)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    if not shapes or any(share <= 0 for _, share in shapes):
        raise ConfigurationError("option mixture maps numbers of turns to shares above 0, as {1: 0.25, 4: 0.25, 7: 0.5} does")
    return shapes


def _draw(shapes: tuple[tuple[Shape, float], ...], seed: int) -> Shape:
    """Return the shape that a seed, taken as a uniform number, falls on."""
    left = seed / 2**63 * sum(share for _, share in shapes)
    for shape, share in shapes:
        left -= share
        if left < 0:
            return shape
    return shapes[-1][0]


def _one_of(option: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ConfigurationError(f"option {option} is {value!r}; it must be one of {', '.join(choices)}")
    return value
