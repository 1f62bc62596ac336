"""A chat model that runs in this process on vLLM: what a GPU machine without servers uses, and the fastest on a CPU.

    VLLMChatModel("Qwen/Qwen3-4B")
    VLLMChatModel("Qwen/Qwen3-4B", VLLMOptions(adapters=True)), then: await model.load_adapter("policy", "outputs/step-10")

Adapters and weights can change between requests; a request finishes with those it began with, and never meets keys and values of
others in the prefix cache: every adapter that is loaded gets an id and a name of its own, which the cache's keys hold, and a
change of weights waits for an empty engine and drops the cache.
"""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulators.chat_models.chat_template import ChatTemplate
from simulators.chat_models.dispatcher import Dispatcher
from simulators.chat_models.lora_adapters import adapter_version
from simulators.chat_models.template_model import TemplateChatModel
from simulators.chat_models.transformers_model import load_tokenizer, weights_digest
from simulators.chat_models.vllm_engine import VLLMEngine, VLLMOptions, build_engine
from simulators.errors import ConfigurationError

__all__ = ["VLLMChatModel", "VLLMOptions"]


class VLLMChatModel(TemplateChatModel):
    """See the module. `adapter` is a LoRA folder to start with (it needs no `adapters` in the options).

    Raises:
        ConfigurationError: vLLM is not installed, or the model or the adapter cannot be loaded.
    """

    def __init__(self, model: str, options: VLLMOptions | None = None, *, adapter: str | Path | None = None) -> None:
        options = options or VLLMOptions()
        self._options = options = options if adapter is None else replace(options, adapters=True)
        tokenizer = load_tokenizer(model)
        if not tokenizer.chat_template:
            raise ConfigurationError(f"the tokenizer of {model} has no chat template; use a chat model or add one to its folder")
        self._weights = weights_digest(model)
        self._adapter_version = ""
        self._adapter_numbers = itertools.count(1)
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vllm-engine")
        built = thread.submit(build_engine, model, options).result()
        self.engine = VLLMEngine(built, model, logprobs=options.logprobs, send_seed=options.send_seed)
        self.dispatcher = Dispatcher(self.engine, model, self.engine.context_tokens, executor=thread)
        super().__init__(self.dispatcher, ChatTemplate(tokenizer, model), model, lambda: self._weights + self._adapter_version)
        if adapter is not None:
            version = adapter_version(Path(adapter))
            request = self._request("adapter", Path(adapter), version)
            thread.submit(self.engine.load, request).result()
            self._use(request, f"adapter-{version}")

    async def load_adapter(self, name: str, path: str | Path, version: str | None = None) -> str:
        """Load a LoRA adapter and use it from the next request on; return the new `weights_version`.

        `version` tells versions of one adapter apart; by default it is a digest of the weights. Calls under way finish with the
        adapter they began with, which is removed after the last of them.

        Raises:
            ConfigurationError: there was no room made for adapters, or this one cannot be loaded.
        """
        if not self._options.adapters:
            raise ConfigurationError(f"{self._name}: the engine was started without room for adapters; set adapters to true")
        if version is None:
            version = await asyncio.to_thread(adapter_version, Path(path))
        request = self._request(name, Path(path), version)
        await self.dispatcher.call(lambda: self.engine.load(request))
        previous = self.dispatcher.adapter
        self._use(request, f"{name}-{version}")
        await self.dispatcher.call(lambda: self.engine.retire(previous))
        return self.weights_version

    async def reload_weights(self, path: str | Path, version: str | None = None) -> str:
        """Replace the model's weights by those in a folder of the same architecture; return the new `weights_version`.

        Requests made before finish with the old weights, and only then the new ones are loaded; requests made after get those.
        `version` is a digest of the folder by default.

        Raises:
            ConfigurationError: the folder holds no weights, or the engine did not take them; it is of no use then.
        """
        folder = Path(path)
        if not any(folder.glob("*.safetensors")):
            raise ConfigurationError(f"there are no weights to load in {folder}; name a folder with safetensors files")
        if version is None:
            version = await asyncio.to_thread(weights_digest, str(folder))
        self._weights = version
        try:
            await self.dispatcher.call_when_idle(lambda: self.engine.reload(str(folder)))
        except ConfigurationError as error:
            self.dispatcher.give_up(error)
            raise
        return self.weights_version

    def _request(self, name: str, path: Path, version: str) -> Any:
        from vllm.lora.request import LoRARequest

        number = next(self._adapter_numbers)
        return LoRARequest(f"{name}-{version}-{number}", number, str(path.absolute()))

    def _use(self, request: Any, version: str) -> None:
        self.dispatcher.adapter, self._adapter_version = request, f"+{version}"
