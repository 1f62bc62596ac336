"""Talk to a policy in the terminal, see what the simulated user would have said, and keep the conversation as a tree.

    collab chat policy.adapter=outputs/sft/adapter
    collab chat environment=math_chat tasks=problems.jsonl task=3 user=role_play user.model=gpt-4o-mini

An empty line lets the simulated user speak; `/end` (or end of input) ends the conversation, saves it, and shows its R*.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from collab.environments.domain import Environment
from collab.mr import score_future
from collab.tasks.task import Task
from recipes import assembly
from recipes.launch import launch
from recipes.run_folder import RunFolder
from simulators.conversation import ConversationTree, Message, Outcome
from simulators.errors import ChatModelError, ConfigurationError, SimulatorError
from simulators.forward_sampling import Future, Step, sample_reply
from simulators.policy import Policy
from simulators.seeds import derive_seed
from simulators.tree_file import TreeFile


def run(config: Any) -> None:
    """Hold one conversation."""
    folder = RunFolder(config)
    tasks = assembly.tasks(config).tasks
    if not 0 <= config.task < len(tasks):
        raise ConfigurationError(f"task is {config.task}; {config.tasks} has {len(tasks)} tasks of split {config.split}, from 0")
    with assembly.open_journal(folder.path) as journal:
        asyncio.run(_chat(config, folder.path, tasks[config.task], assembly.Models(journal)))


async def _chat(config: Any, folder: Path, task: Task, models: assembly.Models) -> None:
    try:
        environment = assembly.environment(config, models)
        policy = assembly.policy(config.policy, models, environment, name="policy")
        print(f"task {task.id}: {task.goal}\n(an empty line lets the simulated user speak; /end ends and saves)\n")
        future = await converse(environment, policy, task, config.seed)
        scored = await score_future(environment, task, future)
    finally:
        await models.aclose()
    if not future.steps:
        return
    tree = ConversationTree(task.id, {"environment": environment.name, "goal": task.goal, "reference": task.reference})
    leaf = future.graft(tree, None)
    assert leaf is not None
    tree.nodes[leaf].annotations["score"] = {
        "total": scored.reward,
        "components": scored.score.components if scored.score else {},
    }
    path = _free_path(folder)
    trees = TreeFile(path)
    trees.append(tree)
    trees.close()
    worth = (
        "not scored" if scored.reward is None else f"R* {scored.reward:+.3f} {scored.score.components if scored.score else ''}"
    )
    print(f"\n{worth}\nsaved: {path}")


async def converse(environment: Environment, policy: Policy, task: Task, seed: int) -> Future:
    """Hold a conversation between the terminal and a policy; return it as a future of the empty history."""
    future = Future((), outcome=Outcome.ENDED)
    user = environment.user_for(task)
    turn = 1
    while True:
        step = Step(Message("user", text), "user", 0) if (text := await _typed()) else None
        if text == "/end" or text is None:
            return future
        if step is None:
            try:
                said = await user.next_turn(future.conversation, derive_seed(seed, task.id, turn, "user", 0))
            except (SimulatorError, ChatModelError) as error:
                print(f"  (the simulated user failed: {error})")
                continue
            if said.ends and not said.text:
                print("  (the simulated user would leave now)")
                continue
            print(f"  simulated user: {said.text}")
            step = Step(Message("user", said.text), "user", 0, said.completion, said.flags)
        future.steps.append(step)
        try:
            reply = await sample_reply(future.conversation, policy, derive_seed(seed, task.id, turn, "policy", 0))
        except ChatModelError as error:
            print(f"  (the policy failed: {error})")
            future.steps.pop()
            continue
        future.steps.append(reply)
        print(f"policy: {reply.message.content}\n")
        turn += 1


async def _typed() -> str | None:
    """Return a line from the terminal, None at the end of input; the event loop goes on meanwhile."""
    try:
        return (await asyncio.to_thread(input, "you: ")).strip()
    except EOFError:
        return None


def _free_path(folder: Path) -> Path:
    number = 1
    while (path := folder / f"chat-{number:03d}" / "trees.jsonl").exists():
        number += 1
    return path


def main() -> None:
    """Start the recipe from the command line."""
    launch("chat", run)


if __name__ == "__main__":
    main()
