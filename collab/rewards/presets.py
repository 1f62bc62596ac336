"""R* from plain configuration: a list of `{name, weight, options}`, and the two presets `paper` and `upstream`.

`paper` is CollabLLM equations 2 to 4 with Table 6's lambda: extrinsic + token_cost + interactivity, every weight 1.
`upstream` is what the authors' published code computes instead. The differences, term by term:

| term        | paper                                                  | upstream                                          |
|-------------|--------------------------------------------------------|---------------------------------------------------|
| accuracy    | of Extract(t): by rules where they decide (math)       | an LLM judge that sees the whole conversation      |
| BLEU        | over words (sacrebleu)                                 | over characters                                   |
| pass rate   | tests in a sandbox                                     | the same, of code that an LLM extracted           |
| token cost  | -min(lambda * tokens read and written, 1)              | -lambda * tokens read, without a bound            |
| R_LLM       | interactivity in [0, 1]                                | the same                                          |

`accuracy_judge` in place of `math_accuracy` is the paper's other reading (section 4 has GPT-4o judge MATH-Chat).
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Literal, get_type_hints

from pydantic import TypeAdapter, ValidationError

from collab.rewards import accuracy, bleu, calls, code, insights, judge, sql, token_cost
from collab.rewards.component import RewardComponent
from collab.rewards.conversation_reward import ConversationReward
from collab.rewards.extraction import Extract, answer, by_rule, document
from collab.rewards.llm_extraction import LlmExtraction
from collab.sandbox.protocol import Limits
from collab.sandbox.selection import load_sandbox
from simulators.chat_models.protocol import ChatModel
from simulators.errors import ConfigurationError, did_you_mean

_KEYS = ("name", "weight", "options", "as")

TaskKind = Literal["math", "code", "document"]
Extraction = Literal["rules", "llm"]


@dataclass(frozen=True, slots=True)
class RewardTools:
    """What components may use: how tokens are counted, and the judge's model where there is one."""

    count_tokens: Callable[[str], int]
    judge_model: ChatModel | None = None

    def judge_for(self, component: str) -> ChatModel:
        """Return the judge's model.

        Raises:
            ConfigurationError: when there is none.
        """
        if self.judge_model is None:
            raise ConfigurationError(f"reward component {component} needs a judge; configure a judge model or drop the component")
        return self.judge_model


def build_reward(terms: Sequence[Mapping[str, Any]], tools: RewardTools) -> ConversationReward:
    """Return R* from a list of `{"name": ..., "weight": 1.0, "options": {...}, "as": ...}`.

    `as` gives a component another name in the results, where two would have the same.

    Raises:
        ConfigurationError: an unknown name, key or option (the nearest known one is named), a value of the wrong kind, the same
            component twice, or a component that lacks what it needs.
    """
    if not terms:
        raise ConfigurationError("reward: the list of components is empty; name at least one")
    weighted: list[tuple[RewardComponent, float]] = []
    for position, term in enumerate(terms, start=1):
        if not isinstance(term, Mapping) or "name" not in term:
            raise ConfigurationError(f"reward: entry {position} must be {{name, weight, options}}, got {term!r}")
        name = term["name"]
        for key in term:
            if key not in _KEYS:
                raise ConfigurationError(f"reward component {name}: unknown key {key!r}{did_you_mean(key, _KEYS)}")
        weight = term.get("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ConfigurationError(f"reward component {name}: weight is {weight!r}; it must be a finite number")
        component = build_component(name, term.get("options") or {}, tools)
        weighted.append((_renamed(component, str(term["as"])) if "as" in term else component, float(weight)))
    try:
        return ConversationReward(tuple(weighted))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _renamed(component: RewardComponent, name: str) -> RewardComponent:
    assert is_dataclass(component) and not isinstance(component, type)
    return replace(component, name=name)


def build_component(name: str, options: Mapping[str, Any], tools: RewardTools) -> RewardComponent:
    """Return one component by its configuration name.

    Raises:
        ConfigurationError: as `build_reward` does.
    """
    if not isinstance(name, str) or name not in COMPONENTS:
        raise ConfigurationError(
            f"unknown reward component {name!r}{did_you_mean(name, COMPONENTS)}; known are {', '.join(sorted(COMPONENTS))}"
        )
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"reward component {name}: options must be a mapping, got {options!r}")
    factory = COMPONENTS[name]
    known = [parameter for parameter in inspect.signature(factory).parameters if parameter != "tools"]
    hints = get_type_hints(factory)
    checked = {}
    for option, value in options.items():
        if option not in known:
            listing = f"; it has {', '.join(known)}" if known else "; it has none"
            raise ConfigurationError(f"reward component {name} has no option {option!r}{did_you_mean(option, known)}{listing}")
        try:
            checked[option] = TypeAdapter(hints[option]).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].lower()
            raise ConfigurationError(f"reward component {name}: option {option} is {value!r}; {reason}") from None
    try:
        return factory(tools, **checked)
    except ValueError as error:
        raise ConfigurationError(f"reward component {name}: {error}") from None


def preset(name: str, kind: TaskKind) -> list[dict[str, Any]]:
    """Return the terms of a preset for a kind of task, as plain configuration for `build_reward`.

    Raises:
        ConfigurationError: for an unknown preset or kind.
    """
    if name not in PRESETS:
        raise ConfigurationError(f"unknown reward preset {name!r}{did_you_mean(name, PRESETS)}; known are {', '.join(PRESETS)}")
    if kind not in PRESETS[name]:
        raise ConfigurationError(
            f"reward preset {name} has no kind {kind!r}{did_you_mean(kind, PRESETS[name])}; it has {', '.join(PRESETS[name])}"
        )
    penalty = token_cost.PAPER_PENALTY[kind]
    cost: dict[str, Any] = {"token_penalty": penalty}
    if name == "upstream":
        cost |= {"counted": "read", "capped": False}
    return [
        copy.deepcopy(PRESETS[name][kind]),
        {"name": "token_cost", "weight": 1.0, "options": cost},
        {"name": "interactivity", "weight": 1.0, "options": {}},
    ]


def _extraction(how: Extraction, rule: Callable[[str], str | None], what: str, tools: RewardTools, component: str) -> Extract:
    return by_rule(rule) if how == "rules" else LlmExtraction(tools.judge_for(component), what, name=f"{component} (extraction)")


# Each factory takes the tools and the component's options; its signature is the schema of the options.


def _math_accuracy(tools: RewardTools, deadline_s: float = 10.0, extraction: Extraction = "rules") -> RewardComponent:
    extract = _extraction(extraction, answer, "answer to the question", tools, "math_accuracy")
    return accuracy.MathAccuracy(extract, deadline_s)


def _contains_fact(tools: RewardTools) -> RewardComponent:
    return accuracy.ContainsFact()


def _accuracy_judge(tools: RewardTools, extraction: Extraction = "rules", whole_conversation: bool = False) -> RewardComponent:
    extract = _extraction(extraction, answer, "answer to the question", tools, "accuracy_judge")
    return judge.accuracy_judge(tools.judge_for("accuracy_judge"), extract, whole_conversation)


def _bleu(tools: RewardTools, extraction: Extraction = "rules", characters: bool = False) -> RewardComponent:
    extract = _extraction(extraction, document, "document", tools, "bleu")
    return bleu.CharacterBleu(extract) if characters else bleu.Bleu(extract)


def _token_cost(
    tools: RewardTools,
    token_penalty: float = 5e-4,
    counted: Literal["read_and_written", "read"] = "read_and_written",
    capped: bool = True,
) -> RewardComponent:
    return token_cost.TokenCost(tools.count_tokens, token_penalty, counted, capped)


def _pass_rate(
    tools: RewardTools,
    all_or_nothing: bool = True,
    extraction: Extraction = "rules",
    sandbox: str | dict[str, list[str] | str] = "auto",
    interpreter: str | None = None,
    cpu_s: float = 10.0,
    wall_s: float = 30.0,
    memory_mb: int = 512,
) -> RewardComponent:
    extract = (
        None if extraction == "rules" else LlmExtraction(tools.judge_for("pass_rate"), "code", name="pass_rate (extraction)")
    )
    limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mb=memory_mb)
    return code.PassRate(extract, all_or_nothing, limits, find_sandbox=lambda: load_sandbox(sandbox, interpreter))


def _execution_match(tools: RewardTools, fills: int = 3, seed: int = 0, any_column_order: bool = False) -> RewardComponent:
    return sql.SqlExecution(fills=fills, seed=seed, any_column_order=any_column_order)


def _call_match(tools: RewardTools) -> RewardComponent:
    return calls.CallMatch()


def _insight_coverage(tools: RewardTools, max_words: int = 300) -> RewardComponent:
    return insights.InsightCoverage(tools.judge_for("insight_coverage"), max_words=max_words)


def _interactivity(tools: RewardTools) -> RewardComponent:
    return judge.interactivity_judge(tools.judge_for("interactivity"))


def _helpfulness(tools: RewardTools) -> RewardComponent:
    return judge.helpfulness_judge(tools.judge_for("helpfulness"))


def _clarity(tools: RewardTools) -> RewardComponent:
    return judge.clarity_judge(tools.judge_for("clarity"))


COMPONENTS: dict[str, Callable[..., RewardComponent]] = {
    "math_accuracy": _math_accuracy,
    "contains_fact": _contains_fact,
    "accuracy_judge": _accuracy_judge,
    "bleu": _bleu,
    "pass_rate": _pass_rate,
    "execution_match": _execution_match,
    "call_match": _call_match,
    "insight_coverage": _insight_coverage,
    "token_cost": _token_cost,
    "interactivity": _interactivity,
    "helpfulness": _helpfulness,
    "clarity": _clarity,
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "math": {"name": "math_accuracy", "weight": 1.0, "options": {}},
        "code": {"name": "pass_rate", "weight": 1.0, "options": {}},
        "document": {"name": "bleu", "weight": 1.0, "options": {}},
    },
    "upstream": {
        "math": {"name": "accuracy_judge", "weight": 1.0, "options": {"whole_conversation": True}},
        "code": {"name": "pass_rate", "weight": 1.0, "options": {"extraction": "llm"}},
        "document": {"name": "bleu", "weight": 1.0, "options": {"characters": True, "extraction": "llm"}},
    },
}
