"""Ablations are named variants of one run."""

import pytest

from collab.environments.lost_in_conversation.simulations import UserSettings
from collab.environments.lost_in_conversation.wording import WARNING
from collab.evaluation.lost_in_conversation.ablations import (
    ablate,
    comparison,
    gradual_sharding,
    system_prompt_variants,
    temperature_variants,
)
from collab.evaluation.lost_in_conversation.runner import SimulationSettings
from simulators.chat_models.protocol import SamplingSettings
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.errors import ConfigurationError
from simulators.policy import Policy
from tests.lost_in_conversation.assistants import Assistants, answers
from tests.lost_in_conversation.records import gold_number, math_instruction

INSTRUCTIONS = [math_instruction(number) for number in (1, 2)]
SETTINGS = SimulationSettings(runs=2)
ASSISTANTS = Assistants(INSTRUCTIONS, *answers({each.id: f"Answer: {gold_number(each)}" for each in INSTRUCTIONS}, "Answer: 7"))


def test_temperatures_of_the_assistant_and_of_a_user_that_has_one():
    policy = Policy(ScriptedChatModel(lambda request, rng: ""), SamplingSettings(temperature=0.3))
    rule_user = temperature_variants(policy, SETTINGS)
    assert [variant.name for variant in rule_user] == ["assistant_1", "assistant_0.5", "assistant_0"]
    assert [variant.policy.sampling.temperature for variant in rule_user] == [1.0, 0.5, 0.0]
    settings = SimulationSettings(user=UserSettings(policy.model))
    both = temperature_variants(policy, settings, (1.0, 0.0))
    assert [variant.name for variant in both] == [f"assistant_{a}_user_{u}" for a in (1, 0) for u in (1, 0)]
    assert [variant.settings.user.temperature for variant in both] == [1.0, 0.0, 1.0, 0.0]


async def test_the_system_prompt_ablation_tells_the_assistant_what_it_is_otherwise_not_told(tmp_path):
    prompts = []

    def script(request, rng):
        prompts.append(request.messages[0].content)
        return "Answer: 7"

    variants = system_prompt_variants(Policy(ScriptedChatModel(script), system_prompt="Be brief."), SETTINGS)
    results = await ablate(INSTRUCTIONS, variants, tmp_path, ("sharded",))
    assert list(results) == ["plain", "warned"]
    assert sum(WARNING in prompt for prompt in prompts) == len(prompts) / 2 > 0
    assert all(prompt.startswith("Be brief.") for prompt in prompts)
    table = comparison(results, "System prompt")
    assert [row.cells[0] for row in table.rows] == ["plain", "warned"] and "System prompt" in table.markdown()
    with pytest.raises(ConfigurationError, match="same name"):
        await ablate(INSTRUCTIONS, [variants[0], variants[0]], tmp_path, ("full",))


async def test_the_gradual_curve_runs_the_same_problems_in_every_number_of_shards(tmp_path):
    curve = await gradual_sharding(INSTRUCTIONS, ASSISTANTS.policy(lambda conversation: "Answer: 7", "x"), tmp_path, SETTINGS)
    assert list(curve) == [1, 2, 3, 4]
    for count, results in curve.items():
        assert {len(row.replies) for row in results.rows} == {count} and len(results.rows) == 4
    assert [row.cells[0] for row in comparison(curve, "Gradual").rows] == ["1", "2", "3", "4"]
    short = INSTRUCTIONS[1].with_shards(("How many?", "All."), "/short")
    chosen = await gradual_sharding([INSTRUCTIONS[0], short], ASSISTANTS.policy(lambda c: "7", "x"), tmp_path / "b", SETTINGS)
    assert list(chosen) == [1, 2], "only what all problems can be told in"
    with pytest.raises(ConfigurationError, match="at least one"):
        await gradual_sharding([], ASSISTANTS.perfect(), tmp_path, SETTINGS)
