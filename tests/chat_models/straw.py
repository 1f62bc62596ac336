"""Engines of straw: they write down what they are asked, and a row is finished after as many steps as it may have tokens."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from simulators.chat_models.dispatcher import Row
from simulators.chat_models.token_sampler import SampledReply
from tests.training.tiny_models import tiny_tokenizer


class StrawEngine:
    """An engine of the dispatcher's. `events` is what happened, in order, rows named by their seeds.

    `before_step` is called with the rows in front of each step.
    """

    joins = True

    def __init__(self) -> None:
        self.left: dict[Row, int] = {}
        self.events: list[str] = []
        self.before_step: Callable[[list[Row]], None] = lambda rows: None
        self.threads: set[int] = set()

    def working(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def admit(self, rows: Sequence[Row]) -> None:
        if rows:
            self.events.append("admit " + " ".join(str(row.seed) for row in rows))
        self.left |= {row: row.request.sampling.max_tokens for row in rows}

    def step(self) -> list[Row]:
        self.threads.add(threading.get_ident())
        self.before_step(list(self.left))
        self.events.append("step")
        self.left = {row: count - 1 for row, count in self.left.items()}
        finished = [row for row, count in self.left.items() if count == 0]
        for row in finished:
            del self.left[row]
            self.events.append(f"finish {row.seed}")
            row.reply = SampledReply((1,) * row.request.sampling.max_tokens, None, str(row.seed), "length")
        return finished

    def abort(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if self.left.pop(row, None) is not None:
                self.events.append(f"abort {row.seed}")

    def close(self) -> None:
        self.events.append("close")


class StrawLLMEngine:
    """What a `VLLMEngine` asks of vLLM's LLMEngine.

    A prompt that holds `POISON` is refused, `broken` fails every step, and while it is `held` nothing comes to an end.
    """

    POISON = 88

    def __init__(self, context: int = 512) -> None:
        self.left: dict[str, list[int]] = {}
        self.events: list[str] = []
        self.loras: dict[int, str] = {}
        self.adapters: dict[str, Any] = {}
        self.broken = self.held = False
        self.model_config = SimpleNamespace(max_model_len=context)
        self.engine_core = SimpleNamespace(shutdown=lambda: self.events.append("shutdown"))
        self.finish_reason = "length"

    def add_request(self, number: str, prompt: dict[str, list[int]], sampling: Any, lora_request: Any) -> None:
        if self.POISON in prompt["prompt_token_ids"]:
            raise ValueError("a poisoned prompt")
        self.left[number] = [sampling.max_tokens, len(prompt["prompt_token_ids"])]
        self.adapters[number] = lora_request

    def abort_request(self, numbers: list[str]) -> None:
        for number in numbers:
            del self.left[number]
            self.events.append("abort")

    def step(self) -> list[Any]:
        if self.broken:
            raise RuntimeError("CPU Generator does not use offset\nand so on")
        if self.held:
            return []
        self.events.append(f"step {len(self.left)}")
        for counts in self.left.values():
            counts[0] -= 1
        done = [number for number, (count, _) in self.left.items() if count == 0]
        return [self._output(number, self.left.pop(number)) for number in done]

    def _output(self, number: str, counts: list[int]) -> Any:
        sample = SimpleNamespace(
            token_ids=[65, 66], text="AB", finish_reason=self.finish_reason,
            logprobs=[{65: SimpleNamespace(logprob=-0.5)}, {66: SimpleNamespace(logprob=-0.25)}],
        )  # fmt: skip
        return SimpleNamespace(request_id=number, finished=True, outputs=[sample], num_cached_tokens=2)

    def get_tokenizer(self) -> Any:
        return tiny_tokenizer()

    def add_lora(self, request: Any) -> None:
        if not request.lora_path:
            raise FileNotFoundError("no adapter")
        self.loras[request.lora_int_id] = request.lora_path

    def remove_lora(self, number: int) -> None:
        del self.loras[number]

    def reset_prefix_cache(self) -> bool:
        self.events.append("reset")
        return True

    def collective_rpc(self, method: str, kwargs: dict[str, str]) -> None:
        self.events.append(f"{method} {kwargs['weights_path']}")
        if self.broken:
            raise RuntimeError("shapes differ")
