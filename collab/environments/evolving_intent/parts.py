"""Tasks whose parts are written out: function, arguments with their values, predecessors. For domains without extraction rules.

A record says everything (`docs/evolving_intent.md` shows one); `{a1}` in a reference is the place of argument 1's value, so that
the reference of every state is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from collab.environments.domain import BadRecord
from collab.environments.evolving_intent.conversion import Conversion, SourceTask
from collab.environments.evolving_intent.intent import SOURCE, Argument, Counterfactual, Function, Ingredients
from collab.environments.evolving_intent.slots import Piece, SlotAnswers

_PLACE = re.compile(r"\{(a\d+|f\d+own\d+)\}")


def conversion_from_parts(record: Mapping[str, Any], default_id: str) -> Conversion:
    """Return the conversion that a record with written-out parts describes.

    Fields: `text` (the whole request at once), `reference` (with places), `function`, `arguments` (each `text` with one `{}` and
    `values`, the source's first; or a plain text), optionally `predecessors` (`function`, `needs`: numbers of arguments, `own`:
    texts, `reference`), `details`.

    Raises:
        BadRecord: when the record does not fit together.
    """
    try:
        arguments, literals = [], {}
        for number, entry in enumerate(record["arguments"], start=1):
            argument, values = _argument(f"a{number}", entry)
            arguments.append(argument)
            literals[argument.key] = values
        predecessors, templates = [], {SOURCE: _pieces(record["reference"])}
        for number, entry in enumerate(record.get("predecessors", ()), start=1):
            key = f"f{number}"
            own = tuple(Argument(f"{key}own{place}", text) for place, text in enumerate(entry.get("own", ()), start=1))
            needs = frozenset(f"a{need}" for need in entry["needs"])
            predecessors.append(Function(key, entry["function"], needs, own))
            templates[key] = _pieces(entry["reference"])
        source = Function(SOURCE, record["function"], frozenset(argument.key for argument in arguments))
        answers = SlotAnswers(templates, literals)
        ingredients = Ingredients(source, tuple(arguments), tuple(predecessors))
        told = {argument.key: 0 for argument in arguments}
        reference = answers.answer(source, told)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRecord(f"the task's parts do not fit together: {error!r}") from None
    if reference is None or not isinstance(record.get("text"), str):
        raise BadRecord("field 'reference' may only have places of arguments, and 'text' must hold the whole request")
    task = SourceTask(str(record.get("id") or default_id), record["text"], reference, dict(record.get("details", {})))
    slots = {text for kind, text in templates[SOURCE] if kind == "slot"}
    exact = all(argument.key in slots for argument in arguments if argument.alternatives)
    return Conversion(task, ingredients, answers, exact)


def _argument(key: str, entry: Mapping[str, Any] | str) -> tuple[Argument, tuple[str, ...]]:
    if isinstance(entry, str):
        return Argument(key, entry, informative=False), ("",)
    values: Sequence[str] = [str(value) for value in entry["values"]]
    texts = [entry["text"].replace("{}", value) for value in values]
    others = zip(texts[1:], values[1:], strict=True)
    return Argument(key, texts[0], tuple(Counterfactual(text, values[0], value) for text, value in others)), tuple(values)


def _pieces(template: str) -> tuple[Piece, ...]:
    parts = _PLACE.split(template)
    return tuple(("slot" if index % 2 else "text", part) for index, part in enumerate(parts) if part)
