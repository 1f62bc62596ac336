"""Windowed forward sampling: carry a conversation on into one possible future (CollabLLM section 3.1.2).

The one place where users and policies speak. Every future is one coroutine that reads like the definition: user turn, policy
turn, until the window is full or the user leaves. There is no barrier between turns, futures, candidates or tasks; batching
belongs to the backends.

Everything that plays conversations goes through here: futures of a candidate reply, whole conversations (from an empty history,
where the first user turn is the opening), a person in the terminal, rollouts of a policy in training. Who replies is a `Replier`:
a policy at chat level, which is asked with messages, or one at token level, whose tokens are trained. So how a conversation ends,
and whose doing that was, is decided once:

    the user's model fails or overflows            infra_error     no reward
    the user says nothing, or nothing usable       user_error      no reward
    the policy's context is full, a reply is cut   truncated       scored as it stands
    the policy's reply holds nothing to see        policy_error    scored as it stands
    too many calls of tools in one turn            tool_limit      scored as it stands
    the policy's model, or a tool, fails           infra_error     no reward
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from simulators.chat_models.protocol import Completion
from simulators.conversation import Author, Conversation, ConversationTree, Departure, Message, Node, Outcome
from simulators.errors import ChatModelError, CollabError, ContextOverflow, SimulatorError, ToolError
from simulators.seeds import derive_seed
from simulators.tools import Toolbox
from simulators.users.protocol import User

SeedOf = Callable[[Author, int], int]
"""Maps (who speaks, number of the turn in the whole conversation, from 1) to the seed of that draw."""


def future_seeds(run_seed: int, task_id: str, future_index: int, candidate_index: int | None = None) -> SeedOf:
    """Return the seeds of one future. The candidate enters for the policy only: all candidates face the same users."""

    def seed_of(author: Author, turn: int) -> int:
        parts: list[str | int] = [run_seed, task_id, turn, author, future_index]
        if author == "policy" and candidate_index is not None:
            parts.append(candidate_index)
        return derive_seed(*parts)

    return seed_of


@dataclass(frozen=True, slots=True)
class Step:
    """One sampled message with its provenance."""

    message: Message
    author: Author
    seed: int
    completion: Completion | None = None
    flags: tuple[str, ...] = ()


@dataclass(slots=True)
class Future:
    """A sampled continuation of `history`. A failed one keeps what it had sampled, and says in `error` what went wrong.

    `departure` is the user's last turn where it left without a word: no message, but with the flags and the model call of one.
    `over` says that nothing can follow: the user left, or something failed.
    """

    history: Conversation
    steps: list[Step] = field(default_factory=list)
    outcome: Outcome = Outcome.WINDOW_FULL
    error: str | None = None
    departure: Step | None = None
    over: bool = False

    @property
    def conversation(self) -> Conversation:
        """History and sampled messages together; a farewell without words is not a message."""
        return (*self.history, *(step.message for step in self.steps))

    @property
    def answered(self) -> Conversation:
        """The conversation up to its last reply, without a user's message that nobody answered."""
        conversation = self.conversation
        last = max((place for place, each in enumerate(conversation, 1) if each.role == "assistant"), default=0)
        return conversation[:last]

    @property
    def first_user_turn(self) -> Step | None:
        """The user's first move in this future, None where the user said nothing."""
        return self.steps[0] if self.steps and self.steps[0].author == "user" else None

    @property
    def policy_steps(self) -> list[Step]:
        """The messages that the policy wrote in this future; calls of tools are messages of their own."""
        return [step for step in self.steps if step.author == "policy"]

    @property
    def turn(self) -> int:
        """The number of the turn that was begun last: how often the user spoke."""
        return sum(message.role == "user" for message in self.conversation)

    def end(self, outcome: Outcome, error: str | None = None) -> None:
        """Let nothing follow."""
        self.outcome, self.error, self.over = outcome, error, True

    def fail(self, error: CollabError, author: Author) -> None:
        """End by the failure of whoever was to speak."""
        self.end(blamed(error, author), str(error))

    def graft(self, tree: ConversationTree, parent: int | None) -> int | None:
        """Add the sampled messages to a tree below `parent`; return the id of the future's last node.

        Where nothing was sampled (window 0, or the user left without a word) that is `parent` itself, and the outcome is for
        the caller to keep. A departure without a word is noted at the last node (`simulators.conversation.Departure`); a tree
        without any message has no place for it.
        """
        node_id = parent
        for step in self.steps:
            node_id = add_step(tree, node_id, step).id
        if node_id is not None and node_id != parent:
            tree.nodes[node_id].outcome = self.outcome
        if node_id is not None and self.departure is not None:
            Departure(flags=self.departure.flags, **_provenance(self.departure)).write(tree.nodes[node_id])
        return node_id


def blamed(error: CollabError, author: Author) -> Outcome:
    """Return the outcome of a conversation in which `author` was to speak and failed."""
    if isinstance(error, ContextOverflow) and author == "policy":
        return Outcome.TRUNCATED
    return Outcome.USER_ERROR if isinstance(error, SimulatorError) else Outcome.INFRA_ERROR


def add_step(tree: ConversationTree, parent: int | None, step: Step) -> Node:
    """Add one sampled message to a tree, with everything known about it, and return its node."""
    details = _provenance(step)
    if step.author == "policy" and step.completion is not None:
        for name in ("context_ids", "token_ids", "logprobs"):
            if (values := getattr(step.completion, name)) is not None:
                details[name] = list(values)
    node = tree.add(parent, step.message, step.author, **details)
    if step.flags:
        node.annotations["flags"] = list(step.flags)
    return node


def _provenance(step: Step) -> dict[str, Any]:
    """Return the seed of a step and what is known of the model call behind it, as `Node` and `Departure` name it."""
    completion = step.completion
    if completion is None:
        return {"seed": step.seed}
    return {
        "seed": step.seed,
        "model": completion.model,
        "weights_version": completion.weights_version,
        "finish_reason": completion.finish_reason,
        "usage": completion.usage,
        "latency_s": completion.latency_s,
    }


class Replier(Protocol):
    """Whoever answers the user: `simulators.policy.Policy` at chat level, a policy in training at token level."""

    async def reply(self, so_far: Future, seed: int, toolbox: Toolbox | None = None) -> Completion:
        """Return one reply to a conversation that ends with a message of the user's, or with results of tools.

        Raises:
            ContextOverflow: there is no room for a reply.
            ChatModelError, ConfigurationError: as the model does.
        """
        ...

    def without_prefix(self) -> Replier:
        """Return the same policy, free to start its replies as it likes; conversations are carried on with this one."""
        ...


async def sample_future(
    history: Conversation, user: User, policy: Replier, window_turns: int, seed_of: SeedOf, toolbox: Toolbox | None = None
) -> Future:
    """Carry `history` on for at most `window_turns` policy turns and say how it ended.

    Whoever has not spoken last is next: after a reply (or in an empty history) the user. Window 0 plays nothing: the conversation
    is scored as it stands, CollabLLM's immediate reward.

    A call that fails ends this future alone, with an outcome and an error. `ConfigurationError` is not caught: it would end
    every future.

    Raises:
        ValueError: for a negative window.
        ConfigurationError: as the models do.
    """
    future = Future(history)
    async for _ in carry_on(future, user, policy, window_turns, seed_of, toolbox):
        pass
    return future


async def carry_on(
    future: Future, user: User, policy: Replier, window_turns: int, seed_of: SeedOf, toolbox: Toolbox | None = None
) -> AsyncIterator[Step]:
    """Play at most `window_turns` policy turns on; yield every step when it has been added to the future."""
    if window_turns < 0:
        raise ValueError(f"window_turns is {window_turns}; it must be 0 (score as it stands) or more")
    policy = policy.without_prefix()
    for _ in range(window_turns):
        if not future.conversation or future.conversation[-1].role != "user":
            await user_turn(future, user, seed_of)
            if future.steps and future.steps[-1].author == "user":
                yield future.steps[-1]
        if not future.over:
            async for step in policy_turn(future, policy, seed_of, toolbox):
                yield step
        if future.over:
            return


async def user_turn(future: Future, user: User, seed_of: SeedOf) -> None:
    """Add the user's next move: the opening of an empty conversation, an answer to a reply, or its leaving."""
    seed = seed_of("user", future.turn + 1)
    try:
        said = await user.next_turn(future.conversation, seed)
    except (SimulatorError, ChatModelError) as error:
        future.fail(error, "user")
        return
    step = Step(Message("user", said.text), "user", seed, said.completion, said.flags)
    opening = not future.conversation
    if said.text or not said.ends:
        future.steps.append(step)
    else:
        future.departure = step
    if said.ends:
        _leave(future, opening)
    elif not said.text.strip():
        future.end(Outcome.USER_ERROR, "the simulated user sent an empty message")


def _leave(future: Future, opening: bool) -> None:
    if opening:
        future.end(Outcome.USER_ERROR, "the simulated user left before it said anything")
    else:
        future.end(Outcome.ENDED)


async def policy_turn(future: Future, policy: Replier, seed_of: SeedOf, toolbox: Toolbox | None = None) -> AsyncIterator[Step]:
    """Add the policy's turn: a reply, after as many calls of tools as it wants and may have; yield every step of it."""
    seed, called = seed_of("policy", future.turn), 0
    while True:
        draw = seed if not called else derive_seed(seed, "call", called)
        try:
            completion = await policy.reply(future, draw, toolbox)
        except ChatModelError as error:
            future.fail(error, "policy")
            return
        step = reply_step(completion, draw, called)
        future.steps.append(step)
        yield step
        _judge_reply(future, completion, toolbox)
        if future.over or not step.message.tool_calls:
            return
        assert toolbox is not None
        if called + len(step.message.tool_calls) > toolbox.max_calls:
            future.end(Outcome.TOOL_LIMIT, f"the policy wanted more than {toolbox.max_calls} calls of tools in one turn")
            return
        for call in step.message.tool_calls:
            called += 1
            try:
                result = await toolbox.call(call, future.conversation)
            except ToolError as error:
                future.fail(error, "tool")
                return
            future.steps.append(Step(Message("tool", result, tool_call_id=call.id), "tool", draw))
            yield future.steps[-1]


def reply_step(completion: Completion, seed: int, called: int = 0) -> Step:
    """Return a completion as a step; its calls of tools get ids where the model gave none (`called` were made before)."""
    numbered = enumerate(completion.tool_calls, called + 1)
    calls = tuple(call if call.id else replace(call, id=f"call{number:05d}") for number, call in numbered)
    return Step(replace(completion.message, tool_calls=calls), "policy", seed, completion)


def _judge_reply(future: Future, completion: Completion, toolbox: Toolbox | None) -> None:
    """Decide what a reply means for its conversation: one in which any reply was cut is truncated, unless the user ends it."""
    cut = completion.finish_reason == "length"
    if cut:
        future.outcome = Outcome.TRUNCATED
    if completion.tool_calls and toolbox is not None:
        return
    if not completion.text.strip():
        outcome = Outcome.TRUNCATED if cut and completion.reasoning else Outcome.POLICY_ERROR
        future.end(outcome, nothing_to_see(completion))


def nothing_to_see(completion: Completion) -> str:
    """Say what a reply without visible text is."""
    if completion.tool_calls:
        return "the policy's reply called a tool, and there is none"
    if completion.reasoning and completion.finish_reason == "length":
        return "the policy's reply was cut off in the middle of its reasoning; raise max_tokens"
    return "the policy's reply held only reasoning" if completion.reasoning else "the policy's reply was empty"
