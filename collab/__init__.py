"""What a conversation is worth, and what to do about it: tasks, rewards, MR, environments, datasets, training, evaluation.

Public names are re-exported here and loaded on first use, so `import collab` stays light (no torch, vllm or wandb).
"""

import importlib
from typing import Any

_HOMES = {
    "BadRecord": "collab.environments.domain",
    "CandidateSource": "collab.data.builder",
    "ConversationReward": "collab.rewards.conversation_reward",
    "DatasetBuilder": "collab.data.builder",
    "Domain": "collab.environments.domain",
    "Environment": "collab.environments.domain",
    "MREstimate": "collab.mr",
    "MultiturnReward": "collab.mr",
    "Resources": "collab.environments.domain",
    "RewardComponent": "collab.rewards.component",
    "ScoringError": "collab.rewards.component",
    "Task": "collab.tasks.task",
    "dpo_rows": "collab.data.views",
    "load_domain": "collab.environments.registry",
    "load_environment": "collab.environments.registry",
    "load_tasks": "collab.environments.loading",
    "sft_rows": "collab.data.views",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'collab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
