"""R* of the CollabLLM environments: extrinsic - token cost + interactivity, every weight 1 (equations 2 to 4)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from collab.environments.domain import Resources
from collab.rewards.conversation_reward import ConversationReward
from collab.rewards.presets import RewardTools, TaskKind, build_reward, preset


def collabllm_reward(
    kind: TaskKind, resources: Resources, name: str = "paper", extrinsic: Mapping[str, Any] | None = None
) -> ConversationReward:
    """Return R* of a preset (`collab.rewards.presets`: paper or upstream) for a kind of task.

    `extrinsic` are options of the extrinsic component. Lambda is the preset's (Table 6) unless `resources` sets another. Without
    a judge the paper's R* goes without R_LLM: rules only.

    Raises:
        ConfigurationError: an unknown preset or option; a component that needs a judge where there is none.
    """
    terms = copy.deepcopy(preset(name, kind))
    terms[0]["options"] |= extrinsic or {}
    if resources.token_penalty is not None:
        terms[1]["options"]["token_penalty"] = resources.token_penalty
    if name == "paper" and resources.judge_model is None:
        del terms[2]
    return build_reward(terms, RewardTools(resources.count_tokens, resources.judge_model))
