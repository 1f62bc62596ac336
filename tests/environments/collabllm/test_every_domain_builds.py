"""Each of the four domains, built with a scripted and with a role-play user, under its Base and its Proactive Base prompt."""

import json
import random

import pytest

from collab.data.builder import CandidateSource, DatasetBuilder
from collab.data.views import candidates, dpo_rows, kept_nodes, mr_of
from collab.environments.domain import Environment, Resources
from collab.environments.loading import load_tasks
from collab.environments.registry import load_domain, load_environment
from collab.evaluation.run import evaluated_conversations, evaluated_tree
from collab.mr import MultiturnReward, ScoredFuture
from simulators.chat_models.protocol import ChatRequest
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import ConversationTree, Outcome
from simulators.errors import ChatModelError
from simulators.policy import Policy
from tests.environments.collabllm.conftest import model_that
from tests.environments.collabllm.test_bundled_tasks import DOMAINS
from tests.scripted_environment import count_words


def policy_script(request: ChatRequest, rng: random.Random) -> str:
    """Asks under the proactive prompt, answers otherwise."""
    if "ask" in request.messages[0].content and request.messages[0].role == "system":
        return rng.choice(("What should it do?", "Which one do you mean?"))
    return rng.choice(("The answer is 27.", "```python\ndef f():\n    return 1\n```", "A short article about a shop."))


def person(request: ChatRequest) -> str:
    if "article into the brief" in request.messages[0].content:
        return "A piece about something that happened in a town, in about 120 words."
    leaves = request.messages[1].content.count("<assistant>") >= 2
    return json.dumps({"thought": "hm", "message": "ok, and now?", "done": leaves})


async def built(name: str, resources: Resources, tasks: int = 2) -> list[ConversationTree]:
    environment = load_environment(name, resources)
    model = ScriptedChatModel(policy_script)
    base = Policy(model, system_prompt=environment.domain.base_prompt, name="base")
    proactive = Policy(model, system_prompt=environment.domain.proactive_prompt, name="proactive")
    reward = MultiturnReward(environment, base, window_turns=1, num_samples=2)
    builder = DatasetBuilder(environment, reward, [CandidateSource(base, 2), CandidateSource(proactive, 2)], max_turns=2)
    return [await builder.build(task) for task in load_tasks("bundled", environment.domain, limit=tasks).tasks]


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("user", ["scripted", "role_play"])
async def test_trees_have_kept_conversations_and_ranked_candidates(name: str, user: str) -> None:
    model = model_that(person, "person") if user == "role_play" else None
    trees = await built(name, Resources(count_words, user_model=model))
    for tree in trees:
        assert "stopped" not in tree.metadata
        kept = kept_nodes(tree)
        assert [node.message.role for node in kept][:2] == ["user", "assistant"]
        for node in kept[::2]:
            assert all(mr_of(reply) is not None for reply in candidates(tree, node.id))
        assert (kept[0].model == "person") == (user == "role_play" and name != "abg_coqa")  # a story cannot be made up
        assert set(tree.metadata["reward"]) >= {"token_cost"}
    for row in dpo_rows(trees):
        tree = next(tree for tree in trees if tree.task_id == row["task_id"])
        prompt = [message.as_dict() for message in tree.conversation(tree.nodes[row["chosen_node"]].parent)]
        assert prompt == row["prompt"]
        assert tree.nodes[row["rejected_node"]].message.content == row["rejected"][0]["content"]


async def test_the_goal_of_the_tree_is_the_one_that_was_played() -> None:
    (tree,) = await built("doc_edit", Resources(count_words, user_model=model_that(person)), tasks=1)
    assert tree.metadata["goal"].startswith("A piece about something")


async def test_a_task_that_cannot_be_prepared_stops_and_says_why() -> None:
    def gone(request: ChatRequest) -> str:
        raise ChatModelError("the endpoint went away")

    (tree,) = await built("doc_edit", Resources(count_words, user_model=model_that(gone)), tasks=1)
    assert tree.metadata["stopped"] == "turn 1: the task could not be prepared: the endpoint went away"
    assert len(tree) == 0


async def test_a_task_that_cannot_be_prepared_fails_its_evaluation_and_is_counted() -> None:
    def gone(request: ChatRequest) -> str:
        raise ChatModelError("the endpoint went away")

    environment = load_environment("doc_edit", Resources(count_words, user_model=model_that(gone)))
    (task,) = load_tasks("bundled", environment.domain, limit=1).tasks
    policy = Policy(ScriptedChatModel(policy_script))
    seen: list[ScoredFuture] = []
    tree = await evaluated_tree(policy, environment, task, runs=2, seed=0, observe=seen.append)
    assert [entry["outcome"] for entry in tree.metadata["conversations"]] == ["user_error"] * 2
    assert all(conversation.reward is None for conversation in evaluated_conversations([tree]))
    assert [scored.outcome for scored in seen] == [Outcome.USER_ERROR] * 2


@pytest.mark.parametrize("name", DOMAINS)
def test_base_and_proactive_base_are_two_prompts(name: str) -> None:
    domain = load_domain(name)
    assert domain.base_prompt and domain.proactive_prompt
    assert "ask" in domain.proactive_prompt and "ask" not in domain.base_prompt


def test_users_hold_no_state_so_a_task_has_one() -> None:
    environment = Environment(load_domain("math_chat"), Resources(count_words))
    first, second = load_tasks("bundled", environment.domain, limit=2).tasks
    assert environment.user_for(first) is environment.user_for(first)
    assert environment.user_for(first) is not environment.user_for(second)
