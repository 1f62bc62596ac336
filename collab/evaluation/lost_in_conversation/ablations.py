"""The paper's ablations (sections 6 and 7): temperatures, the system prompt, and how many shards a problem is told in.

Each is a set of named variants, run by `simulate` into a folder of their own below one folder, and read as one table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collab.environments.lost_in_conversation.schema import Instruction
from collab.environments.lost_in_conversation.sharding.gradual import gradual_variants
from collab.environments.lost_in_conversation.simulations import Simulation
from collab.environments.lost_in_conversation.wording import WARNING
from collab.evaluation.lost_in_conversation.results import SimulationResults
from collab.evaluation.lost_in_conversation.runner import SimulationSettings, simulate
from collab.evaluation.tables import Column, Row, Table
from simulators.errors import ConfigurationError
from simulators.policy import Policy
from simulators.tree_file import TreeFile

TEMPERATURES = (1.0, 0.5, 0.0)
"""The paper's."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One setting of an ablation. `name` becomes a folder and a row."""

    name: str
    policy: Policy
    settings: SimulationSettings


def temperature_variants(
    policy: Policy, settings: SimulationSettings, temperatures: Sequence[float] = TEMPERATURES
) -> list[Variant]:
    """Return every pair of an assistant and (with a user model) a user temperature; the rule user has none."""
    users = temperatures if settings.user.model is not None else (settings.user.temperature,)
    return [
        Variant(
            f"assistant_{assistant:g}" + (f"_user_{user:g}" if settings.user.model is not None else ""),
            replace(policy, sampling=replace(policy.sampling, temperature=assistant)),
            replace(settings, user=replace(settings.user, temperature=user)),
        )
        for assistant in temperatures
        for user in users
    ]


def system_prompt_variants(policy: Policy, settings: SimulationSettings) -> list[Variant]:
    """Return the policy as it is, and told that the user may reveal things bit by bit (the paper: +1 point)."""
    warned = "\n\n".join(part for part in (policy.system_prompt, WARNING) if part)
    return [Variant("plain", policy, settings), Variant("warned", replace(policy, system_prompt=warned), settings)]


async def ablate(
    instructions: Sequence[Instruction], variants: Sequence[Variant], folder: Path, simulations: Sequence[Simulation | str]
) -> dict[str, SimulationResults]:
    """Run every variant and return its results by name.

    Raises:
        ConfigurationError: two variants with one name, or as `simulate` does.
    """
    if len({variant.name for variant in variants}) < len(variants):
        raise ConfigurationError("two variants of an ablation have the same name")
    found = {}
    for variant in variants:
        with TreeFile(folder / variant.name / "trees.jsonl") as trees:
            found[variant.name] = await simulate(instructions, variant.policy, trees, simulations, variant.settings)
    return found


async def gradual_sharding(
    instructions: Sequence[Instruction],
    policy: Policy,
    folder: Path,
    settings: SimulationSettings,
    counts: Sequence[int] | None = None,
) -> dict[int, SimulationResults]:
    """Run SHARDED with each problem told in k shards, for every k that all instructions reach; k = 1 is a single turn.

    Comparing different k on different problems would mix difficulty in, hence only what all can be told in.

    Raises:
        ConfigurationError: no instructions, or as `simulate` does.
    """
    if not instructions:
        raise ConfigurationError("gradual sharding needs at least one instruction")
    most = min(len(instruction.shards) for instruction in instructions)
    wanted = [count for count in counts or range(1, most + 1) if count <= most]
    variants = [gradual_variants(instruction, tuple(wanted)) for instruction in instructions]
    found = {}
    for count in wanted:
        told = [variant[count] for variant in variants]
        with TreeFile(folder / f"k{count}" / "trees.jsonl") as trees:
            found[count] = await simulate(told, policy, trees, (Simulation.SHARDED,), settings)
    return found


def comparison(results: Mapping[str, SimulationResults] | Mapping[int, SimulationResults], caption: str) -> Table:
    """Return P, A90, U and R over all instructions, one row a variant and simulation."""
    rows = []
    for name, each in results.items():
        for simulation, found in each.metrics().get("all", {}).items():
            cells = (found.performance, found.aptitude, found.unreliability, found.reliability)
            rows.append(Row((str(name), str(simulation), *cells)))
    columns = (Column("Variant"), Column("Simulation"), *(Column(name, 1) for name in ("P", "A90", "U", "R")))
    return Table(caption, columns, tuple(rows), "Points of 0 to 100; 95% bootstrap intervals over instructions.")
