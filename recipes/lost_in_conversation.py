"""The pressure test: the same problems told at once and shard by shard, many times each; aptitude and unreliability.

    collab lost-in-conversation instructions=math.jsonl runs=10 policy=vllm policy.model=Qwen/Qwen3-4B

Kill it and start the same command again to go on; more runs, instructions and simulation types can be added in the same folder.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from collab.environments.loading import BUNDLED, bundled_file
from collab.environments.lost_in_conversation.loading import load_instructions, one_cut_a_problem
from collab.environments.lost_in_conversation.schema import Instruction
from collab.environments.lost_in_conversation.simulations import Simulation, UserSettings
from collab.environments.lost_in_conversation.wording import WARNING
from collab.evaluation.lost_in_conversation.results import SimulationResults
from collab.evaluation.lost_in_conversation.runner import SimulationSettings, simulate
from collab.evaluation.paper_tables import SettingResults
from collab.evaluation.paper_tables import lost_in_conversation as paper_table
from collab.evaluation.plots import reliability_boxes
from collab.evaluation.report import Report
from collab.evaluation.statistics import Reliability
from recipes import assembly
from recipes.launch import launch
from recipes.progress import bar
from recipes.run_folder import RunFolder
from simulators.chat_models.protocol import ChatModel
from simulators.errors import ConfigurationError, did_you_mean
from simulators.policy import Policy


def run(config: Any) -> SimulationResults:
    """Run the simulations, print the table and write the report."""
    unknown = [name for name in config.simulations if name not in list(Simulation)]
    if unknown:
        raise ConfigurationError(f"unknown simulation {unknown[0]!r}; known are {', '.join(Simulation)}")
    _check_names(config)
    folder = RunFolder(config, stages=("runs", "simulations", "instructions"))  # each may be added to
    bundled = config.instructions == BUNDLED
    with bundled_file("lost_in_conversation") if bundled else nullcontext(Path(config.instructions)) as path:
        loaded = load_instructions(path, config.split, strict=config.on_bad_record == "refuse")
    instructions = one_cut_a_problem(loaded.instructions)[: config.limit]
    results = asyncio.run(_simulate(config, instructions, folder.path))
    folder.log_metrics("lost_in_conversation", **results.summary())
    for warning in results.warnings():
        print(f"note: {warning}")
    print(results.table().markdown())
    report = Report("Lost in conversation", f"{len(instructions)} instructions, {config.runs} runs of each simulation.")
    report.add_table(results.table())
    add_paper_table(report, results)
    for warning in results.warnings():
        report.add_text(warning)
    report.set_provenance(assembly.plain(config), {"run": config.seed})
    print(f"\nreport: {report.write(folder.path)}\nconversations: collab view {folder.path}\n")
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


def _check_names(config: Any) -> None:
    """Check the settings that name one of a few.

    Raises:
        ConfigurationError: naming the first that does not.
    """
    known = {"user.kind": ("scripted", "role_play"), "judge.kind": ("none", "llm"), "classifier": ("rules", "model")}
    for key, names in known.items():
        if (value := OmegaConf.select(config, key)) not in names:
            raise ConfigurationError(f"{key} is {value!r}{did_you_mean(str(value), names)}; it must be one of {', '.join(names)}")


async def _simulate(config: Any, instructions: list[Instruction], folder: Path) -> SimulationResults:
    """Run with models that the runner journals itself."""
    policy_model = assembly.backend(config.policy)
    others: dict[str, ChatModel] = {}
    if config.user.kind == "role_play":
        others["user"] = assembly.backend(config.user)
    if config.judge.kind == "llm":
        others["judge"] = assembly.backend(config.judge)
    named = {"none": None, "base": None, "proactive": WARNING}
    prompt = named.get(config.policy.prompt, config.policy.prompt)
    policy = Policy(policy_model, assembly.sampling(config.policy.sampling), prompt, name="policy")
    settings = SimulationSettings(
        runs=config.runs,
        seed=config.seed,
        user=UserSettings(others.get("user"), config.user.temperature, config.user.max_tokens),
        max_turns=config.max_turns,
        stop_when_right=config.stop_when_right,
        judge_model=others.get("judge"),
        classifier=config.classifier,
        max_open=config.max_open_tasks,
        most_failed=config.max_failure_share,
    )
    total = len(instructions) * len(config.simulations) * config.runs
    try:
        with bar("conversations", total) as advance:
            return await simulate(instructions, policy, folder, list(config.simulations), settings, on_conversation=advance)
    finally:
        for model in (policy_model, *others.values()):
            await model.aclose()


def main() -> None:
    """Start the recipe from the command line."""
    launch("lost_in_conversation", run)


if __name__ == "__main__":
    main()
