"""Windowed forward sampling: carry a conversation on into one possible future (CollabLLM section 3.1.2).

Every future is one coroutine that reads like the definition: user turn, policy turn, until the window is full or the user
leaves. There is no barrier between turns, futures, candidates or tasks; batching belongs to the backends.

The same function plays whole conversations: from an empty history, with the turn limit as the window, the first user turn is
the opening.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulators.chat_models.protocol import Completion
from simulators.conversation import Author, Conversation, ConversationTree, Departure, Message, Node, Outcome
from simulators.errors import ChatModelError, ContextOverflow, SimulatorError
from simulators.policy import Policy
from simulators.seeds import derive_seed
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
    """

    history: Conversation
    steps: list[Step] = field(default_factory=list)
    outcome: Outcome = Outcome.WINDOW_FULL
    error: str | None = None
    departure: Step | None = None

    @property
    def conversation(self) -> Conversation:
        """History and sampled messages together; a farewell without words is not a message."""
        return (*self.history, *(step.message for step in self.steps))

    @property
    def first_user_turn(self) -> Step | None:
        """The user's first move in this future, None where the user said nothing."""
        return self.steps[0] if self.steps and self.steps[0].author == "user" else None

    @property
    def policy_steps(self) -> list[Step]:
        """The replies the policy gave in this future."""
        return [step for step in self.steps if step.author == "policy"]

    def graft(self, tree: ConversationTree, parent: int | None) -> int | None:
        """Add the sampled messages to a tree below `parent`; return the id of the future's last node.

        Where nothing was sampled (window 0, or the user left without a word) that is `parent` itself, and the outcome is for
        the caller to keep. A departure without a word is noted at the last node (`simulators.conversation.Departure`); a tree
        without any message has no place for it.
        """
        node_id = parent
        for step in self.steps:
            node = add_step(tree, node_id, step)
            node_id = node.id
        if node_id is not None and node_id != parent:
            tree.nodes[node_id].outcome = self.outcome
        if node_id is not None and self.departure is not None:
            Departure(flags=self.departure.flags, **_provenance(self.departure)).write(tree.nodes[node_id])
        return node_id


def add_step(tree: ConversationTree, parent: int | None, step: Step) -> Node:
    """Add one sampled message to a tree, with everything known about it, and return its node."""
    details = _provenance(step)
    completion = step.completion
    if step.author == "policy" and completion is not None and completion.token_ids is not None:
        details["token_ids"] = list(completion.token_ids)
        details["logprobs"] = list(completion.logprobs) if completion.logprobs is not None else None
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


async def sample_future(history: Conversation, user: User, policy: Policy, window_turns: int, seed_of: SeedOf) -> Future:
    """Carry `history` on for at most `window_turns` turns and say how it ended.

    `history` ends with a policy reply (or is empty: then the user opens). Window 0 plays nothing: the conversation is scored
    as it stands, CollabLLM's immediate reward.

    A call that fails ends this future alone, with an outcome and an error. `ConfigurationError` is not caught: it would end
    every future.

    Raises:
        ValueError: for a negative window, or a history that ends with a user message.
        ConfigurationError: as the models do.
    """
    if window_turns < 0:
        raise ValueError(f"window_turns is {window_turns}; it must be 0 (score as it stands) or more")
    if history and history[-1].role == "user":
        raise ValueError("forward sampling starts after a policy reply; this history ends with a user message")
    future = Future(history)
    turns_so_far = sum(message.role == "user" for message in history)
    policy = policy.without_prefix()
    try:
        for turn in range(turns_so_far + 1, turns_so_far + window_turns + 1):
            seed = seed_of("user", turn)
            said = await user.next_turn(future.conversation, seed)
            step = Step(Message("user", said.text), "user", seed, said.completion, said.flags)
            if said.text or not said.ends:
                future.steps.append(step)
            else:
                future.departure = step
            if said.ends:
                future.outcome = Outcome.ENDED
                return future
            if not said.text.strip():
                raise SimulatorError("the simulated user sent an empty message")
            try:
                step = await sample_reply(future.conversation, policy, seed_of("policy", turn))
            except ContextOverflow as error:
                future.outcome, future.error = Outcome.TRUNCATED, str(error)
                return future
            future.steps.append(step)
            if (early := reply_outcome(step)) is not None:
                future.outcome = early
                if early is Outcome.POLICY_ERROR:
                    future.error = "the policy's reply was empty"
                    return future
            else:
                future.outcome = Outcome.WINDOW_FULL
    except SimulatorError as error:
        future.outcome, future.error = Outcome.USER_ERROR, str(error)
    except ChatModelError as error:
        future.outcome, future.error = Outcome.INFRA_ERROR, str(error)
    return future


async def sample_reply(conversation: Conversation, policy: Policy, seed: int) -> Step:
    """Sample one policy reply to a conversation that ends with a user message."""
    (completion,) = await policy.reply(conversation, seed)
    return Step(Message("assistant", completion.text), "policy", seed, completion)


def reply_outcome(step: Step) -> Outcome | None:
    """Return what a policy reply alone decides: empty is the policy's error, cut by the token limit is truncated."""
    if not step.message.content.strip():
        return Outcome.POLICY_ERROR
    if step.completion is not None and step.completion.finish_reason == "length":
        return Outcome.TRUNCATED
    return None
