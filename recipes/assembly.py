"""From a checked configuration to the objects that do the work: models behind a journal, environment, policies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from collab.embedded_model import resolve_model
from collab.environments.domain import Domain, Environment, Resources
from collab.environments.loading import LoadedTasks, load_tasks
from collab.environments.registry import load_domain, load_environment
from simulators.budget import Budget, BudgetedChatModel, Price
from simulators.chat_models.protocol import ChatModel, SamplingSettings
from simulators.chat_models.recorded import RecordedModel
from simulators.errors import ConfigurationError, did_you_mean
from simulators.journal import Journal, JournaledChatModel
from simulators.policy import Policy
from simulators.users.role_play import RolePlayOptions
from simulators.whole_file import write_whole

_REASONS = 3
"""How many reasons are told why records do not suit an environment."""

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

    def load(self, config: Any, adapter: str | None = None) -> ChatModel:
        """Return the chat model of a configuration, with another adapter where one is given; in a replay, only its name.

        Raises:
            ConfigurationError: for an unknown backend, two settings for one model in this process, or as the backend does.
        """
        adapter = adapter or config.adapter
        key = json.dumps([config.backend, config.model, adapter, list(config.urls)])
        served = config.backend == "server"
        settings = {name: config[name] for name in (_OF_SERVERS if served else _IN_PROCESS)}
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

    def _asked(self, key: str, config: Any, adapter: str | None) -> ChatModel:
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
        from recipes.dry_run import WORDS, count_words

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


def budget(config: Any, journal: Journal) -> Budget:
    """Return the run's budget, less what earlier starts of it have spent.

    Raises:
        ConfigurationError: for a limit that lets nothing happen.
    """
    if config.max_open_tasks < 1:
        raise ConfigurationError(f"max_open_tasks is {config.max_open_tasks}; it must be at least 1")
    prices = {role: Price(**plain(config[role].price)) for role in ("policy", "user", "judge")}
    priced = {role: price for role, price in prices.items() if price != Price()}
    limits = Budget(config.budget.max_calls, config.budget.max_tokens, config.budget.max_cost, priced)
    limits.restore(journal)
    return limits


def backend(config: Any, adapter: str | None = None) -> ChatModel:
    """Load the bare chat model of a configuration, without journal or budget.

    Raises:
        ConfigurationError: for an unknown backend, or as the backend does.
    """
    adapter = adapter or config.adapter
    if config.backend == "transformers":
        from simulators.chat_models.transformers_model import TransformersChatModel

        return TransformersChatModel.from_pretrained(
            resolve_model(config.model), adapter, dtype=config.dtype, max_batch_size=config.max_batch_size
        )
    if config.backend == "vllm_in_process":
        from simulators.chat_models.vllm_model import VLLMChatModel, VLLMOptions

        vllm_options = VLLMOptions(dtype=config.dtype, max_batch_size=config.max_batch_size)
        return VLLMChatModel(resolve_model(config.model), vllm_options, adapter=adapter)
    if config.backend == "server":
        from simulators.chat_models.server import ChatServer
        from simulators.chat_models.server_options import ServerOptions

        if not config.urls:
            raise ConfigurationError("a server backend needs urls=[http://HOST:PORT/v1]")
        return ChatServer(
            list(config.urls),
            config.model,
            ServerOptions(
                api_key_env=config.api_key_env,
                extensions=config.extensions,
                token_ids=config.extensions,
                send_seed=config.send_seed,
                deadline_s=config.deadline_s,
                max_concurrency=config.max_concurrency,
            ),
            adapter=adapter,
        )
    if config.backend == "scripted":
        from recipes.dry_run import scripted_model

        return scripted_model(config.model)
    raise ConfigurationError(f"unknown backend {config.backend!r}; known are transformers, vllm_in_process, server and scripted")


def plain(node: Any) -> dict[str, Any]:
    """Return a mapping of the configuration as a plain dictionary, interpolations resolved."""
    container = OmegaConf.to_container(node, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def as_object(node: Any) -> Any:
    """Return a typed node of the configuration as the dataclass it was checked against.

    Raises:
        ConfigurationError: when the dataclass refuses its values.
    """
    try:
        return OmegaConf.to_object(node)
    except OmegaConfBaseException as error:
        raise ConfigurationError(str(error.__cause__ or error)) from None


def sampling(config: Any) -> SamplingSettings:
    """Return sampling settings.

    Raises:
        ConfigurationError: when a value is out of its range.
    """
    try:
        return SamplingSettings(**{**plain(config), "stop": tuple(config.stop)})
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def role_play(config: Any) -> RolePlayOptions:
    """Return how a role-play user writes.

    Raises:
        ConfigurationError: when its temperature or token limit is out of range.
    """
    try:
        return RolePlayOptions(SamplingSettings(config.max_tokens, config.temperature), persona=config.persona)
    except ValueError as error:
        raise ConfigurationError(f"user: {error}") from None


def environment(config: Any, models: Models, count_tokens: Callable[[str], int] | None = None) -> Environment:
    """Return the environment with its user model and judge, where the configuration has them.

    Tokens are counted by the policy's own tokenizer unless `count_tokens` is given.
    """
    if config.user.kind not in ("scripted", "role_play"):
        raise ConfigurationError(f"unknown user kind {config.user.kind!r}; known are scripted and role_play")
    if config.judge.kind not in ("none", "llm"):
        raise ConfigurationError(f"unknown judge kind {config.judge.kind!r}; known are none and llm")
    refuse_unplayed(config.user, [key for key in ("persona", "urls") if config.user[key]])
    resources = Resources(
        count_tokens=count_tokens or _policy_tokens(config.policy, models),
        user_model=models.load(config.user) if config.user.kind == "role_play" else None,
        judge_model=models.load(config.judge) if config.judge.kind == "llm" else None,
        role_play=role_play(config.user),
        token_penalty=config.environment.token_penalty,
    )
    return load_environment(config.environment.name, resources, plain(config.environment.options))


def _policy_tokens(config: Any, models: Models) -> Callable[[str], int]:
    try:
        return models.tokens_of(config.tokenizer or config.model)
    except ConfigurationError as error:
        if config.backend != "server":
            raise
        raise ConfigurationError(
            f"tokens of a served model are counted here: set policy.tokenizer to its folder or Hub id ({error})"
        ) from None


def overridden(base: Any, entry: Any, where: str, kind: type) -> Any:
    """Return a group's configuration with the keys of an entry.

    Raises:
        ConfigurationError: for a key that the group does not have (it names the nearest one), or a value of the wrong type.
    """
    known = [each.name for each in fields(kind)]
    for key in entry:
        if key not in known:
            raise ConfigurationError(f"{where}.{key}: there is no such key{did_you_mean(str(key), known)}")
    try:
        return OmegaConf.merge(base, entry)
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{where}: {str(error).splitlines()[0]}") from None


def refuse_unplayed(user: Any, given: Iterable[str], where: str = "user") -> None:
    """Refuse settings of a user that a model plays where none does.

    Raises:
        ConfigurationError: naming the first of `given`, the keys that somebody set.
    """
    unused = [key for key in ("persona", "urls", "model") if key in given]
    if user.kind == "scripted" and unused:
        raise ConfigurationError(
            f"{where}.{unused[0]} is for a user that a model plays; set {where}.kind=role_play, or leave it out"
        )


def domain(config: Any) -> Domain:
    """Return the configured environment's definition, which needs no models."""
    return load_domain(config.environment.name, plain(config.environment.options))


def tasks(config: Any, split: str | None = None, limit: int | None = None) -> LoadedTasks:
    """Return the configured tasks, or as many of another split; say how many records the environment has no use for, and why."""
    if config.on_bad_record not in ("refuse", "skip"):
        raise ConfigurationError(f"on_bad_record is {config.on_bad_record!r}; it must be refuse or skip")
    wanted, count = split or config.split, limit or config.limit
    loaded = load_tasks(config.tasks, domain(config), split=wanted, limit=count, on_bad_record=config.on_bad_record)
    if loaded.unsuitable:
        often = sorted(loaded.unsuitable.items(), key=lambda entry: -entry[1])[:_REASONS]
        reasons = "; ".join(f"{number} x {reason}" for reason, number in often)
        count = sum(loaded.unsuitable.values())
        print(f"{config.tasks}: {count} record(s) do not suit {config.environment.name} as its options are: {reasons}")
    return loaded


def system_prompt(prompt: str | None, env: Environment) -> str | None:
    """Return the system prompt a configuration means by `none`, `base`, `proactive`, or a text of its own."""
    named = {None: None, "none": None, "base": env.domain.base_prompt, "proactive": env.domain.proactive_prompt}
    return named.get(prompt, prompt)


def policy(config: Any, models: Models, env: Environment, *, name: str = "policy", adapter: str | None = None) -> Policy:
    """Return the configured policy, with another adapter where one is given."""
    return Policy(
        models.load(config, adapter), sampling(config.sampling), system_prompt=system_prompt(config.prompt, env), name=name
    )


@contextmanager
def open_journal(folder: Path, replay: bool = False) -> Iterator[Journal]:
    """Open a run's journal and close it at the end, whatever happens."""
    journal = Journal(folder / "journal.jsonl", replay=replay)
    try:
        yield journal
    finally:
        journal.close()
