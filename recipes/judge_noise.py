"""How much of a judge's rating is noise? The same transcripts of a run, rated again and again with the scale in both orders.

collab judge-noise run=outputs/build/math_chat judge=llm judge.model=gpt-4o-mini repeats=5
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from collab.data.views import kept_nodes
from collab.rewards.component import ScoringError
from collab.rewards.judge import Judge, clarity_judge, helpfulness_judge, interactivity_judge
from collab.rewards.judge_noise import JudgeNoise, measure_judge_noise
from collab.tasks.task import Task
from recipes.configuration.launch import launch
from recipes.configuration.schema import JudgeNoiseConfig
from recipes.running.replaying import Replayed
from recipes.running.run import Run, open_run
from simulators.conversation import Conversation, ConversationTree, Outcome
from simulators.errors import ConfigurationError, did_you_mean
from simulators.tree_file import read_trees
from simulators.whole_file import write_whole

JUDGES = {"interactivity": interactivity_judge, "helpfulness": helpfulness_judge, "clarity": clarity_judge}
RATINGS = "ratings.json"


@dataclass(frozen=True, slots=True)
class WatchedJudge(Judge):
    """A judge whose every rating is counted, as a conversation of a run is."""

    count: Callable[[Outcome, str | None], None] = lambda outcome, error: None
    advance: Callable[[], None] = lambda: None

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return the judge's rating.

        Raises:
            ScoringError, ConfigurationError: as `Judge.score` does.
            TooManyFailures: so many ratings failed that the others say nothing.
        """
        try:
            rating = await Judge.score(self, conversation, task)
        except ScoringError as error:
            self.count(error.outcome, str(error))
            raise
        finally:
            self.advance()
        self.count(Outcome.ENDED, None)
        return rating


def run(config: JudgeNoiseConfig) -> JudgeNoise:
    """Measure, print and store a judge's noise."""
    if config.rubric not in JUDGES:
        raise ConfigurationError(
            f"unknown rubric {config.rubric!r}{did_you_mean(config.rubric, JUDGES)}; known are {', '.join(JUDGES)}"
        )
    if config.repeats < 2:
        raise ConfigurationError(f"repeats is {config.repeats}; noise shows from 2 on")
    transcripts = read_transcripts(config)
    with open_run(config) as run:
        with run.watch.tasks("ratings", 2 * config.repeats * len(transcripts)) as advance:
            noise = run.wait_for(_measure(config, run, transcripts, advance))
        figures = {name: value for name, value in asdict(noise).items() if name != "transcripts"}
        run.log("judge_noise", **figures)
        write_whole(run.path / RATINGS, f"{json.dumps(_ratings(noise), indent=1)}\n".encode())
    for name, value in figures.items():
        print(f"{name:<15} {value if not isinstance(value, float) else f'{value:.3f}'}")
    return noise


async def replayed(config: JudgeNoiseConfig, run: Run) -> AsyncIterator[Replayed]:
    """Yield the recorded ratings of every transcript with those that the journal gives (`collab replay`)."""
    recorded = json.loads((run.path / RATINGS).read_text()) if (run.path / RATINGS).is_file() else {}
    again = _ratings(await _measure(config, run, read_transcripts(config))) if recorded else {}
    for task_id, ratings in recorded.items():
        yield task_id, ratings, again.get(task_id)


async def _measure(
    config: JudgeNoiseConfig, run: Run, transcripts: list[tuple[Conversation, Task]], advance: Callable[[], None] = lambda: None
) -> JudgeNoise:
    judge = JUDGES[config.rubric](run.models.load(config.judge))
    settings = {each.name: getattr(judge, each.name) for each in fields(judge)}
    watched = WatchedJudge(**settings, count=run.watch.count, advance=advance)
    return await measure_judge_noise(watched, transcripts, config.repeats)


def _ratings(noise: JudgeNoise) -> dict[str, Any]:
    """Return every rating by transcript and order of the anchors, as plain data."""
    return {each.task_id: [list(each.lowest_first), list(each.highest_first)] for each in noise.transcripts}


def read_transcripts(config: JudgeNoiseConfig) -> list[tuple[Conversation, Task]]:
    """Return the transcripts to rate, each with its task.

    Raises:
        ConfigurationError: the run holds none.
    """
    found = [transcript(tree) for tree in read_trees(Path(config.run))][: config.limit]
    if not found:
        raise ConfigurationError(f"{config.run} holds no conversation to rate")
    return found


def transcript(tree: ConversationTree) -> tuple[Conversation, Task]:
    """Return the kept conversation of a built tree (or the first one of an evaluated tree), and its task."""
    kept = kept_nodes(tree)
    leaf = kept[-1].id if kept else next(tree.leaves()).id
    task = Task(tree.task_id, str(tree.metadata.get("goal", "")), tree.metadata.get("reference"))
    return tree.conversation(leaf), task


def main() -> None:
    """Start the recipe from the command line."""
    launch(JudgeNoiseConfig, run)


if __name__ == "__main__":
    main()
