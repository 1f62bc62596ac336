"""The rules builder of function calling: a BFCL request, its tools and the expected call.

The expected call says what the request comes down to, parameter by parameter, so each parameter is an argument ("The base of the
triangle is 10."), and the function is what the tool's own description says. Another value of a parameter gives another expected
call, so every state has an exact answer. Predecessors are the other tools on offer, with arguments of their own; a parameter of
the same name and type is shared.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from collab.environments.domain import BadRecord
from collab.environments.evolving_intent.conversion import Conversion, Rejected, SourceTask
from collab.environments.evolving_intent.intent import SOURCE, Argument, Counterfactual, Function, Ingredients
from collab.environments.evolving_intent.slots import Piece, SlotAnswers
from simulators.seeds import derive_seed

FORMAT = "Answer with the calls alone, as a list: [name(parameter=value, ...)]."

_MADE_UP: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"city|location|place|destination|origin|region|state|address", ("Lisbon", "Oslo", "Nairobi", "Osaka", "Denver")),
    (r"country|nation", ("Portugal", "Norway", "Kenya", "Japan", "Canada")),
    (r"date|day", ("2023-04-12", "2024-09-30", "2022-01-05")),
    (r"^(?:name|person|author|artist|player|actor|user)(?:_name)?$", ("Alex Moore", "Dana Reyes", "Kim Larsen")),
    (r"language", ("French", "Swedish", "Swahili")),
    (r"currency", ("EUR", "JPY", "CAD")),
    (r"color|colour", ("green", "orange", "grey")),
)
"""Values for text parameters by what their name says; parameters that fit none are not made up."""


def source_task(record: Mapping[str, Any], default_id: str) -> SourceTask:
    """Return the single-turn task of a BFCL record with one expected call.

    Fields: `question` (BFCL's list of message lists, or a text), `function` (the tools on offer), `ground_truth` (the call).

    Raises:
        BadRecord: when a field is missing, of the wrong kind, or more than one call is expected.
    """
    question = record.get("question")
    while isinstance(question, list) and question:
        question = question[-1]
    text = question.get("content") if isinstance(question, Mapping) else question
    tools, truth = record.get("function"), record.get("ground_truth")
    if not isinstance(text, str) or not text.strip():
        raise BadRecord("field 'question' must hold the user's request")
    if not isinstance(tools, list) or not tools or not all(isinstance(tool, Mapping) and tool.get("name") for tool in tools):
        raise BadRecord("field 'function' must list the tools on offer, each with a name")
    if not isinstance(truth, list) or len(truth) != 1 or not isinstance(truth[0], Mapping) or len(truth[0]) != 1:
        raise BadRecord("field 'ground_truth' must hold exactly one expected call")
    preamble = f"You can call these tools:\n{json.dumps(tools, ensure_ascii=False)}\n{FORMAT}"
    details = {"preamble": preamble, "tools": tools, "calls": truth}
    task_id = str(record.get("id") or default_id)
    return SourceTask(task_id, text.strip(), json.dumps(truth), json.loads(json.dumps(details)))


def convert_record(record: Mapping[str, Any], default_id: str, seed: int) -> Conversion:
    """Read a record and take it apart.

    Raises:
        BadRecord, Rejected: as `source_task` and `convert_by_rules` do.
    """
    return convert_by_rules(source_task(record, default_id), seed)


def convert_by_rules(task: SourceTask, seed: int = 0) -> Conversion:
    """Take a request apart along its expected call.

    Raises:
        Rejected: stage "extraction", where the tool has no description or a value cannot be said in a sentence.
    """
    tools = {str(tool["name"]): tool for tool in task.details["tools"]}
    ((name, parameters),) = task.details["calls"][0].items()
    if name not in tools or not (wish := _wish(tools[name])):
        raise Rejected("extraction", "the expected tool is not on offer or says nothing about itself")
    properties = _properties(tools[name])
    arguments: list[Argument] = []
    literals: dict[str, tuple[str, ...]] = {}
    keys: dict[str, str] = {}
    for parameter, allowed in parameters.items():
        values = [value for value in allowed if value != ""]
        if not values or "" in allowed:
            continue  # may be left out: what is not said cannot be asked for
        key = f"a{len(arguments) + 1}"
        schema = properties.get(parameter, {})
        said = _statement(parameter, schema, values[0])
        if said is None:
            raise Rejected("extraction", "a parameter's value cannot be said in one sentence")
        others = _other_values(schema, values[0], parameter, random.Random(derive_seed(seed, task.id, key)))
        texts = [(_statement(parameter, schema, other), other) for other in others]
        alternatives = [Counterfactual(text, _said(values[0]), _said(other)) for text, other in texts if text]
        arguments.append(Argument(key, said, tuple(alternatives)))
        literals[key] = (json.dumps(allowed), *(json.dumps([other]) for text, other in texts if text))
        keys[parameter] = key
    if not arguments:
        raise Rejected("extraction", "the expected call has no parameter that must be given")
    optional = {parameter: allowed for parameter, allowed in parameters.items() if parameter not in keys}
    source = Function(SOURCE, wish, frozenset(keys.values()))
    templates: dict[str, tuple[Piece, ...]] = {SOURCE: _template(name, keys, optional)}
    predecessors: list[Function] = []
    for other_name, tool in tools.items():
        rng = random.Random(derive_seed(seed, task.id, other_name))
        made = _predecessor(f"f{len(predecessors) + 1}", tool, keys, properties, rng)
        if other_name != name and made is not None:
            function, pieces, own = made
            predecessors.append(function)
            templates[function.key] = pieces
            literals |= own
    answers = SlotAnswers(templates, literals)
    return Conversion(task, Ingredients(source, tuple(arguments), tuple(predecessors)), answers, exact=True)


def _properties(tool: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return dict((tool.get("parameters") or {}).get("properties") or {})


def _wish(tool: Mapping[str, Any]) -> str:
    """Return a tool's description as a request: "Please do this for me: calculate the area of a triangle."."""
    description = re.split(r"(?<=[.!?])\s", str(tool.get("description") or "").strip())[0].rstrip(".")
    if len(description.split()) < 3:
        return ""
    first, rest = description.split(" ", 1)
    if re.fullmatch(r"[A-Z][a-z]+[^s]s", first):  # "Calculates the area": a request says "calculate"
        first = first[:-2] if re.search(r"(?:ch|sh|x)es$", first) else first[:-1]
    return f"Please do this for me: {first.lower()} {rest}."


def _statement(parameter: str, schema: Mapping[str, Any], value: Any) -> str | None:
    """Return "The base of the triangle is 10."; None for a value that no sentence holds (an object, a long list)."""
    nested = isinstance(value, list) and (len(value) > 8 or any(isinstance(item, list | dict) for item in value))
    if isinstance(value, Mapping) or nested:
        return None
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|_|(?<=[a-z])(?=\d)", " ", parameter).lower()
    described = re.split(r"[.(,;:]", str(schema.get("description") or ""))[0].strip()
    subject = described if re.match(r"(?:The|Number of)\b", described) and 1 < len(described.split()) <= 12 else f"The {words}"
    if isinstance(value, bool):
        return f"{words.capitalize()}: {'yes' if value else 'no'}."
    plural = " of " not in subject and re.search(r"[a-rt-z]s$", subject.lower())
    return f"{subject} {'are' if plural else 'is'} {_said(value)}."


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _other_values(schema: Mapping[str, Any], value: Any, parameter: str, rng: random.Random) -> list[Any]:
    """Return up to two other values: the schema's choices, the opposite, numbers nearby, or words of the same kind."""
    if choices := [choice for choice in schema.get("enum") or [] if choice != value]:
        return rng.sample(choices, min(2, len(choices)))
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        grain = 10 ** max(0, len(str(abs(value))) - 2)
        steps = [step * grain for step in (-3, -2, -1, 1, 2, 3, 5) if value <= 0 or value + step * grain > 0]
        return [value + step for step in rng.sample(steps, 2)]
    if isinstance(value, float):
        return [round(value * factor, 4) for factor in rng.sample((0.5, 0.8, 1.2, 1.5, 2.0), 2)]
    words = [word for word in _words_for(parameter) if isinstance(value, str) and word.lower() != value.lower()]
    return rng.sample(words, min(2, len(words)))


def _words_for(parameter: str) -> tuple[str, ...]:
    return next((words for pattern, words in _MADE_UP if re.search(pattern, parameter.lower())), ())


def _made_up(parameter: str, schema: Mapping[str, Any], rng: random.Random) -> Any:
    """Return a plausible value for a parameter, None where none can be made up."""
    kind = schema.get("type")
    if choices := schema.get("enum"):
        return rng.choice(choices)
    if kind in ("integer", "int"):
        return rng.randint(2, 20)
    if kind in ("float", "number"):
        return rng.randint(4, 40) / 2
    if kind == "boolean":
        return rng.random() < 0.5
    words = _words_for(parameter) if kind == "string" else ()
    return rng.choice(words) if words else None


def _predecessor(
    key: str, tool: Mapping[str, Any], keys: Mapping[str, str], source: Mapping[str, Mapping[str, Any]], rng: random.Random
) -> tuple[Function, tuple[Piece, ...], dict[str, tuple[str, ...]]] | None:
    """Return another tool as an earlier request: function, expected call, and literals of its own arguments."""
    wish, properties = _wish(tool), _properties(tool)
    required = list((tool.get("parameters") or {}).get("required") or [])
    if not wish or not required:
        return None
    slots: dict[str, str] = {}
    own: list[Argument] = []
    literals: dict[str, tuple[str, ...]] = {}
    needs: set[str] = set()
    for parameter in required:
        schema = properties.get(parameter, {})
        if parameter in keys and schema.get("type") == source.get(parameter, {}).get("type"):
            needs.add(keys[parameter])
            slots[parameter] = keys[parameter]
            continue
        value = _made_up(parameter, schema, rng)
        said = None if value is None else _statement(parameter, schema, value)
        if said is None:
            return None
        slots[parameter] = f"{key}own{len(own) + 1}"
        own.append(Argument(slots[parameter], said))
        literals[slots[parameter]] = (json.dumps([value]),)
    optional = {parameter: ["", *_defaults(schema)] for parameter, schema in properties.items() if parameter not in slots}
    function = Function(key, wish, frozenset(needs), tuple(own))
    return function, _template(str(tool["name"]), slots, optional), literals


def _defaults(schema: Mapping[str, Any]) -> Sequence[Any]:
    return [schema["default"]] if "default" in schema else []


def _template(name: str, slots: Mapping[str, str], optional: Mapping[str, Any]) -> tuple[Piece, ...]:
    """Return the expected calls as JSON text with a slot for every argument's list of allowed values."""
    pieces: list[Piece] = [("text", f"[{{{json.dumps(name)}: {{")]
    first = True
    for parameter, key in slots.items():
        pieces += [("text", f"{'' if first else ', '}{json.dumps(parameter)}: "), ("slot", key)]
        first = False
    rest = ", ".join(f"{json.dumps(parameter)}: {json.dumps(allowed)}" for parameter, allowed in optional.items())
    pieces.append(("text", f"{', ' if rest and not first else ''}{rest}}}}}]"))
    return tuple(pieces)
