"""What is asked of a vLLM server: exactly what the settings say, over one session."""

import asyncio
from typing import Any

from aiohttp import web

from collab.training.turn_tokens import TurnTokens
from collab.training.vllm_sampling import VLLMServerSampler
from simulators.chat_models.protocol import SamplingSettings
from simulators.chat_models.transformers_model import load_tokenizer


class Server:
    """A vLLM server of one token."""

    def __init__(self) -> None:
        self.listed = 0
        self.bodies: list[dict[str, Any]] = []

    async def models(self, request: web.Request) -> web.Response:
        self.listed += 1
        await asyncio.sleep(0.05)
        return web.json_response({"data": [{"id": "m", "max_model_len": 64}]})

    async def completions(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        choice = {"token_ids": [5], "logprobs": {"token_logprobs": [-0.5]}, "text": "x", "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})


async def test_nothing_is_left_to_the_models_own_generation_config(tiny: str) -> None:
    """A model whose config sets a repetition penalty would be sampled from another distribution than the trainer believes."""
    server = Server()
    app = web.Application()
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/completions", server.completions)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    tokens = TurnTokens.of(load_tokenizer(tiny), None)
    sampler = VLLMServerSampler(f"http://127.0.0.1:{port}", tokens)
    try:
        await asyncio.gather(*(sampler.sample([1, 2], SamplingSettings(max_tokens=4), seed) for seed in range(8)))
    finally:
        await sampler.aclose()
        await runner.cleanup()
    assert server.listed == 1 and len(server.bodies) == 8
    body = server.bodies[0]
    assert (body["repetition_penalty"], body["presence_penalty"], body["frequency_penalty"], body["min_p"]) == (
        1.0,
        0.0,
        0.0,
        0.0,
    )
    assert body["stop_token_ids"] == sorted(tokens.eos_ids)
