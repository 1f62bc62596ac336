"""Reproduce a recorded run from its journal, with zero model calls, and compare what comes of it: `collab replay RUN`.

No model is loaded: the journal holds every reply, `models.json` the names that the replies are filed under. A call that failed
fails again, in the words on record. Rewards are computed afresh, so a replay also shows whether a verifier still judges as it
did. A run may come from somebody else: code that its configuration names is run with `--trust` alone.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipes import ablation, build, evaluate, judge_noise, lost_in_conversation, online
from recipes.configuration.launch import fail, run_guarded
from recipes.configuration.schema import (
    Ablation,
    Build,
    Evaluate,
    EvolvingArms,
    JudgeNoiseConfig,
    LostInConversation,
    Online,
    Tasks,
)
from recipes.configuration.stored import stored_configuration
from recipes.running.replaying import Replayed
from recipes.running.run import Run, open_run
from simulators.errors import ConfigurationError
from simulators.object_reference import built_in_names_only

USAGE = "usage: collab replay RUN [--trust], RUN being the output folder of a run"

REPLAYS: dict[type, Callable[[Any, Run], AsyncIterator[Replayed]]] = {
    Ablation: ablation.replayed,
    Build: build.replayed,
    Evaluate: evaluate.replayed,
    EvolvingArms: evaluate.replayed,
    JudgeNoiseConfig: judge_noise.replayed,
    LostInConversation: lost_in_conversation.replayed,
    Online: online.replayed,
}
"""How each kind of run is replayed: what is recorded in its folder, each beside what its journal gives now."""


def run(folder: Path, *, trust: bool = False) -> bool:
    """Replay a run and return whether everything came out as recorded.

    Raises:
        ConfigurationError: the folder holds no run that can be replayed, one that finished no task, or code of somebody's own.
        ReplayMiss: the journal lacks a call.
    """
    config: Any = stored_configuration(folder, trust=trust)
    if type(config) not in REPLAYS:
        raise ConfigurationError(
            f"{folder} is neither a build nor an evaluation, an ablation, a judge-noise, lost-in-conversation or online training "
            "run, and only those can be replayed"
        )
    if isinstance(config, Tasks | LostInConversation | Online):
        config = replace(config, limit=None)  # it may have been lowered since
    journal = online.journal_of(config) if isinstance(config, Online) else None
    with built_in_names_only(not trust), open_run(config, journal=journal, replay=True) as run:
        replayed = run.wait_for(_all(REPLAYS[type(config)](config, run)))
        if not replayed:
            raise ConfigurationError(f"{folder} has no finished task to replay; start its command again, and replay it then")
        different = [name for name, recorded, again in replayed if recorded != again]
        counts = run.journal.counts.values()
        reused, made, failed = (sum(getattr(each, kind) for each in counts) for kind in ("reused", "made", "failed"))
    failures = f", {failed} failed as recorded" if failed else ""
    things, one = ("transcripts", "rating") if isinstance(config, JudgeNoiseConfig) else ("trees", "tree")
    print(f"{len(replayed)} {things} replayed: {reused} calls from the journal{failures}, {made} made")
    if different:
        print(f"{len(different)} differ from the record: {', '.join(different[:5])}")
    else:
        print(f"every {one} is as recorded")
    return not different


async def _all(replayed: AsyncIterator[Replayed]) -> list[Replayed]:
    return [each async for each in replayed]


def main() -> None:
    """Start the recipe from the command line; exit with 1 where something differs."""
    folders = [each for each in sys.argv[1:] if each != "--trust"]
    if len(folders) != 1 or folders[0].startswith("-"):
        fail(USAGE, status=2)
    outcome: list[bool] = []
    run_guarded(lambda: outcome.append(run(Path(folders[0]), trust="--trust" in sys.argv)))
    sys.exit(0 if outcome and outcome[0] else 1)


if __name__ == "__main__":
    main()
