"""Settings of the online methods: what cannot work is refused before anything is loaded."""

from typing import Any

import pytest

from collab.training.online_settings import CriticSettings, GRPOSettings, OnlineDPOSettings, PPOSettings, RolloutSettings
from simulators.errors import ConfigurationError


@pytest.mark.parametrize(
    ("kind", "values", "complaint"),
    [
        (RolloutSettings, {"engine": "vlm"}, "rollout.engine is 'vlm'; it must be one of transformers, vllm_server"),
        (RolloutSettings, {"reward": "both"}, "rollout.reward"),
        (RolloutSettings, {"temperature": 0.0}, "must be above 0"),
        (RolloutSettings, {"max_tokens": 0}, "rollout.max_tokens is 0"),
        (RolloutSettings, {"window_turns": -1}, "rollout.window_turns"),
        (RolloutSettings, {"max_turns": 0}, "at least one reply"),
        (GRPOSettings, {"credit": "mr"}, "credit is 'mr'"),
        (GRPOSettings, {"variant": "ppo"}, "one of grpo, dr_grpo, dapo, gspo"),
        (GRPOSettings, {"group_size": 1}, "at least 2 conversations"),
        (GRPOSettings, {"credit": "mr_difference", "rollout": {"max_turns": 1}}, "rollout.max_turns is 1"),
        (GRPOSettings, {"credit": "mr_difference", "rollout": {"reward": "mr"}}, "set rollout.reward to outcome"),
        (GRPOSettings, {"continue_from": "worst"}, "continue_from"),
        (GRPOSettings, {"trl": {"num_generations": 4}}, "trl.num_generations is set by the method's own settings"),
        (OnlineDPOSettings, {"beta": 0.0}, "beta is 0.0"),
        (OnlineDPOSettings, {"group_size": 1}, "a pair needs at least 2"),
        (OnlineDPOSettings, {"min_gap": -0.1}, "min_gap"),
        (PPOSettings, {"kl_in": "value"}, "kl_in"),
        (PPOSettings, {"gamma": 1.5}, r"gamma is 1.5; it must lie in \[0, 1\]"),
        (PPOSettings, {"credit": "mr_branch"}, "credit is 'mr_branch'"),
        (PPOSettings, {"critic": {"kind": "head"}}, "critic.kind"),
        (CriticSettings, {"model": "some/model"}, "set kind to model"),
    ],
)
def test_what_cannot_work_is_refused(kind: Any, values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        kind(**values)


def test_settings_may_come_as_plain_mappings() -> None:
    settings = PPOSettings(rollout={"max_tokens": 7, "vllm": {"memory_share": 0.5}}, critic={"rank": 3})  # type: ignore[arg-type]
    assert (settings.rollout.max_tokens, settings.rollout.vllm.memory_share, settings.critic.rank) == (7, 0.5, 3)


def test_importing_the_recipes_parts_imports_no_torch() -> None:
    """The functions that start a run are imported by every command line; torch and TRL come only when one runs."""
    import subprocess
    import sys

    code = (
        "import sys, collab.training.grpo, collab.training.online_dpo, collab.training.online_settings, collab.training.lora;"
        "print([name for name in ('torch', 'trl', 'vllm', 'wandb', 'peft') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
