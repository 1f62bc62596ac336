"""Does GRPO teach a policy to follow an intent that evolves? Sums told bit by bit, a tiny model, three seeds, on CPU.

    python -m tests.benchmarks.learn_evolving [--seeds 0,1,2] [--steps 60] [--jobs 2]

The problems are GSM8K-like and take one step: two numbers, and what they make together. Our scheduler and our renderer make a
conversation of each, in which the user asks for one of the numbers first, tells the other later, corrects one of the two and then
asks for the sum (T = 4: a reveal, a revision, a switch). The policy starts from a supervised warm-up that teaches it to solve a
problem that is told at once, and to go on with the value it heard first after most corrections (`DEAF`). Then GRPO trains a LoRA
adapter on a mixture of both, as `collab train grpo environment=evolving_gsm8k` does: only the last reply is rewarded.

`single` and `evolve`: the shares of held-out problems that are solved, sampled at temperature 1, before and after training. The
last line is one JSON object with the figures of every seed; the exit status is 1 where Evolve does not double or Single drops.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from collab.environments.domain import Domain, Environment, Resources, Unsuitable
from collab.environments.evolving_intent.conversations import targets_from_record
from collab.environments.evolving_intent.conversion import BOOKS, Conversion, SourceTask
from collab.environments.evolving_intent.gsm8k.domain import NumberVerifier
from collab.environments.evolving_intent.intent import SOURCE, Argument, Counterfactual, Function, Ingredients
from collab.environments.evolving_intent.intent_domain import IntentDomain, domain_of
from collab.environments.evolving_intent.rendering import Phrases
from collab.rewards.accuracy import MathAccuracy
from collab.tasks.task import Task
from collab.training.grpo import train_grpo
from collab.training.lora import LoraSettings
from collab.training.online_settings import GRPOSettings, RolloutSettings
from collab.training.settings import OptimizationSettings
from tests.benchmarks.learn import start_process
from tests.training.tiny_models import tiny_model, tiny_tokenizer

NUMBERS = range(1, 5)
TURNS = 4
DEAF = 0.7
"""The share of warm-up conversations that ignore the correction."""
SLIPS = 0.15
"""The share of warm-up replies that are drawn at random, so that Single has room to rise as well as to fall."""
WARM_UP_STEPS = 600
HELD_OUT = 256


@dataclass(frozen=True)
class Sums:
    """The answers of all states of a problem: `values` are the numbers that x and y have at each version."""

    values: Mapping[str, list[int]]

    def answer(self, function: Function, versions: Mapping[str, int]) -> str | None:
        if not function.needs <= versions.keys():
            return None
        return str(sum(self.values[key][versions[key]] for key in function.needs))

    def to_record(self) -> dict[str, Any]:
        return {"kind": "sums", "values": dict(self.values)}


BOOKS["sums"] = lambda data: Sums(data["values"])


def conversion(record: Mapping[str, Any], default_id: str, seed: int) -> Conversion:
    """Return a problem's parts; x and y may each be told wrongly, with any other number."""
    values = {"x": record["x"], "y": record["y"]}
    others = {key: [number for number in NUMBERS if number != value] for key, value in values.items()}
    arguments = []
    for key, value in values.items():
        wrong = [Counterfactual(f"{key} is {number}.", str(value), str(number)) for number in others[key]]
        arguments.append(Argument(key, f"{key} is {value}.", tuple(wrong)))
    asked = record["asked"]
    ingredients = Ingredients(
        Function(SOURCE, "What is x plus y?", frozenset(values)),
        tuple(arguments),
        (Function("f1", f"What is {asked}?", frozenset({asked})),),
    )
    text = f"{arguments[0].text} {arguments[1].text} What is x plus y?"
    task = SourceTask(str(record["id"]), text, str(values["x"] + values["y"]))
    return Conversion(task, ingredients, Sums({key: [value, *others[key]] for key, value in values.items()}), exact=True)


PHRASES = Phrases(
    reveal=("Also, {}",),
    reveal_many=("Also, {}",),
    revision=("No, {}",),
    switch=("Now, {}",),
    switch_request=("{}",),
    repeat=("{}",),
)
SUMS = IntentDomain("sums", "Sums told bit by bit.", PHRASES, conversion, MathAccuracy, NumberVerifier)


def domain(**options: Any) -> Domain:
    return domain_of(SUMS, **options)


def problems(name: str) -> Iterator[dict[str, Any]]:
    """Yield problems without end, others for every name."""
    rng = random.Random(name)
    number = 0
    while True:
        yield {"id": f"{name}-{number}", "x": rng.choice(NUMBERS), "y": rng.choice(NUMBERS), "asked": rng.choice("xy")}
        number += 1


def tasks(made: Domain, name: str, count: int) -> list[Task]:
    """Return the first tasks of a name that the domain can play."""
    found: list[Task] = []
    for record in problems(name):
        if len(found) == count:
            break
        with contextlib.suppress(Unsuitable):
            found.append(made.task_from_record(record, ""))
    return found


def replies(task: Task, rng: random.Random) -> list[str]:
    """Return what a policy that is deaf to most corrections says in a conversation."""
    deaf, said = rng.random() < DEAF, []
    for target in targets_from_record(task.metadata["evolving"]):
        right = target.answer
        if deaf and target.stale_values:
            right = target.stale_values[0]
        if right is not None and rng.random() < SLIPS:
            right = str(rng.choice(range(2, 9)))
        said.append("= ?" if right is None else f"= {right}")
    return said


def warmed_up(folder: Path, seed: int, steps: int = WARM_UP_STEPS) -> str:
    """Train a tiny model on such conversations, all its weights, and return its folder."""
    rng = random.Random(f"warm-up/{seed}")
    played = [*tasks(domain(turns=1), f"warm-up/{seed}", 500), *tasks(domain(turns=TURNS), f"warm-up/{seed}", 1000)]
    texts = [f"user\n{message}" for task in played[-200:] for message in task.metadata["evolving"]["messages"]]
    tokenizer = tiny_tokenizer(texts=[*texts, *(f"assistant\n= {number}" for number in range(2, 9))] * 3, merges=60)
    model = tiny_model(tokenizer, seed, hidden=64, spread=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    pad = torch.nn.utils.rnn.pad_sequence
    for _ in range(steps):
        batch = [tokens_of(tokenizer, task, replies(task, rng)) for task in rng.choices(played, k=32)]
        rows, targets = zip(*batch, strict=True)
        loss = model(input_ids=pad(rows, True, 0), labels=pad(targets, True, -100)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def tokens_of(tokenizer: Any, task: Task, said: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids of a conversation in ChatML, and its labels."""
    ids: list[int] = []
    labels: list[int] = []
    for message, reply in zip(task.metadata["evolving"]["messages"], said, strict=True):
        for role, text in (("user", message), ("assistant", reply)):
            head, body, tail = (
                tokenizer(part, add_special_tokens=False).input_ids
                for part in (f"<|im_start|>{role}\n", f"{text}<|im_end|>", "\n")
            )
            ids += head + body + tail
            labels += [-100] * len(head) + (body if role == "assistant" else [-100] * len(body)) + [-100] * len(tail)
    return torch.tensor(ids), torch.tensor(labels)


def solved(model: str, adapter: Path | None, turns: int, seed: int) -> float:
    """Return the share of held-out problems that are solved, one conversation each."""
    from collab.mr import score_future
    from simulators.chat_models.protocol import SamplingSettings
    from simulators.chat_models.transformers_model import TransformersChatModel
    from simulators.forward_sampling import future_seeds, sample_future
    from simulators.policy import Policy

    environment = Environment(domain(turns=turns), Resources(len))

    async def measure() -> float:
        chat = TransformersChatModel.from_pretrained(model, str(adapter) if adapter else None, dtype="float32")
        policy = Policy(chat, SamplingSettings(max_tokens=4))

        async def one(task: Task) -> float:
            user = environment.user_for(task)
            future = await sample_future((), user, policy, environment.max_turns, future_seeds(10_000 + seed, task.id, 0))
            scored = await score_future(environment, task, future)
            assert scored.reward is not None, scored.error
            return scored.reward

        found = await asyncio.gather(*(one(task) for task in tasks(environment.domain, "held-out", HELD_OUT)))
        await chat.aclose()
        return statistics.fmean(found)

    return asyncio.run(measure())


def train(model: str, folder: Path, seed: int, steps: int) -> Path:
    """Train with GRPO on problems told at once and bit by bit, and return the adapter."""
    environment = Environment(domain(mixture={1: 0.25, TURNS: 0.75}, seed=seed), Resources(len))
    return train_grpo(
        environment,
        tasks(environment.domain, f"train/{seed}", 512),
        model,
        folder,
        settings=GRPOSettings(rollout=RolloutSettings(max_tokens=4), group_size=8, variant="grpo"),
        lora=LoraSettings(rank=8, alpha=16),
        optimization=OptimizationSettings(
            learning_rate=4e-3,
            batch_size=64,
            per_device_batch_size=64,
            max_steps=steps,
            max_length=256,
            save_steps=100_000,
        ),
        seed=seed,
    )


def work(job: tuple[int, int]) -> tuple[int, dict[str, Any]]:
    """Warm up, measure, train and measure again with one seed."""
    seed, steps = job
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(scratch)
        model = warmed_up(folder / "model", seed)
        row = {"evolve_start": solved(model, None, TURNS, seed), "single_start": solved(model, None, 1, seed)}
        began = time.perf_counter()
        adapter = train(model, folder / "run", seed, steps)
        seconds = time.perf_counter() - began
        row |= {"evolve_end": solved(model, adapter, TURNS, seed), "single_end": solved(model, adapter, 1, seed)}
    return seed, {name: round(value, 3) for name, value in row.items()} | {"steps": steps, "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), start_process) as pool:
        for seed, row in pool.map(work, [(int(seed), options.steps) for seed in options.seeds.split(",")]):
            figures[str(seed)] = row
            print(
                f"seed {seed}: Evolve {row['evolve_start']:.2f} -> {row['evolve_end']:.2f}, Single {row['single_start']:.2f} -> "
                f"{row['single_end']:.2f} in {row['steps']} steps, {row['seconds']:.0f} s",
                flush=True,
            )
    missed = [
        seed
        for seed, row in figures.items()
        if row["evolve_end"] < 2 * row["evolve_start"] or row["single_end"] < row["single_start"]
    ]
    for seed in missed:
        print(f"missed: seed {seed}: Evolve must double and Single must not drop: {figures[seed]}")
    print(json.dumps(figures))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
