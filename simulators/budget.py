"""A budget for calls, tokens and money, shared by all models of a run.

The wrapper goes inside the journal (`JournaledChatModel(BudgetedChatModel(model, budget), journal)`), so a call that was answered
before costs nothing again. What earlier starts of the run spent is read back from the journal, failed calls included: a budget is
for the run, not for one start of it, and raising it lets a stopped run go on. Only calls that were under way when a run was
killed are on no record.

When the budget is spent no call is sent any more; those under way are waited for, so that their replies are recorded and nothing
that was paid for is lost, and then everybody who asked for more gets `BudgetExhausted`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from simulators.chat_models.protocol import ChatModel, ChatRequest, Completion
from simulators.conversation import Usage
from simulators.errors import BudgetExhausted, ConfigurationError
from simulators.journal import Journal
from simulators.metering import Spent


@dataclass(frozen=True, slots=True)
class Price:
    """What a model charges, in money per million tokens. `cached` is for prompt tokens that a prefix cache served."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None

    def of(self, completions: list[Completion]) -> float:
        """Return the price of one call's completions, in money."""
        return sum(self.of_usage(completion.usage) for completion in completions)

    def of_usage(self, usage: Usage | Spent) -> float:
        """Return the price of so many tokens, in money."""
        cached_price = self.prompt if self.cached is None else self.cached
        fresh = usage.prompt_tokens - usage.cached_tokens
        total = fresh * self.prompt + usage.cached_tokens * cached_price + usage.completion_tokens * self.completion
        return total / 1e6


@dataclass(slots=True)
class Spending:
    """What was spent: calls, tokens (prompt and completion together), money. `failed` of the calls brought nothing."""

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    failed: int = 0


_CHARACTERS_PER_TOKEN = 4
_NOTHING = Spending()


@dataclass(slots=True)
class Budget:
    """Limits on what a run may spend; None is no limit. `prices` are by the caller's role (policy, user, judge).

    The number of calls is kept exactly, failed ones included. Tokens and money are known only afterwards, so the calls under way
    are counted at what an answered call has cost on average so far, and before there was one at what they are expected to cost
    (`expected`): the limits can be passed by the difference.

    Raises:
        ConfigurationError: for a limit below 0, or one on money without any price.
    """

    max_calls: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    spent: Spending = field(default_factory=Spending)
    _in_flight: int = 0
    _expected: Spending = field(default_factory=Spending)
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_tokens", "max_cost"):
            limit = getattr(self, name)
            if limit is not None and limit < 0:
                raise ConfigurationError(f"budget: {name} is {limit}; it must not be negative")
        if self.max_cost is not None and not self.prices:
            raise ConfigurationError("budget: max_cost is set but no prices are; give the price of each role's model")

    def restore(self, journal: Journal) -> None:
        """Count what earlier starts of this run have spent, as its journal records it; a failed call counts as a call."""
        for role, completions in journal.recorded_calls():
            self._spend(role, completions)
        self.spent.calls += journal.failed_calls
        self.spent.failed += journal.failed_calls

    def expected(self, request: ChatRequest) -> Spending:
        """Return what a call may cost, before anything is known: a token for every 4 characters, and replies as long as allowed.

        Nothing where no limit needs it, or where calls under way are counted at their average.
        """
        if (self.max_tokens is None or self.spent.tokens) and (self.max_cost is None or self.spent.cost):
            return _NOTHING
        characters = sum(len(message.content) for message in request.messages)
        usage = Usage(characters // _CHARACTERS_PER_TOKEN, request.n * request.sampling.max_tokens)
        price = self.prices.get(request.role)
        cost = price.of_usage(usage) if price is not None else 0.0
        return Spending(tokens=usage.prompt_tokens + usage.completion_tokens, cost=cost)

    async def enter(self, expected: Spending = _NOTHING) -> None:
        """Take the place of one call that is `expected` to cost so much.

        Raises:
            BudgetExhausted: there is none left, and no call under way that could still leave one.
        """
        while not self._fits_one_more():
            if not self._in_flight:
                raise BudgetExhausted(self._why())
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake()
                raise
        self._in_flight += 1
        if expected is not _NOTHING:
            self._expected.tokens += expected.tokens
            self._expected.cost += expected.cost
        self._wake()

    def leave(self, role: str, completions: list[Completion], expected: Spending = _NOTHING) -> None:
        """Give a place back that was entered with `expected`.

        `completions` are what the call brought (none, when it failed, which still counts as a call).
        """
        self._in_flight -= 1
        if expected is not _NOTHING:
            self._expected.tokens -= expected.tokens
            self._expected.cost = self._expected.cost - expected.cost if self._in_flight else 0.0  # no rounding error stays
        self._spend(role, completions)
        self._wake()

    def _spend(self, role: str, completions: list[Completion]) -> None:
        self.spent.calls += 1
        self.spent.failed += not completions
        self.spent.tokens += sum(each.usage.prompt_tokens + each.usage.completion_tokens for each in completions)
        if (price := self.prices.get(role)) is not None:
            self.spent.cost += price.of(completions)

    def _fits_one_more(self) -> bool:
        spent, under_way = self.spent, self._in_flight
        if self.max_calls is not None and spent.calls + under_way >= self.max_calls:
            return False
        answered = max(spent.calls - spent.failed, 1)
        if self.max_tokens is not None:
            tokens = under_way * spent.tokens / answered if spent.tokens else self._expected.tokens
            if spent.tokens + tokens >= self.max_tokens:
                return False
        if self.max_cost is None:
            return True
        cost = under_way * spent.cost / answered if spent.cost else self._expected.cost
        return spent.cost + cost < self.max_cost

    def _wake(self) -> None:
        """Let the next one look again where a place is free, and everybody where nothing is under way any more."""
        while self._waiting and (not self._in_flight or self._fits_one_more()):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                if self._in_flight:
                    return  # it takes its place first, and wakes the next one then

    def _why(self) -> str:
        spent = self.spent
        limits = []
        if self.max_calls is not None:
            limits.append(f"{spent.calls} of {self.max_calls} calls")
        if self.max_tokens is not None:
            limits.append(f"{spent.tokens} of {self.max_tokens} tokens")
        if self.max_cost is not None:
            limits.append(f"{spent.cost:.4g} of {self.max_cost:.4g} in money")
        return f"the budget is spent ({', '.join(limits)}); raise it and start the same command again to go on"


class BudgetedChatModel:
    """A chat model whose calls are taken from a budget."""

    def __init__(self, model: ChatModel, budget: Budget) -> None:
        self._model = model
        self._budget = budget

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def weights_version(self) -> str:
        return self._model.weights_version

    async def complete(self, request: ChatRequest) -> list[Completion]:
        """Ask the model, if the budget allows it.

        Raises:
            BudgetExhausted: it does not.
            ChatModelError, ConfigurationError: as the model does.
        """
        expected = self._budget.expected(request)
        await self._budget.enter(expected)
        completions: list[Completion] = []
        try:
            completions = await self._model.complete(request)
            return completions
        finally:
            self._budget.leave(request.role, completions, expected)

    async def aclose(self) -> None:
        """Close the model."""
        await self._model.aclose()
