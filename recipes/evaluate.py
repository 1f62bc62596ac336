"""Play whole conversations of several policies over held-out tasks and compare them, task by task.

    collab evaluate environment=errands policies.sft.adapter=outputs/sft/adapter

Every policy meets the same users on the same tasks. Kill it and start the same command again to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from collab.environments.domain import Environment
from collab.evaluation.clarification import clarification_figures
from collab.evaluation.run import EvaluatedConversation, evaluate, evaluated_conversations
from collab.evaluation.statistics import compare_by_task, mean_and_error
from collab.tasks.task import Task
from recipes import assembly
from recipes.launch import launch
from recipes.progress import Watch
from recipes.run_folder import RunFolder
from simulators.errors import ConfigurationError
from simulators.policy import Policy
from simulators.tree_file import TreeFile

Results = dict[str, list[EvaluatedConversation]]


def run(config: Any) -> Results:
    """Evaluate every policy of a configuration and return their conversations' figures."""
    if not config.policies:
        raise ConfigurationError("evaluate has no policies; name one, for instance policies.base.prompt=none")
    if config.runs < 1:
        raise ConfigurationError(f"runs is {config.runs}; an evaluation needs at least one run a task")
    folder = RunFolder(config)
    loaded = assembly.tasks(config)
    for problem in loaded.skipped:
        print(f"skipped: {problem}")
    results: Results = {}
    with assembly.open_journal(folder.path) as journal:
        spending = assembly.budget(config, journal)
        watch = Watch(journal, spending, config.max_failure_share)
        for name, entry in config.policies.items():
            trees = TreeFile(folder.path / str(name) / "trees.jsonl")
            try:
                models = assembly.Models(journal, spending)
                asyncio.run(_evaluate(config, str(name), entry, loaded.tasks, trees, models, watch))
                by_task = (trees.read(task.id) for task in loaded.tasks)
                results[str(name)] = list(evaluated_conversations(by_task))
            finally:
                trees.close()
            folder.log_metrics("evaluate", policy=str(name), **figures(results[str(name)]))
        folder.log_metrics("evaluate", outcomes=watch.outcomes(), calls=journal.summary())
    print_table(results)
    return results


async def _evaluate(
    config: Any, name: str, entry: Any, tasks: Sequence[Task], trees: TreeFile, models: assembly.Models, watch: Watch
) -> None:
    try:
        environment = assembly.environment(config, models)
        policy = policy_of(config, name, entry, models, environment)
        with watch.tasks(name, len(tasks)) as advance:
            await evaluate(
                policy,
                environment,
                tasks,
                trees,
                runs=config.runs,
                seed=config.seed,
                max_open_tasks=config.max_open_tasks,
                on_task=advance,
                observe=watch.observe,
            )
    finally:
        await models.aclose()


def policy_of(config: Any, name: str, entry: Any, models: assembly.Models, environment: Environment) -> Policy:
    """Return one of the policies to compare: the configured policy with the entry's prompt and adapter."""
    policy_config = config.policy.copy()
    if entry.prompt is not None:
        policy_config.prompt = entry.prompt
    return assembly.policy(policy_config, models, environment, name=name, adapter=entry.adapter)


def figures(conversations: list[EvaluatedConversation]) -> dict[str, Any]:
    """Return the mean figures of one policy; what could not be scored is counted, not averaged."""
    scored = [conversation for conversation in conversations if conversation.reward is not None]
    result: dict[str, Any] = {"conversations": len(conversations), "unscored": len(conversations) - len(scored)}
    if not scored:
        return result
    tasks = [conversation.task_id for conversation in scored]
    reward = mean_and_error([conversation.reward or 0.0 for conversation in scored], tasks)
    result |= {"r_star": reward.mean, "r_star_error": reward.std_error}
    for name in sorted({name for conversation in scored for name in conversation.components}):
        values = [conversation.components[name] for conversation in scored if name in conversation.components]
        result[name] = sum(values) / len(values)
    result["tokens"] = sum(conversation.policy_tokens for conversation in scored) / len(scored)
    result["turns"] = sum(conversation.turns for conversation in scored) / len(scored)
    replies = sum(conversation.turns for conversation in scored)
    result["asking_turns"] = sum(sum(conversation.asked) for conversation in scored) / max(1, replies)
    return result | clarification_figures(conversations)


def print_table(results: Results) -> None:
    """Print a column a policy, and how each differs from the first in R*, with a paired 95% interval."""
    from rich.console import Console
    from rich.table import Table

    rows = {name: figures(conversations) for name, conversations in results.items()}
    table = Table("")
    for name in rows:
        table.add_column(name, justify="right")
    for figure in dict.fromkeys(figure for row in rows.values() for figure in row):
        table.add_row(figure, *(_cell(row.get(figure)) for row in rows.values()))
    first = next(iter(results.values()))
    differences = ["" if conversations is first else _difference(first, conversations) for conversations in results.values()]
    if len(results) > 1:
        table.add_row("R* against the first", *differences)
    Console().print(table)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _difference(before: list[EvaluatedConversation], after: list[EvaluatedConversation]) -> str:
    try:
        interval = compare_by_task(by_task_and_run(before), by_task_and_run(after)).difference
    except ValueError:
        return "nothing to compare"
    if interval.low is None or interval.high is None:  # a single task gives no interval
        return f"{interval.estimate:+.3f}"
    return f"{interval.estimate:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def by_task_and_run(conversations: list[EvaluatedConversation]) -> dict[tuple[str, int], float | None]:
    """Return R* keyed by task and run, for paired statistics."""
    return {(conversation.task_id, conversation.run): conversation.reward for conversation in conversations}


def main() -> None:
    """Start the recipe from the command line."""
    launch("evaluate", run)


if __name__ == "__main__":
    main()
