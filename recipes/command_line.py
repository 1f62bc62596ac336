"""The `collab` command: it finds the recipe and hands the rest of the line to it. Nothing heavy is imported to show help."""

from __future__ import annotations

import importlib
import os
import sys

RECIPES: dict[tuple[str, ...], tuple[str, str]] = {
    ("demo",): ("recipes.demo", "the main job end to end on the embedded model: futures, MR, dataset, training, before/after"),
    ("build",): ("recipes.build", "build an MR-ranked dataset from tasks"),
    ("merge",): ("recipes.merge", "join the shards of a build, as if one process had built them"),
    ("import",): ("recipes.import_public", "read a dataset in the public CollabLLM columns as a run with trees and datasets"),
    ("ablation",): ("recipes.ablation", "the same replies under every reward mechanism (CollabLLM Figures 4 and 6)"),
    ("train", "sft"): ("recipes.sft", "LoRA SFT on a build's kept conversations"),
    ("train", "dpo"): ("recipes.dpo", "offline DPO on a build's pairs"),
    ("train", "grpo"): ("recipes.online", "GRPO over conversations with a simulated user"),
    ("train", "online-dpo"): ("recipes.online", "online DPO: the best and the worst reply by MR at every turn"),
    ("train", "ppo"): ("recipes.online", "PPO over conversations, with a critic of its own"),
    ("train", "online"): ("recipes.online", "the same by method=NAME, or by a method of your own: method=module:Class"),
    ("evaluate",): ("recipes.evaluate", "play whole conversations of several policies and compare them"),
    ("report",): ("recipes.report", "one report over builds, training and evaluations; by default of a small run of each"),
    ("evolving-arms",): (
        "recipes.evolving_arms",
        "the same problems told at once and with an intent that evolves, with controls",
    ),
    ("lost-in-conversation",): (
        "recipes.lost_in_conversation",
        "the same problems told at once and shard by shard: aptitude and unreliability",
    ),
    ("judge-noise",): ("recipes.judge_noise", "rate the same transcripts again and again: how noisy is a judge?"),
    ("replay",): ("recipes.replay", "reproduce a recorded run from its journal, with zero model calls"),
    ("doctor",): ("recipes.doctor", "say what this machine can do: sandbox, GPUs, packages, the embedded model"),
    ("chat",): ("recipes.chat", "talk to a policy in the terminal, beside the simulated user"),
    ("view",): ("recipes.view", "write a self-contained HTML viewer of a run's conversation trees"),
    ("model", "fetch"): ("recipes.model_fetch", "fetch the embedded default model into the user's cache"),
}

METHODS = {("train", "grpo"): "grpo", ("train", "online-dpo"): "online_dpo", ("train", "ppo"): "ppo"}
"""Commands that are one recipe with its method chosen."""

USAGE = """usage: collab COMMAND [KEY=VALUE ...] [--cfg job] [--multirun]

Train language models to collaborate over many turns.

commands:
{commands}

KEY=VALUE overrides the configuration (conf/ in the repository); `collab COMMAND --cfg job` shows it without running, and
`collab COMMAND --help` explains it.
"""
HELP = ("-h", "--help", "help")


def usage(group: str = "") -> str:
    """Return the help text, or that of the commands of a group (`train`)."""
    shown = {" ".join(words): what for words, (_, what) in RECIPES.items() if not group or words[0] == group}
    width = max(map(len, shown))
    return USAGE.format(commands="\n".join(f"  {words:<{width}}  {what}" for words, what in shown.items()))


def main(arguments: list[str] | None = None) -> None:
    """Run a command; exit with 2 and a hint where there is no such command."""
    try:
        _main(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # `collab --help | head`: who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(arguments: list[str]) -> None:
    if not arguments or arguments[0] in HELP:
        print(usage())
    elif arguments[0] in ("--version", "-V"):
        from importlib import metadata

        print(f"collab {metadata.version('collab')}")
    elif (words := _command(arguments)) is not None:
        _start(words, arguments[len(words) :])
    elif arguments[0] in {words[0] for words in RECIPES if len(words) > 1} and set(arguments[1:2]) & set(HELP):
        print(usage(arguments[0]))
    else:
        _refuse(arguments)


def _command(arguments: list[str]) -> tuple[str, ...] | None:
    """Return the command that the arguments start with, None where there is none."""
    return next((words for words in RECIPES if tuple(arguments[: len(words)]) == words), None)


def _start(words: tuple[str, ...], rest: list[str]) -> None:
    module = importlib.import_module(RECIPES[words][0])
    if any(each in HELP[:2] for each in rest):
        from recipes.configuration.explained import explained

        print(explained(words, RECIPES[words][1], module))
        return
    chosen = [f"method={METHODS[words]}"] if words in METHODS else []
    sys.argv = [f"collab {' '.join(words)}", *chosen, *rest]
    module.main()


def _refuse(arguments: list[str]) -> None:
    import difflib

    known = [" ".join(words) for words in RECIPES]
    near = difflib.get_close_matches(" ".join(arguments[:2]), known, n=1) or difflib.get_close_matches(arguments[0], known, n=1)
    hint = f"; did you mean `collab {near[0]}`?" if near else ""
    print(f"collab: there is no command {' '.join(arguments[:2])!r}{hint}\n`collab --help` lists them", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
