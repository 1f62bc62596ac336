"""The pressure test: the same problems told at once and shard by shard, many times each; aptitude and unreliability.

    collab lost-in-conversation instructions=math.jsonl runs=10 policy=vllm policy.model=Qwen/Qwen3-4B

Kill it and start the same command again to go on; more runs, instructions and simulation types can be added in the same folder.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from collab.environments.loading import BUNDLED, bundled_file
from collab.environments.lost_in_conversation.loading import load_instructions, one_cut_a_problem
from collab.environments.lost_in_conversation.schema import Instruction
from collab.environments.lost_in_conversation.simulations import Simulation, UserSettings
from collab.environments.lost_in_conversation.wording import WARNING
from collab.environments.users import USERS
from collab.evaluation.lost_in_conversation.results import SimulationResults
from collab.evaluation.lost_in_conversation.runner import (
    SimulationPlayer,
    SimulationSettings,
    digest_of,
    simulate,
    simulated,
)
from collab.evaluation.paper_tables import SettingResults
from collab.evaluation.paper_tables import lost_in_conversation as paper_table
from collab.evaluation.plots import reliability_boxes
from collab.evaluation.report import Report
from collab.evaluation.run import refuse_other_weights
from collab.evaluation.statistics import Reliability
from recipes.configuration.launch import launch
from recipes.configuration.schema import LostInConversation
from recipes.running import shards
from recipes.running.replaying import Replayed, compared, recorded_trees
from recipes.running.run import Run, open_run
from recipes.running.task_record import refuse_changed_digests
from simulators.errors import ConfigurationError, did_you_mean
from simulators.policy import Policy


def run(config: LostInConversation) -> SimulationResults:
    """Run the simulations, print the table and write the report."""
    refuse_unknown_names(config)
    with open_run(config) as run:
        instructions = read_instructions(config)
        refuse_changed_digests(run.path, {each.id: digest_of(each) for each in instructions})
        results = run.wait_for(_simulate(config, instructions, run))
        results = replace(results, calls=run.journal.summary())
        results.write(run.path)
        run.folder.log_metrics("lost_in_conversation", **results.summary())
    for warning in results.warnings():
        print(f"note: {warning}")
    print(results.table().markdown())
    report = Report("Lost in conversation", f"{len(instructions)} instructions, {config.runs} runs of each simulation.")
    report.add_table(results.table())
    add_paper_table(report, results)
    for warning in results.warnings():
        report.add_text(warning)
    report.set_provenance(asdict(config), {"run": config.seed})
    print(f"\nreport: {report.write(run.path)}\nconversations: collab view {run.path}\n")
    print(json.dumps({"conversations": len(results.rows), "failures": results.failures()}))
    return results


def add_paper_table(report: Report, results: SimulationResults) -> None:
    """Add the paper's Table 1 and, for each task, a box a simulation from the 10th to the 90th percentile of its runs."""
    found = {
        task: {
            str(simulation).upper(): Reliability(each.performance, each.aptitude, each.unreliability)
            for simulation, each in by_simulation.items()
        }
        for task, by_simulation in results.metrics().items()
        if task != "all"
    }
    if any(found.values()):
        report.add_table(paper_table([SettingResults("policy", task, settings) for task, settings in found.items()]))
        report.add_figure(reliability_boxes(found), "reliability", "Aptitude and unreliability by simulation")


def refuse_unknown_names(config: LostInConversation) -> None:
    """Check the settings that name one of a few.

    Raises:
        ConfigurationError: naming the first that does not.
    """
    known = {"simulation": [str(each) for each in Simulation], "user kind": list(USERS), "classifier": ["rules", "model"]}
    given = [("user kind", config.user.kind), ("classifier", config.classifier)]
    for what, name in [*(("simulation", name) for name in config.simulations), *given]:
        if name not in known[what]:
            hint = did_you_mean(name, known[what])
            raise ConfigurationError(f"unknown {what} {name!r}{hint}; known are {', '.join(known[what])}")


def read_instructions(config: LostInConversation) -> list[Instruction]:
    """Return the problems of a configuration, one cut of each."""
    bundled = config.instructions == BUNDLED
    with bundled_file("lost_in_conversation") if bundled else nullcontext(Path(config.instructions)) as path:
        loaded = load_instructions(path, config.split, strict=config.on_bad_record == "refuse")
    return one_cut_a_problem(loaded.instructions)[: config.limit]


async def _simulate(config: LostInConversation, instructions: Sequence[Instruction], run: Run) -> SimulationResults:
    policy, settings = _policy(config, run), _settings(config, run)
    trees, stopped = shards.open_trees(run.path)
    try:
        if config.policy.backend not in ("server", "scripted"):
            refuse_other_weights(trees, policy)
        total = len(instructions) * len(config.simulations) * config.runs
        with run.watch.tasks("conversations", total) as advance:
            return await simulate(
                instructions,
                policy,
                trees,
                config.simulations,
                settings,
                stopped=stopped,
                limit=asyncio.Semaphore(config.max_open_tasks),
                on_conversation=advance,
                count=run.watch.count,
            )
    finally:
        shards.close_trees(trees, stopped)


async def replayed(config: LostInConversation, run: Run) -> AsyncIterator[Replayed]:
    """Yield every recorded conversation with the one that the journal gives (`collab replay`)."""
    player = SimulationPlayer(_policy(config, run), _settings(config, run))
    kinds = [Simulation(name) for name in config.simulations]
    planned = {each.tree_id: each for each in simulated(read_instructions(config), kinds, config.runs)}
    for recorded in recorded_trees(run.path):
        if recorded.task_id not in planned:
            raise ConfigurationError(f"{run.path} holds {recorded.task_id}, which its configuration does not name any more")
        yield compared(recorded, await player.play(planned[recorded.task_id]))


def _policy(config: LostInConversation, run: Run) -> Policy:
    named = {"none": None, "base": None, "proactive": WARNING}
    prompt = named.get(config.policy.prompt, config.policy.prompt)
    return Policy(run.models.load(config.policy), config.policy.sampling.settings(), prompt, name="policy")


def _settings(config: LostInConversation, run: Run) -> SimulationSettings:
    user = run.models.load(config.user) if config.user.is_played_by_a_model else None
    return SimulationSettings(
        runs=config.runs,
        seed=config.seed,
        user=UserSettings(user, config.user.temperature, config.user.max_tokens),
        max_turns=config.max_turns,
        stop_when_right=config.stop_when_right,
        judge_model=run.models.load(config.judge) if config.judge.kind == "llm" else None,
        classifier="model" if config.classifier == "model" else "rules",
    )


def main() -> None:
    """Start the recipe from the command line."""
    launch(LostInConversation, run)


if __name__ == "__main__":
    main()
