"""Does every online method learn? A toy task that is solvable only by asking first, a tiny model, three seeds, on CPU.

    python -m tests.benchmarks.learn [--methods grpo,grpo_mr_difference,...] [--seeds 0,1,2] [--jobs 2]

The policy starts from a short supervised warm-up on a mix of asking and guessing (`ASKS` of its first replies ask), as an
instruction-tuned model starts from one. Every method trains a LoRA adapter on it. `start` and `end` are the mean R* of held-out
rollouts before and after (`CONVERSATIONS` for each of the letters); `steps` are optimizer steps.

With the policy frozen at an even mix of asking and guessing, PPO's critic alone is trained; `ppo_explained_variance` is the share
of the variance of returns at the second turn that its values explain (mean over the last rollouts, median over seeds). Then
training with a learning critic is compared with training with a frozen one, where half of the users tell the letter at once and
their conversations are worth more whatever the policy does: a batch mean is no baseline there. (On the toy task itself all starts
are equal, a batch mean is as good as any critic, and both end at the same reward.)

The last line is one JSON object with all figures; the exit status is 1 where a promise is not kept.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from collab.environments.domain import Environment, Resources
from collab.tasks.task import Task
from collab.training.grpo import train_grpo
from collab.training.lora import LoraSettings
from collab.training.online_dpo import train_online_dpo
from collab.training.online_settings import CriticSettings, GRPOSettings, OnlineDPOSettings, PPOSettings, RolloutSettings
from collab.training.ppo import train_ppo
from collab.training.settings import OptimizationSettings
from simulators.conversation import Conversation
from simulators.tree_file import read_trees
from simulators.users.protocol import UserTurn
from tests.training import toy
from tests.training.tiny_models import tiny_model, tiny_tokenizer

ASKS = 0.1
"""How often the warmed-up policy asks in its first reply."""

COPIES = 0.9
"""How often the warmed-up policy says the letter that it has been told."""

GOAL = 0.8
"""The reward that per-turn and outcome credit are compared by: the steps that each takes to it."""

RATE = 2e-3
"""The learning rate of all methods."""

CONVERSATIONS = 8
"""How many conversations of every letter `start` and `end` are measured on: a standard error of about 0.04 in the middle."""

CRITIC_EXPERIMENTS = ("critic", "uneven", "uneven_frozen")

METHODS = ("grpo", "grpo_mr_difference", "grpo_mr_branch", "online_dpo", "ppo")


def told_at_once(task: Task) -> bool:
    """Every other round of letters, where starts are uneven."""
    return int(task.id.removeprefix("letter-")) // len(toy.LETTERS) % 2 == 1


@dataclass(frozen=True)
class UnevenUser(toy.LetterUser):
    """A user that may open with the letter."""

    told: bool = False

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        """Open with the letter, or do what the toy's users do."""
        if not conversation and self.told:
            return UserTurn(f"It is {self.letter}.")
        return await super().next_turn(conversation, seed)


class UnevenReward(toy.SaidLetter):
    """A quarter of the reward is the letter; the rest comes with the start."""

    async def score(self, conversation: Conversation, task: Task) -> float:
        """Return a reward in [0, 1]."""
        return (await super().score(conversation, task) + 3 * told_at_once(task)) / 4


def uneven_environment() -> Environment:
    """The toy environment where starts are worth different amounts."""

    def user(task: Task, resources: Resources) -> UnevenUser:
        assert task.reference is not None
        return UnevenUser(task.reference, told=told_at_once(task))

    return toy.environment(user=user, component=UnevenReward())


def conversation(rng: random.Random, asks: float, copies: float, told: float = 0.0) -> list[tuple[str, str, bool]]:
    """One conversation of the warm-up, as (role, text, learn from it); a share of `told` opens with the letter.

    In every other one of the rest the first reply asks whatever the mix says and is not learnt from, so that there is enough to
    learn copying from.
    """
    letter = rng.choice(toy.LETTERS)
    if told and rng.random() < told:
        reply = letter if rng.random() < copies else rng.choice(toy.LETTERS)
        return [("user", f"It is {letter}.", False), ("assistant", reply, True)]
    forced = rng.random() < 0.5
    first = "?" if forced or rng.random() < asks else rng.choice(toy.LETTERS)
    messages = [("user", "Pick.", False), ("assistant", first, not forced)]
    if first == letter:
        return messages
    if first == "?":
        second = letter if rng.random() < copies else rng.choice(toy.LETTERS)
        return [*messages, ("user", f"It is {letter}.", False), ("assistant", second, True)]
    second = "?" if rng.random() < asks else rng.choice(toy.LETTERS)
    return [*messages, ("user", "No.", False), ("assistant", second, True)]


def warmed_up(folder: Path, seed: int, asks: float, copies: float = COPIES, told: float = 0.0, steps: int = 400) -> str:
    """Train a tiny model on the mix, all its weights, and return its folder."""
    tokenizer = tiny_tokenizer(texts=["user\nPick.", "assistant\n", "user\nIt is ", "user\nNo."] * 50, merges=30)
    model = tiny_model(tokenizer, seed, hidden=64, spread=0.05)
    with torch.no_grad():  # the head stays frozen later on: its logits, bounded by this norm, must leave room to become certain
        model.model.norm.weight.fill_(4.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    rng = random.Random(f"warm-up/{seed}")
    for _ in range(steps):
        rows, targets = zip(*(tokens_of(tokenizer, conversation(rng, asks, copies, told)) for _ in range(32)), strict=True)
        pad = torch.nn.utils.rnn.pad_sequence
        loss = model(input_ids=pad(rows, True, 0), labels=pad(targets, True, -100)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def tokens_of(tokenizer: Any, messages: list[tuple[str, str, bool]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids of a conversation in ChatML, and its labels."""
    ids: list[int] = []
    labels: list[int] = []
    for role, text, learn in messages:
        head, body, tail = (
            tokenizer(part, add_special_tokens=False).input_ids for part in (f"<|im_start|>{role}\n", f"{text}<|im_end|>", "\n")
        )
        ids += head + body + tail
        labels += [-100] * len(head) + (body if learn else [-100] * len(body)) + [-100] * len(tail)
    return torch.tensor(ids), torch.tensor(labels)


def mean_reward(model: str, adapter: Path | None, seed: int) -> float:
    """Return the mean R* of `CONVERSATIONS` a letter, with seeds that training never uses."""
    import asyncio

    from collab.mr import score_future
    from simulators.chat_models.protocol import SamplingSettings
    from simulators.chat_models.transformers_model import TransformersChatModel
    from simulators.forward_sampling import future_seeds, sample_future
    from simulators.policy import Policy

    environment = toy.environment()

    async def measure() -> float:
        chat = TransformersChatModel.from_pretrained(model, str(adapter) if adapter else None, dtype="float32")
        policy = Policy(chat, SamplingSettings(max_tokens=4))

        async def one(task: Any, index: int) -> float:
            user = environment.user_for(task)
            future = await sample_future((), user, policy, 2, future_seeds(10_000 + seed, task.id, index, index))
            scored = await score_future(environment, task, future)
            assert scored.reward is not None
            return scored.reward

        rewards = await asyncio.gather(*(one(task, index) for task in toy.tasks() for index in range(CONVERSATIONS)))
        await chat.aclose()
        return statistics.fmean(rewards)

    return asyncio.run(measure())


def rollout() -> RolloutSettings:
    return RolloutSettings(max_tokens=4, window_turns=1, num_samples=3, logged_conversations=100_000)


def optimization(rate: float, steps: int) -> OptimizationSettings:
    return OptimizationSettings(
        learning_rate=rate,
        batch_size=32,
        per_device_batch_size=32,
        max_steps=steps,
        max_length=256,
        save_steps=100_000,
    )


LORA = LoraSettings(rank=8, alpha=16)

CRITIC = CriticSettings(learning_rate=5e-3, rank=8, epochs=4, batch_size=32)


def train(method: str, model: str, folder: Path, seed: int, steps: int, critic: CriticSettings | None = None) -> Path:
    """Train by one method and return the adapter."""
    environment, tasks = uneven_environment() if method == "uneven" else toy.environment(), toy.tasks(64)
    common: dict[str, Any] = {"lora": LORA, "seed": seed}
    if method.startswith("grpo"):
        credit = method.removeprefix("grpo").strip("_") or "outcome"
        settings = GRPOSettings(rollout=rollout(), group_size=8, credit=credit, variant="grpo")
        return train_grpo(environment, tasks, model, folder, settings=settings, optimization=optimization(RATE, steps), **common)
    if method == "online_dpo":
        pairs = OnlineDPOSettings(rollout=rollout(), group_size=4)
        return train_online_dpo(
            environment, tasks, model, folder, settings=pairs, optimization=optimization(RATE, steps), **common
        )
    ppo = PPOSettings(rollout=rollout(), kl_beta=0.01, critic=critic or CRITIC)
    return train_ppo(environment, tasks, model, folder, settings=ppo, optimization=optimization(RATE, steps), **common)


def metrics(folder: Path, name: str) -> list[float]:
    """Return one metric over the steps of a run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def rewards_by_step(folder: Path) -> list[float]:
    """Return the mean reward of each rollout: of whole conversations, or (mr_branch) of the replies to first turns.

    Replies to later turns are left out, as they stand on a history that was chosen for being good.
    """
    by_step: dict[int, list[float]] = {}
    for tree in read_trees(folder):
        for node in tree.nodes:
            reward = node.annotations.get("score", {}).get("total")
            later = "mr" in node.annotations and len(tree.path(node.id)) > 2
            if tree.metadata["mode"] == "train" and reward is not None and not later:
                by_step.setdefault(tree.metadata["step"], []).append(reward)
    return [statistics.fmean(rewards) for _, rewards in sorted(by_step.items())]


def steps_to(rewards: list[float], goal: float, window: int = 3) -> int | None:
    """Return the first step at which the mean of the last `window` rollouts' rewards reaches the goal."""
    for step in range(window, len(rewards) + 1):
        if statistics.fmean(rewards[step - window : step]) >= goal:
            return step
    return None


def critic_alone(folder: Path, seed: int, steps: int) -> float:
    """Train PPO's critic with the policy held at an even mix and return the variance it explains at the second turn."""
    model = warmed_up(folder / "even", seed, asks=0.5, copies=1.0)
    critic = replace(CRITIC, warmup_steps=steps)
    train("ppo", model, folder / "critic", seed, steps, critic)
    return statistics.fmean(metrics(folder / "critic", "critic/explained_variance_turn_2")[-5:])


def uneven(folder: Path, seed: int, steps: int, frozen: bool) -> float:
    """Train PPO where starts are uneven and return what the policy earns where the letter must be asked for."""
    model = warmed_up(folder / "model", seed, ASKS, told=0.25)
    return mean_reward(model, train("uneven", model, folder / "run", seed, steps, replace(CRITIC, frozen=frozen)), seed)


def quietly(function: Any, *arguments: Any) -> Any:
    """Run without progress bars and logs on the terminal."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return function(*arguments)


@dataclass(frozen=True)
class Job:
    """One experiment of one seed, small enough that jobs spread evenly over processes: a method, or one with PPO's critic."""

    what: str
    seed: int
    steps: int
    base: Path

    @property
    def model(self) -> str:
        return str(self.base / "model")


def prepare(job: Job) -> float:
    """Warm up the policy that all methods of a seed start from and return what it earns."""
    return float(quietly(mean_reward, quietly(warmed_up, job.base / "model", job.seed, ASKS), None, job.seed))


def work(job: Job) -> dict[str, Any]:
    """Do one experiment and return its figures."""
    if job.what == "critic":
        return {"explained": quietly(critic_alone, job.base, job.seed, job.steps)}
    if job.what.startswith("uneven"):
        return {"end": quietly(uneven, job.base / job.what, job.seed, job.steps, job.what == "uneven_frozen")}
    began = time.perf_counter()
    adapter = quietly(train, job.what, job.model, job.base / job.what, job.seed, job.steps)
    seconds = time.perf_counter() - began
    by_step = rewards_by_step(job.base / job.what)
    return {
        "end": quietly(mean_reward, job.model, adapter, job.seed),
        "seconds": seconds,
        "goal": steps_to(by_step, GOAL),
        "curve": by_step,
    }


def start_process() -> None:
    """Set up a process that works on jobs; one thread, as models this small are not faster with more."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)


def line_of(job: Job, start: float, result: dict[str, Any]) -> str:
    """Say in a line what an experiment found."""
    if job.what == "critic":
        return f"critic alone         seed {job.seed}: explains {result['explained']:.2f} of the variance at turn 2"
    if job.what.startswith("uneven"):
        critic = "stays as it is" if job.what == "uneven_frozen" else "learns"
        return f"ppo, uneven starts   seed {job.seed}: R* {result['end']:.2f} with a critic that {critic}"
    reached = f"{GOAL} at step {result['goal']}" if result["goal"] else f"{GOAL} not reached"
    curve = " ".join(f"{value:.2f}" for value in result["curve"][::10])
    return (
        f"{job.what:20} seed {job.seed}: R* {start:.2f} -> {result['end']:.2f} in {result['seconds']:.0f} s; {reached}; {curve}"
    )


def figures_of(jobs: Sequence[Job], starts: dict[int, float], results: dict[Job, dict[str, Any]]) -> dict[str, Any]:
    """Return the last line's object."""
    figures: dict[str, Any] = {"methods": {}}
    goals: dict[str, list[int]] = {}
    ends: dict[str, list[float]] = {}
    for job in jobs:
        result = results[job]
        if job.what == "critic":
            continue
        ends.setdefault(job.what, []).append(result["end"])
        if job.what.startswith("uneven"):
            continue
        figures["methods"].setdefault(job.what, {})[str(job.seed)] = {
            "start": round(starts[job.seed], 3),
            "end": round(result["end"], 3),
            "steps": job.steps,
            "seconds": round(result["seconds"], 1),
        }
        goals.setdefault(job.what, []).append(result["goal"] or job.steps + 1)
    figures["steps_to_goal_median"] = {method: statistics.median(steps) for method, steps in goals.items()}
    if explained := [results[job]["explained"] for job in jobs if job.what == "critic"]:
        figures["ppo_explained_variance"] = round(statistics.median(explained), 3)
    if "uneven" in ends and "uneven_frozen" in ends:
        medians = {"critic": statistics.median(ends["uneven"]), "frozen_critic": statistics.median(ends["uneven_frozen"])}
        figures["ppo_uneven_end_median"] = {name: round(median, 3) for name, median in medians.items()}
    return figures


def misses(figures: dict[str, Any]) -> list[str]:
    """Return which promises the figures do not keep."""
    found = []
    for method, seeds in figures["methods"].items():
        for seed, row in seeds.items():
            if row["end"] < 2 * row["start"]:
                found.append(f"{method} seed {seed} does not double its reward: {row['start']} -> {row['end']}")
            if row["seconds"] > 180:
                found.append(f"{method} seed {seed} takes {row['seconds']} s, more than three minutes")
    goals = figures["steps_to_goal_median"]
    for method in ("grpo_mr_difference", "grpo_mr_branch"):
        if method in goals and "grpo" in goals and goals[method] > goals["grpo"]:
            found.append(f"{method} needs {goals[method]} steps to {GOAL}, outcome credit {goals['grpo']}")
    if (explained := figures.get("ppo_explained_variance", 1.0)) < 0.5:
        found.append(f"the critic explains {explained} of the variance of returns at turn 2, less than half")
    if (ends := figures.get("ppo_uneven_end_median")) and ends["critic"] < ends["frozen_critic"]:
        found.append(f"PPO ends at {ends['critic']} with a critic that learns and at {ends['frozen_critic']} with a frozen one")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join((*METHODS, *CRITIC_EXPERIMENTS)))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2, help="experiments at a time, each in one thread")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(options.jobs, get_context("spawn"), start_process) as pool,
    ):
        jobs = [
            Job(what, seed, options.steps, Path(scratch) / str(seed)) for seed in seeds for what in options.methods.split(",")
        ]
        starts = dict(zip(seeds, pool.map(prepare, [Job("", seed, 0, Path(scratch) / str(seed)) for seed in seeds]), strict=True))
        running = {pool.submit(work, job): job for job in jobs}
        results = {}
        for done in as_completed(running):
            job = running[done]
            results[job] = done.result()
            print(line_of(job, starts[job.seed], results[job]), flush=True)
    figures = figures_of(jobs, starts, results)
    found = misses(figures)
    for miss in found:
        print(f"missed: {miss}")
    print(json.dumps(figures))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
