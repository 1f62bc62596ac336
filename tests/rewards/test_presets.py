"""R* from configuration: the presets term by term, and every mistake named in one sentence."""

import json

import pytest

from collab.rewards.accuracy import MathAccuracy
from collab.rewards.bleu import Bleu, CharacterBleu
from collab.rewards.code import PassRate
from collab.rewards.component import RewardComponent
from collab.rewards.judge import AccuracyJudge
from collab.rewards.llm_extraction import LlmExtraction
from collab.rewards.presets import COMPONENTS, PRESETS, RewardTools, build_component, build_reward, preset
from collab.rewards.token_cost import TokenCost
from collab.tasks.task import Task
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Outcome
from simulators.errors import ConfigurationError
from tests.rewards.conversations import says

JUDGE = ScriptedChatModel(lambda request, rng: json.dumps({"reason": "fine", "rating": 4}))


def words(text):
    return len(text.split())


TOOLS = RewardTools(words, JUDGE)


async def test_the_paper_preset_is_the_papers_equation():
    reward = build_reward(preset("paper", "math"), TOOLS)
    score = await reward.score(says("The answer is 18."), Task("t", "g", "18"))
    assert score.components == {"accuracy": 1.0, "token_cost": pytest.approx(-5e-4 * 6), "interactivity": 0.75}
    assert score.total == pytest.approx(1.0 - 5e-4 * 6 + 0.75)


async def test_a_long_conversation_costs_at_most_one_in_the_paper_and_more_upstream():
    conversation = says("word " * 4000 + "The answer is 18.")
    task = Task("t", "g", "18")
    paper = await build_reward(preset("paper", "math"), TOOLS).score(conversation, task)
    judge = ScriptedChatModel(lambda request, rng: json.dumps({"rating": 1}))
    upstream = await build_reward(preset("upstream", "math"), RewardTools(words, judge)).score(conversation, task)
    assert paper.components["token_cost"] == -1.0
    assert upstream.components["token_cost"] == pytest.approx(-5e-4 * 4004)  # what the user wrote is left out


@pytest.mark.parametrize(
    ("kind", "penalty", "paper", "upstream"),
    [("math", 5e-4, MathAccuracy, AccuracyJudge), ("code", 5e-4, PassRate, PassRate), ("document", 1e-4, Bleu, CharacterBleu)],
)
def test_presets_term_by_term(kind, penalty, paper, upstream):
    for name, extrinsic in (("paper", paper), ("upstream", upstream)):
        terms = build_reward(preset(name, kind), TOOLS).terms
        assert [weight for _, weight in terms] == [1.0, 1.0, 1.0]
        assert type(terms[0][0]) is extrinsic
        cost = terms[1][0]
        assert isinstance(cost, TokenCost)
        assert cost.token_penalty == penalty
        assert (cost.counted, cost.capped) == (("read_and_written", True) if name == "paper" else ("read", False))
        assert terms[2][0].name == "interactivity"


def test_upstream_documents_are_extracted_by_an_llm_and_its_accuracy_judge_sees_everything():
    bleu = build_reward(preset("upstream", "document"), TOOLS).terms[0][0]
    assert isinstance(bleu.extract, LlmExtraction)
    assert build_reward(preset("upstream", "math"), TOOLS).terms[0][0].whole_conversation


@pytest.mark.parametrize("name", sorted(COMPONENTS))
def test_every_component_can_be_built_and_says_what_it_is(name):
    component = build_component(name, {}, TOOLS)
    assert isinstance(component, RewardComponent)
    low, high = component.value_range
    assert low < high
    assert component.source


def test_presets_name_known_components():
    assert {term["name"] for kinds in PRESETS.values() for term in kinds.values()} <= set(COMPONENTS)


@pytest.mark.parametrize(
    ("terms", "complaint"),
    [
        ([], "the list of components is empty"),
        (["bleu"], "entry 1 must be"),
        ([{"weight": 1}], "entry 1 must be"),
        ([{"name": "interactivty"}], r"unknown reward component 'interactivty' \(did you mean 'interactivity'\?\)"),
        ([{"name": "zzz"}], "unknown reward component 'zzz'; known are accuracy_judge, bleu"),
        ([{"name": "bleu", "wieght": 1}], r"unknown key 'wieght' \(did you mean 'weight'\?\)"),
        ([{"name": "bleu", "weight": "high"}], "weight is 'high'; it must be a finite number"),
        ([{"name": "bleu", "weight": float("nan")}], "finite number"),
        ([{"name": "bleu", "weight": True}], "finite number"),
        (
            [{"name": "token_cost", "options": {"token_penalti": 1}}],
            r"no option 'token_penalti' \(did you mean 'token_penalty'\?\)",
        ),
        ([{"name": "clarity", "options": {"x": 1}}], "it has none"),
        ([{"name": "token_cost", "options": {"token_penalty": "much"}}], "option token_penalty is 'much'"),
        ([{"name": "token_cost", "options": {"counted": "written"}}], "option counted is 'written'"),
        ([{"name": "bleu"}, {"name": "bleu"}], "names must differ"),
        ([{"name": ["bleu"]}], "unknown reward component"),
        ([{"name": "bleu", "options": 5}], "options must be a mapping"),
        ([{"name": "token_cost", "options": {"token_penalty": -1}}], "must not be negative"),
        ([{"name": "pass_rate", "options": {"wall_s": 0}}], "limit wall_s is 0"),
    ],
)
def test_mistakes_are_named(terms, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        build_reward(terms, TOOLS)


def test_a_judge_that_is_missing_is_named():
    with pytest.raises(ConfigurationError, match="interactivity needs a judge"):
        build_reward(preset("paper", "math"), RewardTools(words))
    with pytest.raises(ConfigurationError, match="bleu needs a judge"):
        build_component("bleu", {"extraction": "llm"}, RewardTools(words))


def test_unknown_presets():
    with pytest.raises(ConfigurationError, match=r"unknown reward preset 'papr' \(did you mean 'paper'\?\)"):
        preset("papr", "math")
    with pytest.raises(ConfigurationError, match="no kind 'maths'"):
        preset("paper", "maths")


async def test_weights_apply_and_weight_0_only_measures():
    reward = build_reward(
        [{"name": "contains_fact", "weight": 2}, {"name": "token_cost", "weight": 0, "options": {"token_penalty": 0.01}}], TOOLS
    )
    score = await reward.score(says("It is 18."), Task("t", "g", "18"))
    assert score.total == 2.0
    assert score.components == {"accuracy": 1.0, "token_cost": pytest.approx(-0.05)}


async def test_a_component_may_go_by_another_name():
    terms = [{"name": "math_accuracy"}, {"name": "contains_fact", "as": "by_words", "weight": 0}]
    score = await build_reward(terms, TOOLS).score(says("The answer is 18.0"), Task("t", "g", "18"))
    assert score.components == {"accuracy": 1.0, "by_words": 0.0}


async def test_a_failed_judge_leaves_no_total_but_the_other_components():
    silent = RewardTools(words, ScriptedChatModel(lambda request, rng: "no"))
    score = await build_reward(preset("paper", "math"), silent).score(says("The answer is 18."), Task("t", "g", "18"))
    assert score.total is None
    assert score.failure is Outcome.JUDGE_ERROR
    assert score.components["accuracy"] == 1.0
    assert "interactivity" in score.errors


async def test_a_failed_component_without_weight_does_not_cost_the_total():
    silent = RewardTools(words, ScriptedChatModel(lambda request, rng: "no"))
    terms = [{"name": "math_accuracy"}, {"name": "clarity", "weight": 0}]
    score = await build_reward(terms, silent).score(says("The answer is 18."), Task("t", "g", "18"))
    assert score.total == 1.0
    assert list(score.errors) == ["clarity"]
