"""Candidate replies to one history, and where the conversation goes on: what the dataset builder and training by turns share.

A candidate is a whole policy turn, calls of tools included. All candidates of a turn are sampled at once; the conversation goes
on with the chosen one and *the first user turn of one of its own futures*: the first that did not fail. Futures are exchangeable,
so that is a fair draw from the simulated user; taking the longest one, as CollabLLM's reference implementation does, is biased
against ending. With window 0 there are no futures, and the user is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from collab.environments.domain import Environment
from collab.mr import MREstimate
from collab.tasks.task import Task
from simulators.conversation import ConversationTree, Outcome
from simulators.forward_sampling import Future, Replier, SeedOf, Step, add_step, policy_turn, user_turn
from simulators.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class CandidateTurn:
    """One policy turn after a history. `path` ends with it; `steps` are the turn's own."""

    path: Future
    steps: tuple[Step, ...]

    @property
    def failed(self) -> bool:
        """True where the policy could not reply: for lack of room, or as its model failed."""
        return not self.steps or self.steps[-1].author == "tool" or not self.path.outcome.earns_reward

    @property
    def answerable(self) -> bool:
        """True for a reply that a user can read; one that holds nothing to see ends its conversation."""
        return not self.path.over

    def graft(self, tree: ConversationTree, parent: int | None) -> int:
        """Add the turn to a tree and return the id of its last node."""
        for step in self.steps:
            parent = add_step(tree, parent, step).id
        assert parent is not None
        return parent


async def sample_turn(history: Future, policy: Replier, seed_of: SeedOf, environment: Environment, task: Task) -> CandidateTurn:
    """Sample one policy turn after a path that ends with a user's message."""
    path = Future(history.history, list(history.steps))
    steps = [step async for step in policy_turn(path, policy, seed_of, environment.toolbox_for(task))]
    return CandidateTurn(path, tuple(steps))


async def candidate_turn(
    environment: Environment, task: Task, history: Future, policy: Replier, run_seed: int, turn: int, index: int
) -> CandidateTurn:
    """Sample candidate `index` of a turn, with the seed that it has wherever candidates are ranked."""
    seed = derive_seed(run_seed, task.id, turn, "candidate", index)
    return await sample_turn(history, policy, lambda author, number: seed, environment, task)


def next_user_node(tree: ConversationTree, candidate_id: int, estimate: MREstimate) -> int | None:
    """Return the node of the first user turn of the first unfailed future, None where that user left."""
    children = iter(tree.children(candidate_id))
    for scored in estimate.futures:
        child = next(children) if scored.future.steps else None
        if scored.reward is None:
            continue
        left = scored.outcome is Outcome.ENDED and len(scored.future.steps) <= 1
        return None if child is None or left else child.id
    return None


async def ask_user(tree: ConversationTree, after: int | None, environment: Environment, task: Task, seed_of: SeedOf) -> Future:
    """Let the user speak where no future holds its turn (the opening; window 0) and add what it says to the tree."""
    future = Future(tree.conversation(after))
    await user_turn(future, environment.user_for(task), seed_of)
    if not future.over:
        future.graft(tree, after)
        tree.nodes[-1].outcome = None  # it goes on
    return future
