"""Does a problem still ask the same once it is cut into shards? Decided by how well a policy solves it whole and put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from collab.environments.lost_in_conversation.schema import Split
from collab.environments.lost_in_conversation.sharding.drafts import Draft, instruction_of
from collab.environments.lost_in_conversation.simulations import Simulation
from collab.evaluation.lost_in_conversation.runner import SimulationSettings, simulate
from simulators.policy import Policy
from simulators.tree_file import TreeFile

KEEP_ABOVE = 0.8
"""Both concatenations must reach this share of FULL (section 3.2)."""
VERIFIED_IN = (Simulation.FULL, Simulation.CONCAT, Simulation.SHUFFLE_CONCAT)


async def verify(
    drafts: Sequence[Draft], policy: Policy, folder: Path, settings: SimulationSettings | None = None
) -> list[Draft]:
    """Run FULL, CONCAT and SHUFFLE-CONCAT (10 runs by default) and reject drafts whose concatenations lose too much.

    A problem that the policy never solves in full cannot be verified with it, and is rejected with that reason.

    Raises:
        ConfigurationError, StorageError: as `simulate` does (two drafts with one task_id, for one).
    """
    sound = {position: instruction_of(draft, Split.EVALUATION) for position, draft in enumerate(drafts) if not draft.rejected}
    if not sound:
        return list(drafts)
    with TreeFile(folder / "trees.jsonl") as trees:
        results = await simulate(list(sound.values()), policy, trees, VERIFIED_IN, settings)
    scores: dict[str, dict[str, list[float]]] = {instruction.id: {} for instruction in sound.values()}
    for row in results.rows:
        if (score := row.score(results.score_mode)) is not None:
            scores[row.instruction].setdefault(str(row.simulation), []).append(score * 100)
    judged = list(drafts)
    for position, instruction in sound.items():
        means = {name: sum(each) / len(each) for name, each in scores[instruction.id].items()}
        judged[position] = _judged(drafts[position], means)
    return judged


def _judged(draft: Draft, means: Mapping[str, float]) -> Draft:
    made = replace(draft, verified=means)
    if any(str(simulation) not in means for simulation in VERIFIED_IN):
        return replace(made, rejected="not verified: some simulation has no scored conversation")
    full = means[str(Simulation.FULL)]
    if full <= 0:
        return replace(made, rejected="not verified: the policy never solves the full instruction")
    for simulation in VERIFIED_IN[1:]:
        if means[str(simulation)] < KEEP_ABOVE * full:
            return replace(made, rejected=f"{simulation} reaches {means[str(simulation)]:.1f} of {full:.1f} in full")
    return made
