"""Simulations with a folder, as the command runs them: a journal before every model, and files for the trees."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from collab.environments.lost_in_conversation.schema import Instruction
from collab.environments.lost_in_conversation.simulations import ALL_SIMULATIONS, Simulation
from collab.evaluation.lost_in_conversation.results import SimulationResults
from collab.evaluation.lost_in_conversation.runner import Count, SimulationSettings
from collab.evaluation.lost_in_conversation.runner import simulate as run_simulations
from simulators.chat_models.protocol import ChatModel
from simulators.journal import Journal, JournaledChatModel
from simulators.policy import Policy
from simulators.tree_file import TreeFile


async def simulate(
    instructions: Sequence[Instruction],
    policy: Policy,
    folder: Path,
    simulations: Sequence[Simulation | str] = ALL_SIMULATIONS,
    settings: SimulationSettings | None = None,
    *,
    max_open: int = 64,
    on_conversation: Callable[[], None] = lambda: None,
    count: Count = lambda outcome, error: None,
) -> SimulationResults:
    settings = settings or SimulationSettings()
    (folder / "stopped.jsonl").unlink(missing_ok=True)
    with (
        closing(Journal(folder / "journal.jsonl")) as journal,
        TreeFile(folder / "trees.jsonl") as trees,
        TreeFile(folder / "stopped.jsonl") as stopped,
    ):

        def journalled(model: ChatModel | None) -> ChatModel | None:
            return model and JournaledChatModel(model, journal)

        own = replace(
            settings,
            judge_model=journalled(settings.judge_model),
            user=replace(settings.user, model=journalled(settings.user.model)),
        )
        results = await run_simulations(
            instructions,
            replace(policy, model=JournaledChatModel(policy.model, journal)),
            trees,
            simulations,
            own,
            stopped=stopped,
            limit=asyncio.Semaphore(max_open),
            on_conversation=on_conversation,
            count=count,
        )
        results = replace(results, calls=journal.summary())
    results.write(folder)
    return results
