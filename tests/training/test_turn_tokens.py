"""Conversations with tools grow turn by turn to the same tokens, and only the policy's are trained."""

import json
from pathlib import Path

import pytest
import trl

from collab.training.turn_tokens import TurnTokens
from simulators.conversation import Message, ToolCall
from tests.training.test_episode_player import player, segments
from tests.training.tiny_models import FAMILIES, tiny_tokenizer

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
ASKED = (Message("user", "Where is x?"),)
CALL = Message("assistant", "", tool_calls=(ToolCall("find", '{"word": "x"}', "call00001"),))
FOUND = (Message("tool", "under the mat", tool_call_id="call00001"),)


def native(family: str, template: str) -> TurnTokens:
    tokenizer = tiny_tokenizer(family)
    tokenizer.chat_template = (TEMPLATES / template).read_text()
    return TurnTokens.of(tokenizer, None)


NATIVE = [("qwen3", "qwen3.jinja"), ("qwen2.5", "qwen2_5.jinja"), ("llama3", "llama3_1.jinja")]


@pytest.mark.parametrize(("family", "template"), NATIVE)
def test_native_templates_offer_tools_and_tell_results_in_their_own_way(family: str, template: str) -> None:
    tokens = native(family, template)
    assert tokens.native_tools
    asked = [{"role": "user", "content": "Where is x?"}]
    options = {"tools": [TOOL], "tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    own = tokens.tokenizer.apply_chat_template(asked, **options)
    assert tokens.tokenizer.decode(tokens.prompt_ids(ASKED, [TOOL])) == own
    told = tokens.tokenizer.decode(tokens.between_replies([tokens.stop_id], FOUND))
    assert "under the mat" in told and "Two." not in told
    called = {"id": "call00001", "type": "function", "function": {"name": "find", "arguments": {"word": "x"}}}
    found = {"role": "tool", "content": "under the mat", "tool_call_id": "call00001"}
    called_and_told = [*asked, {"role": "assistant", "content": "", "tool_calls": [called]}, found]
    whole = tokens.tokenizer.apply_chat_template(called_and_told, **options)
    assert whole.endswith(told), "as the template writes it in the whole conversation"


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_other_templates_get_tools_in_words(family: str) -> None:
    tokens = TurnTokens.of(tiny_tokenizer(family), None)
    assert not tokens.native_tools
    prompt = tokens.tokenizer.decode(tokens.prompt_ids(ASKED, [TOOL]))
    assert json.dumps(TOOL) in prompt and "Where is x?" in prompt
    told = tokens.tokenizer.decode(tokens.between_replies([tokens.stop_id], FOUND))
    assert "<tool_response>\nunder the mat\n</tool_response>" in told


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_conversation_with_tools_grows_to_its_own_tokens(family: str) -> None:
    tokens = TurnTokens.of(tiny_tokenizer(family), None)
    reply = [*tokens.encode('<tool_call>\n{"name": "find", "arguments": {"word": "x"}}\n</tool_call>'), tokens.stop_id]
    grown = [*tokens.prompt_ids(ASKED, [TOOL]), *reply, *tokens.between_replies(reply, FOUND)]
    assert tokens.tokenizer.decode(grown) == tokens.tokenizer.decode(tokens.prompt_ids((*ASKED, CALL, *FOUND), [TOOL]))


def test_an_episode_with_calls_masks_their_results() -> None:
    from collab.environments.domain import Environment
    from collab.training.episode import EpisodeStart
    from tests.training import toy
    from tests.training.runs import wait

    def find(word: str) -> str:
        """Find a word."""
        return f"{word} is A"

    domain = toy.environment(max_turns=1).domain
    object.__setattr__(domain, "make_tools", lambda task, resources: (find,))
    environment = Environment(domain, toy.environment().resources)
    call = '<tool_call>{"name": "find", "arguments": {"word": "it"}}</tool_call>'
    playing = player(lambda prompt, seed: "A" if "it is A" in prompt else call, environment, limit=3000, max_tokens=200)

    async def run():
        start = EpisodeStart(toy.tasks(1)[0])
        return await playing.play(start, await playing.open(start, "train0"), "train0", 0, turn_worths=False)

    episode = wait(run())
    (first, called), (masked, told), (last, said) = segments(episode)
    assert (first, masked, last) == (True, False, True)
    assert called.startswith("<tool_call>") and "<tool_response>\nit is A" in told and said == "A<|im_end|>"
    assert (episode.reward, len(episode.turns), len(episode.played)) == (1.0, 1, 4)
    assert [node.author for node in episode.played] == ["user", "policy", "tool", "policy"]
