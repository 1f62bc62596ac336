"""R* of the CollabLLM environments: extrinsic - token cost + interactivity, every weight 1 (equations 2 to 4)."""

from __future__ import annotations

from collab.environments.domain import Resources
from collab.rewards.component import RewardComponent
from collab.rewards.conversation_reward import ConversationReward
from collab.rewards.judge import interactivity_judge
from collab.rewards.token_cost import TokenCost


def paper_reward(extrinsic: RewardComponent, resources: Resources, token_penalty: float) -> ConversationReward:
    """Return R* with the domain's own lambda unless `resources` sets another; without a judge R_LLM is left out."""
    penalty = token_penalty if resources.token_penalty is None else resources.token_penalty
    terms: list[tuple[RewardComponent, float]] = [(extrinsic, 1.0), (TokenCost(resources.count_tokens, penalty), 1.0)]
    if resources.judge_model is not None:
        terms.append((interactivity_judge(resources.judge_model), 1.0))
    return ConversationReward(terms)
