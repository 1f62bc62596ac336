"""Token ids over HTTP: exactly what the settings say is asked, over the same client as chat completions."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from simulators.chat_models.protocol import SamplingSettings
from simulators.chat_models.server_options import ServerOptions
from simulators.chat_models.server_sampler import ServerTokenSampler
from simulators.errors import ChatModelError, ConfigurationError, ContextOverflow
from tests.training.tiny_models import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
OPTIONS = ServerOptions(send_seed=False, first_backoff_s=0.01, attempt_timeout_s=5, deadline_s=5, max_attempts=3)
Plan = Callable[[int], web.Response | None]


def completion(body: dict[str, Any]) -> dict[str, Any]:
    choice = {"token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.5, -0.25]}, "text": "xy", "finish_reason": "stop"}
    usage = {"prompt_tokens": 2, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
    return {"choices": [choice | {"index": index} for index in reversed(range(body["n"]))], "usage": usage}


class Server:
    """A vLLM server that always says the same; `plan` may answer the number-th request otherwise."""

    def __init__(self) -> None:
        self.listed = 0
        self.bodies: list[dict[str, Any]] = []
        self.plan: Plan = lambda number: None
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)

    async def start(self) -> str:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        self.listed += 1
        await asyncio.sleep(0)
        return web.json_response({"data": [{"id": "m", "max_model_len": 64}]})

    async def _completions(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        return self.plan(len(self.bodies) - 1) or web.json_response(completion(self.bodies[-1]))


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    yield made
    await made.stop()


@pytest.fixture
async def sampler(server: Server) -> AsyncIterator[ServerTokenSampler]:
    made = ServerTokenSampler(await server.start(), TOKENIZER, frozenset({9, 3}), OPTIONS)
    yield made
    await made.aclose()


async def test_what_comes_back_are_the_tokens_and_nothing_is_tokenised_again(sampler: ServerTokenSampler) -> None:
    prefix = TOKENIZER("Oh", add_special_tokens=False).input_ids
    first, second = await sampler.sample([1, 2], SamplingSettings(4), 0, n=2, prefix_ids=prefix)
    assert first == second
    assert (first.token_ids, first.logprobs) == ((*prefix, 5, 6), (0.0, 0.0, -0.5, -0.25))
    assert (first.text, first.finish_reason, first.cached_tokens) == ("Ohxy", "stop", 1)
    assert sampler.counts.tokens == 4 and sampler.counts.busy_s > 0


async def test_nothing_is_left_to_the_models_own_generation_config(sampler: ServerTokenSampler, server: Server) -> None:
    """A model whose config sets a repetition penalty would be sampled from another distribution than the trainer believes."""
    await asyncio.gather(*(sampler.sample([1, 2], SamplingSettings(4), seed) for seed in range(8)))
    assert server.listed == 1 and len(server.bodies) == 8
    assert server.bodies[0] == {
        "model": "m",
        "prompt": [1, 2],
        "n": 1,
        "max_tokens": 4,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "min_p": 0.0,
        "stop_token_ids": [3, 9],
        "logprobs": 0,
        "return_token_ids": True,
    }


async def test_settings_are_sent_where_they_are_set(server: Server) -> None:
    sampler = ServerTokenSampler(await server.start(), TOKENIZER, options=ServerOptions())
    sampling = SamplingSettings(100, 0.0, stop=("?",), include_stop=True)
    await sampler.sample([1, 2], sampling, 2**40 + 3, n=3, json_schema={"type": "object"})
    await sampler.aclose()
    (body,) = server.bodies
    assert (body["n"], body["max_tokens"], body["seed"]) == (1, 62, 3)  # greedy is drawn once; the context bounds the reply
    assert (body["stop"], body["include_stop_str_in_output"]) == (["?"], True)
    assert body["structured_outputs"] == {"json": {"type": "object"}}


async def test_a_server_that_is_busy_is_waited_for_as_it_asks(sampler: ServerTokenSampler, server: Server) -> None:
    server.plan = lambda number: web.Response(status=429, headers={"Retry-After": "0.01"}) if number < 5 else None
    assert len(await sampler.sample([1], SamplingSettings(4), 0)) == 1
    assert len(server.bodies) == 6  # refusals cost nothing, however many


@pytest.mark.parametrize("wrong", [{"choices": []}, {"choices": [{"text": "x", "finish_reason": "stop"}]}, {"hello": 1}, [1]])
async def test_what_is_no_answer_of_token_ids_is_asked_for_again_and_then_fails(
    sampler: ServerTokenSampler, server: Server, wrong: Any
) -> None:
    server.plan = lambda number: web.json_response(wrong) if number == 0 else None
    assert len(await sampler.sample([1], SamplingSettings(4), 0)) == 1
    server.plan = lambda number: web.json_response(wrong)
    with pytest.raises(ChatModelError, match="not one of token ids"):
        await sampler.sample([1], SamplingSettings(4), 0)


async def test_a_refusal_fails_the_request_alone(sampler: ServerTokenSampler, server: Server) -> None:
    server.plan = lambda number: web.json_response({"error": {"message": "no"}}, status=400) if number == 0 else None
    with pytest.raises(ChatModelError, match=r"answered 400 \(no\)"):
        await sampler.sample([1], SamplingSettings(4), 0)
    assert len(await sampler.sample([1], SamplingSettings(4), 0)) == 1
    with pytest.raises(ContextOverflow, match="has 64 tokens and the served model takes 64"):
        await sampler.sample([1] * 64, SamplingSettings(4), 0)


async def test_two_servers_share_the_work_and_the_one_that_stays_takes_over(server: Server) -> None:
    other = Server()
    urls = [await server.start(), await other.start()]
    sampler = ServerTokenSampler(urls, TOKENIZER, options=OPTIONS)
    prompts = [[number] * 8 for number in range(40)]
    for _ in range(2):
        await asyncio.gather(*(sampler.sample(prompt, SamplingSettings(4), 0) for prompt in prompts))
    asked = [{tuple(body["prompt"]) for body in each.bodies} for each in (server, other)]
    assert asked[0] and asked[1] and not asked[0] & asked[1]  # what shares a prefix went to one server
    await other.stop()
    before = len(server.bodies)
    assert len(await asyncio.gather(*(sampler.sample(prompt, SamplingSettings(4), 0) for prompt in prompts))) == 40
    assert len(server.bodies) == before + 40
    await sampler.aclose()


async def test_no_server_or_another_one_is_named_at_once(server: Server) -> None:
    url = await server.start()
    await server.stop()
    for wrong, said in ((url, "no server at"), ("ftp://h", "is not one")):
        with pytest.raises(ConfigurationError, match=said):
            await ServerTokenSampler(wrong, TOKENIZER, options=OPTIONS).sample([1], SamplingSettings(4), 0)
