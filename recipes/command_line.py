"""The `collab` command: it finds the recipe and hands the rest of the line to it. Nothing heavy is imported to show help."""

from __future__ import annotations

import importlib
import sys

RECIPES: dict[tuple[str, ...], tuple[str, str]] = {
    ("demo",): ("recipes.demo", "the main job end to end on the embedded model: futures, MR, dataset, training, before/after"),
    ("build",): ("recipes.build", "build an MR-ranked dataset from tasks"),
    ("merge",): ("recipes.merge", "join the shards of a build, as if one process had built them"),
    ("import",): ("recipes.import_public", "read a dataset in the public CollabLLM columns as a run with trees and datasets"),
    ("ablation",): ("recipes.ablation", "the same replies under every reward mechanism (CollabLLM Figures 4 and 6)"),
    ("train", "sft"): ("recipes.sft", "LoRA SFT on a build's kept conversations"),
    ("train", "dpo"): ("recipes.dpo", "offline DPO on a build's pairs"),
    ("train", "grpo"): ("recipes.grpo", "GRPO over conversations with a simulated user"),
    ("train", "online-dpo"): ("recipes.online_dpo", "online DPO: the best and the worst reply by MR at every turn"),
    ("train", "ppo"): ("recipes.ppo", "PPO over conversations, with a critic of its own"),
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

USAGE = """usage: collab COMMAND [KEY=VALUE ...] [--cfg job] [--multirun]

Train language models to collaborate over many turns.

commands:
{commands}

KEY=VALUE overrides the configuration (conf/ in the repository); `collab COMMAND --cfg job` shows it without running.
"""


def usage() -> str:
    """Return the help text."""
    width = max(len(" ".join(words)) for words in RECIPES)
    return USAGE.format(commands="\n".join(f"  {' '.join(words):<{width}}  {what}" for words, (_, what) in RECIPES.items()))


def main(arguments: list[str] | None = None) -> None:
    """Run a command; exit with 2 and the usage where there is no such command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return
    for words, (module, _) in RECIPES.items():
        if tuple(arguments[: len(words)]) == words:
            sys.argv = [f"collab {' '.join(words)}", *arguments[len(words) :]]
            importlib.import_module(module).main()
            return
    import difflib

    known = [" ".join(words) for words in RECIPES]
    near = difflib.get_close_matches(" ".join(arguments[:2]), known, n=1) or difflib.get_close_matches(arguments[0], known, n=1)
    hint = f"; did you mean `collab {near[0]}`?" if near else ""
    print(f"collab: there is no command {' '.join(arguments[:2])!r}{hint}\n\n{usage()}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
