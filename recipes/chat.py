"""Talk to a policy in the terminal, see what the simulated user would have said, and keep the conversation as a tree.

    collab chat policy.adapter=outputs/sft/adapter
    collab chat environment=math_chat tasks=problems.jsonl task=3 user=role_play user.model=gpt-4o-mini

An empty line lets the simulated user speak; `/end` (or end of input) ends the conversation, saves it, and shows its R*.

Every talk has a folder of its own in `output_dir`, chat-001, chat-002, ..., with its configuration, so any may follow any other.
They share the journal: who types the same again gets the same replies without a call, and the budget is for all of them together.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from collab.environments.domain import Environment
from collab.mr import ScoredFuture, score_future
from collab.tasks.task import Task
from recipes.configuration.launch import launch
from recipes.configuration.schema import Chat
from recipes.running import assembly
from recipes.running.run import Run, open_run
from simulators.conversation import Conversation, ConversationTree, Outcome
from simulators.errors import BudgetExhausted, ChatModelError, ConfigurationError, SimulatorError
from simulators.forward_sampling import Future, Step, carry_on, future_seeds
from simulators.policy import Policy
from simulators.tree_file import TreeFile
from simulators.users.protocol import User, UserTurn


def run(config: Chat) -> None:
    """Hold one conversation."""
    root = Path(config.output_dir)
    with _own_folder(config, root) as own, open_run(own, journal=root) as run:
        tasks = assembly.tasks(config).tasks
        if not 0 <= config.task < len(tasks):
            raise ConfigurationError(
                f"task is {config.task}; {config.tasks} has {len(tasks)} tasks of split {config.split}, from 0"
            )
        run.wait_for(_chat(own, tasks[config.task], run))


@contextmanager
def _own_folder(config: Chat, root: Path) -> Iterator[Chat]:
    """Give one talk a folder of its own; where nothing was said it goes again.

    Whoever holds the journal in `root` is alone there, so a folder without trees is nobody else's: its talk was killed.
    """
    number = 1
    while (root / f"chat-{number:03d}" / "trees.jsonl").exists():
        number += 1
    folder = root / f"chat-{number:03d}"
    try:
        yield replace(config, output_dir=str(folder))
    finally:
        if folder.is_dir() and not (folder / "trees.jsonl").exists():
            for name in ("config.yaml", "versions.json"):
                (folder / name).unlink(missing_ok=True)
            if not any(folder.iterdir()):
                folder.rmdir()


async def _chat(config: Chat, task: Task, run: Run) -> None:
    environment = assembly.policy_environment(config, run.models)
    policy = assembly.policy(config.policy, run.models, environment)
    print(f"task {task.id}: {task.goal}\n(an empty line lets the simulated user speak; /end ends and saves)\n")
    future = await converse(environment, policy, task, config.seed)
    if not future.steps:
        return
    try:
        scored = await score_future(environment, task, future)
    except BudgetExhausted as error:  # the judge has nothing left; what was said is kept all the same
        scored = ScoredFuture(0, future, future.outcome, error=str(error))
    tree = ConversationTree(task.id, {"environment": environment.name, "goal": task.goal, "reference": task.reference})
    leaf = future.graft(tree, None)
    assert leaf is not None
    tree.nodes[leaf].annotations["score"] = {
        "total": scored.reward,
        "components": scored.score.components if scored.score else {},
    }
    trees = TreeFile(run.path / "trees.jsonl")
    trees.append(tree)
    trees.close()
    if scored.reward is not None:
        worth = f"R* {scored.reward:+.3f} {scored.score.components if scored.score else ''}"
    else:
        worth = f"not scored: {scored.error}" if scored.error else "not scored"
    print(f"\n{worth}\nsaved: {trees.path}")


async def converse(environment: Environment, policy: Policy, task: Task, seed: int) -> Future:
    """Hold a conversation between the terminal and a policy; return it as a future of the empty history.

    A message that nobody answered is not part of it. A spent budget ends it.
    """
    person = _Person(environment.user_for(task))
    seeds, toolbox = future_seeds(seed, task.id, 0), environment.toolbox_for(task)
    future = Future(())
    while True:
        try:
            async for step in carry_on(future, person, policy, _NO_END, seeds, toolbox):
                _show(step)
        except BudgetExhausted as error:
            print(f"  (the talk ends: {error})")
            future.over, person.left = True, True
        if future.steps and future.steps[-1].author == "user":
            future.steps.pop()
        if person.left:
            future.outcome = Outcome.ENDED
            return future
        print(f"  (the policy failed: {future.error})")
        future = Future((), future.steps)


_NO_END = 1_000_000


@dataclass
class _Person:
    """Whoever sits at the terminal, as a user; an empty line lets the simulated one speak. `left`: the talk was ended."""

    simulated: User
    left: bool = False

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Return what is typed, or what the simulated user says where nothing is."""
        while (text := await _typed()) not in (None, "/end"):
            if text:
                return UserTurn(text)
            try:
                said = await self.simulated.next_turn(conversation, seed)
            except (SimulatorError, ChatModelError) as error:
                print(f"  (the simulated user failed: {error})")
                continue
            if said.text:
                print(f"  simulated user: {said.text}")
                return UserTurn(said.text, completion=said.completion, flags=said.flags)
            print("  (the simulated user would leave now)" if said.ends else "  (the simulated user said nothing)")
        self.left = True
        return UserTurn("", ends=True)


def _show(step: Step) -> None:
    for call in step.message.tool_calls:
        print(f"  policy calls {call.name or 'a tool'}: {call.arguments}")
    if step.author == "tool":
        print(f"  result: {step.message.content}")
    elif step.author == "policy" and step.message.content:
        print(f"policy: {step.message.content}\n")


async def _typed() -> str | None:
    """Return a line from the terminal, None at the end of input; the event loop goes on meanwhile."""
    try:
        return (await asyncio.to_thread(input, "you: ")).strip()
    except EOFError:
        return None
    except RuntimeError:
        if sys.stdin is not None:
            raise
        return None  # started without an input (`<&-`), which `input` calls lost


def main() -> None:
    """Start the recipe from the command line."""
    launch(Chat, run)


if __name__ == "__main__":
    main()
