"""A rollout once more from its record: the policy's replies are in the tree, users and judges answer from the run's journal.

What comes again is what the users said and what the conversations were worth; a difference shows another user, or a verifier that
judges otherwise than it did.
"""

from __future__ import annotations

from typing import Any

from collab.environments.domain import Environment
from collab.mr import score_future
from collab.tasks.task import Task
from simulators.conversation import ConversationTree, Outcome
from simulators.forward_sampling import Future, Step, user_turn

Record = dict[int, Any]
"""By the number of a node: what a user said, or the outcome and the reward of the conversation that ends there."""


def recorded_rollout(tree: ConversationTree) -> Record:
    """Return what a tree of an online run says of its users and rewards."""
    said = {node.id: node.message.content for node in tree.nodes if node.author == "user" and node.seed is not None}
    return said | {leaf: [outcome.value, reward] for leaf, (outcome, reward) in _worths(tree).items() if outcome.earns_reward}


async def replayed_rollout(environment: Environment, task: Task, tree: ConversationTree) -> Record:
    """Return the same as it comes again.

    Raises:
        SimulatorError, ChatModelError, ConfigurationError: as users and judges do (`ReplayMiss`: a call is not on record).
    """
    task = await environment.prepare(task)
    user, again = environment.user_for(task), Record()
    for node in tree.nodes:
        if node.author == "user" and (seed := node.seed) is not None:
            heard = Future(tree.conversation(node.parent))
            await user_turn(heard, user, lambda author, turn, seed=seed: seed)  # type: ignore[misc]
            again[node.id] = heard.steps[-1].message.content if heard.steps else heard.error or ""
    for leaf, (outcome, _) in _worths(tree).items():
        if outcome.earns_reward:
            steps = [Step(node.message, node.author, node.seed or 0) for node in tree.path(leaf)]
            scored = await score_future(environment, task, Future((), steps, outcome))
            again[leaf] = [scored.outcome.value, scored.reward]
    return again


def _worths(tree: ConversationTree) -> dict[int, tuple[Outcome, float | None]]:
    """Return outcome and reward of every conversation that was scored as it stands; those of replies are means over futures."""
    found: dict[int, tuple[Outcome, float | None]] = {}
    for node in tree.nodes:
        if "mr" in node.annotations:
            for future in node.annotations["mr"]["futures"]:
                found[future["leaf"]] = (Outcome(future["outcome"]), future["reward"])
        elif "score" in node.annotations and node.outcome is not None:
            found[node.id] = (node.outcome, node.annotations["score"]["total"])
    return found
