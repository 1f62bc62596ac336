"""The chat models of a run: each loaded once, from its typed configuration, behind the run's journal and budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from collab.embedded_model import resolve_model
from recipes.configuration.group_schema import Model
from recipes.dry_run import WORDS, count_words, scripted_model
from simulators.budget import Budget, BudgetedChatModel
from simulators.chat_models.protocol import ChatModel
from simulators.chat_models.recorded import RecordedModel
from simulators.errors import ConfigurationError
from simulators.journal import Journal, JournaledChatModel
from simulators.whole_file import write_whole

_OF_SERVERS = ("api_key_env", "extensions", "send_seed", "deadline_s", "max_concurrency")
_IN_PROCESS = ("dtype", "max_batch_size")


class Models:
    """The chat models of one run, each loaded once and all behind one journal.

    Two configurations that name the same backend, model and adapter share one instance; of a served model each way of talking to
    it (extensions, deadlines, keys) has its own. Calls that the journal does not hold are taken from the budget.
    """

    def __init__(self, journal: Journal, budget: Budget | None = None) -> None:
        self._journal = journal
        self._budget = budget or Budget()
        self._identity_file = journal.path.with_name("models.json")
        self._loaded: dict[str, JournaledChatModel] = {}
        self._settings: dict[str, dict[str, Any]] = {}
        self._counters: dict[str, Callable[[str], int]] = {}

    def load(self, config: Model, adapter: str | None = None) -> ChatModel:
        """Return the chat model of a configuration, with another adapter where one is given; in a replay, only its name.

        Raises:
            ConfigurationError: for an unknown backend, two settings for one model in this process, or as the backend does.
        """
        adapter = adapter or config.adapter
        key = json.dumps([config.backend, config.model, adapter, config.urls])
        served = config.backend == "server"
        settings = {name: getattr(config, name) for name in (_OF_SERVERS if served else _IN_PROCESS)}
        place = f"{key} {json.dumps(settings)}" if served else key
        if place not in self._loaded:
            model = self._recorded(key) if self._journal.replay else self._asked(key, config, adapter)
            self._loaded[place] = JournaledChatModel(model, self._journal)
            self._settings[place] = settings
        for name, value in settings.items():
            if value != (other := self._settings[place][name]):
                raise ConfigurationError(
                    f"{config.model} is loaded once in this process, and there are {name}={other!r} and {name}={value!r} for it; "
                    "give policy, user and judge the same"
                )
        return self._loaded[place]

    def _asked(self, key: str, config: Model, adapter: str | None) -> ChatModel:
        """Load a model, and note the name under which the journal files its replies, for replays."""
        model = BudgetedChatModel(backend(config, adapter), self._budget)
        known = self._identities() | {key: {"name": model.name, "weights_version": model.weights_version}}
        write_whole(self._identity_file, f"{json.dumps(known, indent=1)}\n".encode())
        return model

    def _recorded(self, key: str) -> ChatModel:
        if key not in self._identities():
            raise ConfigurationError(f"{self._identity_file} does not name the model {key}; this run cannot be replayed")
        return RecordedModel(**self._identities()[key])

    def _identities(self) -> dict[str, dict[str, str]]:
        if not self._identity_file.is_file():
            return {}
        known: dict[str, dict[str, str]] = json.loads(self._identity_file.read_text())
        return known

    def tokens_of(self, model: str) -> Callable[[str], int]:
        """Return how a model's tokenizer counts: the number of tokens of a text, without special ones.

        Raises:
            ConfigurationError: when the tokenizer cannot be loaded.
        """
        if model == WORDS:
            return count_words
        from simulators.chat_models.transformers_model import load_tokenizer

        if model not in self._counters:
            tokenizer = load_tokenizer(resolve_model(model))
            self._counters[model] = lambda text: len(tokenizer(text, add_special_tokens=False).input_ids)
        return self._counters[model]

    async def aclose(self) -> None:
        """Close every model."""
        for model in self._loaded.values():
            await model.aclose()


def backend(config: Model, adapter: str | None = None) -> ChatModel:
    """Load the bare chat model of a configuration, without journal or budget.

    Raises:
        ConfigurationError: for an unknown backend, or as the backend does.
    """
    if config.backend not in _BACKENDS:
        known = ", ".join(_BACKENDS)
        raise ConfigurationError(f"unknown backend {config.backend!r}; known are {known}")
    return _BACKENDS[config.backend](config, adapter or config.adapter)


def _transformers(config: Model, adapter: str | None) -> ChatModel:
    from simulators.chat_models.transformers_model import TransformersChatModel

    return TransformersChatModel.from_pretrained(
        resolve_model(config.model), adapter, dtype=config.dtype, max_batch_size=config.max_batch_size
    )


def _vllm_in_process(config: Model, adapter: str | None) -> ChatModel:
    from simulators.chat_models.vllm_model import VLLMChatModel, VLLMOptions

    options = VLLMOptions(dtype=config.dtype, max_batch_size=config.max_batch_size)
    return VLLMChatModel(resolve_model(config.model), options, adapter=adapter)


def _server(config: Model, adapter: str | None) -> ChatModel:
    from simulators.chat_models.server import ChatServer
    from simulators.chat_models.server_options import ServerOptions

    if not config.urls:
        raise ConfigurationError("a server backend needs urls=[http://HOST:PORT/v1]")
    settings = {name: getattr(config, name) for name in _OF_SERVERS}
    return ChatServer(config.urls, config.model, ServerOptions(token_ids=config.extensions, **settings), adapter=adapter)


def _scripted(config: Model, adapter: str | None) -> ChatModel:
    return scripted_model(config.model)


_BACKENDS: dict[str, Callable[[Model, str | None], ChatModel]] = {
    "transformers": _transformers,
    "vllm_in_process": _vllm_in_process,
    "server": _server,
    "scripted": _scripted,
}
