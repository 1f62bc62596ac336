"""The private parts of TRL that online training stands on, and the check that the installed TRL has them as we know them.

GRPO, online DPO and PPO are `GRPOTrainer` subclasses (TRL means its loss to be fed per-token advantages by subclasses), so they
override or call methods that TRL may change in any minor release. The version is pinned for that reason; the hooks are named
here once, checked at start, and held to their behaviour by the contract tests.
"""

from __future__ import annotations

import inspect

from simulators.errors import ConfigurationError

LOWEST, BELOW = "1.16", "1.17"
"""The supported range of TRL versions: LOWEST <= version < BELOW."""

HOOKS: dict[str, tuple[str, ...]] = {
    "_generate_and_score_completions": ("self", "inputs"),
    "_generate": ("self", "prompts"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_compute_loss": ("self", "model", "inputs"),
    "_get_per_token_logps_and_entropies": ("self", "model", "input_ids", "attention_mask", "logits_to_keep"),
    "_get_train_sampler": ("self", "dataset"),
    "_prepare_inputs": ("self", "generation_batch"),
    "_save_checkpoint": ("self", "model", "trial"),
    "log": ("self", "logs", "start_time"),
}
"""Methods of GRPOTrainer that we override or rely on, with the parameters we rely on (more may follow them)."""


def check_trl() -> None:
    """Refuse to start on a TRL whose private parts are not known to be as online training needs them.

    Raises:
        ConfigurationError: naming the installed version, or the hook that differs.
    """
    import trl
    from packaging.version import Version
    from trl import GRPOTrainer

    if not Version(LOWEST) <= Version(trl.__version__) < Version(BELOW):
        raise ConfigurationError(
            f"trl {trl.__version__} is installed, and online training builds on private parts of trl {LOWEST}; "
            f"install 'trl>={LOWEST},<{BELOW}'"
        )
    for name, expected in HOOKS.items():
        method = getattr(GRPOTrainer, name, None)
        found = tuple(inspect.signature(method).parameters) if callable(method) else ()
        if found[: len(expected)] != expected:
            raise ConfigurationError(
                f"GRPOTrainer.{name} of trl {trl.__version__} takes ({', '.join(found)}) where online training expects "
                f"({', '.join(expected)}); install 'trl>={LOWEST},<{BELOW}' as it was published"
            )
