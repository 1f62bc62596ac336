"""Measures collabllm 0.0.8 in its thread mode; run by `sampling.py` with a Python that has it, settings as JSON on stdin.

The wheel brings no metrics, so two are registered here that make one judge call each, like the ones this project makes. The last
line of the output is JSON: the best of several pool sizes.
"""

import json
import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", ENABLE_COLLABLLM_LOGGING="0", HF_HUB_OFFLINE="1", LITELLM_LOG="ERROR")

import litellm
from collabllm.metric import BaseMetric, SingleTurnOrChatMetric
from collabllm.reward import multiturn_aware_reward

POOLS = (8, 16, 32, 64)


def register(name: str) -> None:
    """Register a metric that asks a judge once."""

    class Judge(BaseMetric):  # type: ignore[misc]
        def __init__(self, **settings: object) -> None:
            self.settings = {"temperature": 0.0, **settings}

        def score(self, prompt, groundtruth, completion, messages=None, metadata=None):  # type: ignore[no-untyped-def]
            question = f"You are meticulous ({name}).\n{prompt}\n{groundtruth}\n{json.dumps(messages)}"
            answer = litellm.completion(**self.settings, messages=[{"role": "user", "content": question}])
            return float(json.loads(answer.choices[0].message.content)[name])

    SingleTurnOrChatMetric.register_metric(name)(Judge)


def main() -> None:
    """Run every pool size and print the best."""
    logging.getLogger().setLevel(logging.ERROR)
    litellm.suppress_debug_info = True
    settings = json.load(sys.stdin)
    for name in ("accuracy", "interactivity"):
        register(name)
    model = {"model": "openai/fake", "api_base": settings["url"] + "/v1", "api_key": "none"}

    def estimate(item: dict[str, object], futures: int = settings["futures"]) -> float:
        rewards = multiturn_aware_reward(
            task_desc="question answering",
            single_turn_prompt=item["goal"],
            single_turn_completion=item["reference"],
            chat_history=item["history"],
            metadata={},
            metric_names=["accuracy", "interactivity"],
            metric_weights=[1.0, 1.0],
            user_generation_kwargs=model,
            assistant_generation_kwargs=model,
            reward_generation_kwargs=model,
            num_samples=futures,
            max_new_turns=2 * settings["window"],  # it counts messages
            verbose=False,
        )
        return sum(rewards["MR"]) / len(rewards["MR"])

    estimate(settings["workload"][0], 1)  # its first call imports and compiles; not measured
    walls = {}
    for size in POOLS:
        started = time.perf_counter()
        with ThreadPoolExecutor(size) as pool:
            count = len(list(pool.map(estimate, settings["workload"])))
        walls[size] = time.perf_counter() - started
    best = min(walls, key=lambda size: walls[size])
    tried = ", ".join(f"{size}: {wall:.2f} s" for size, wall in walls.items())
    print(json.dumps({"pool": best, "wall_s": walls[best], "mr_per_s": count / walls[best], "tried": tried}))


if __name__ == "__main__":
    main()
