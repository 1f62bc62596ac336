"""Function calling: parameters as arguments, other tools as predecessors, expected calls of every state."""

import json

import pytest

from collab.environments.domain import BadRecord, Environment, Resources
from collab.environments.evolving_intent.calls.builder import convert_record
from collab.environments.evolving_intent.calls.domain import CALL_PHRASES, CallVerifier
from collab.environments.evolving_intent.conversations import evolve
from collab.environments.evolving_intent.conversion import Rejected
from collab.environments.evolving_intent.schedule import Shape
from collab.environments.registry import load_domain
from collab.rewards.calls import match_text
from simulators.conversation import Message


def _tool(name, description, required, **properties):
    return {
        "name": name,
        "description": description,
        "parameters": {"type": "dict", "properties": properties, "required": required},
    }


BASE = {"type": "integer", "description": "The base of the triangle."}
HEIGHT = {"type": "integer", "description": "The height of the triangle."}
TRIANGLE = {
    "id": "triangle",
    "question": [[{"role": "user", "content": "Find the area of a triangle with base 10 and height 5."}]],
    "function": [
        _tool("triangle.area", "Calculates the area of a triangle. Fast.", ["base", "height"], base=BASE, height=HEIGHT,
              unit={"type": "string", "description": "The unit"}),
        _tool("circle.area", "Calculate the area of a circle.", ["radius"], radius={"type": "float", "description": "Size."}),
        _tool("triangle.check", "Check whether a triangle is flat.", ["height"], height=HEIGHT),
        _tool("mystery", "Do it.", ["thing"], thing={"type": "dict"}),
    ],
    "ground_truth": [{"triangle.area": {"base": [10], "height": [5], "unit": ["units", ""]}}],
}  # fmt: skip


def calls_of(target: str) -> str:
    """Write expected calls as a reply would."""
    ((name, parameters),) = json.loads(target)[0].items()
    given = {key: allowed[0] for key, allowed in parameters.items() if "" not in allowed}
    return f"[{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})]"


def test_parameters_become_arguments_and_other_tools_predecessors():
    conversion = convert_record(TRIANGLE, "x", seed=0)
    parts = conversion.ingredients
    assert parts.source.text == "Please do this for me: calculate the area of a triangle."
    assert [argument.text for argument in parts.arguments] == [
        "The base of the triangle is 10.",
        "The height of the triangle is 5.",
    ]
    assert [function.text for function in parts.predecessors] == [
        "Please do this for me: calculate the area of a circle.",
        "Please do this for me: check whether a triangle is flat.",
    ]
    circle, flat = parts.predecessors
    assert circle.own and not circle.needs and flat.needs == {"a2"} and not flat.own
    told = {"a1": 0, "a2": 0}
    assert json.loads(conversion.answers.answer(parts.source, told)) == TRIANGLE["ground_truth"]
    other = int(parts.arguments[0].alternatives[0].new)
    stale = json.loads(conversion.answers.answer(parts.source, told | {"a1": 1}))
    assert stale == [{"triangle.area": {"base": [other], "height": [5], "unit": ["units", ""]}}]
    assert json.loads(conversion.answers.answer(flat, {"a2": 0})) == [{"triangle.check": {"height": [5]}}]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"question": 3}, "field 'question'"),
        ({"function": []}, "field 'function'"),
        ({"ground_truth": [{"a": {}}, {"b": {}}]}, "exactly one expected call"),
    ],
)
def test_bad_records_are_named(change, complaint):
    with pytest.raises(BadRecord, match=complaint):
        convert_record(TRIANGLE | change, "x", seed=0)


@pytest.mark.parametrize(
    ("truth", "reason"),
    [
        ([{"unknown": {"base": [10]}}], "not on offer"),
        ([{"triangle.area": {"base": [{"deep": 1}]}}], "cannot be said"),
        ([{"triangle.area": {"unit": ["units", ""]}}], "no parameter that must be given"),
    ],
)
def test_calls_that_cannot_be_told_are_rejected(truth, reason):
    with pytest.raises(Rejected, match=reason):
        convert_record(TRIANGLE | {"ground_truth": truth}, "x", seed=0)


async def test_conversations_are_graded_by_matching_calls():
    environment = Environment(load_domain("evolving_calls", {"turns": 4}), Resources(count_tokens=len))
    task = environment.domain.task_from_record(TRIANGLE, "x")
    record = task.metadata["evolving"]
    assert record["messages"][0].startswith("You can call these tools:")
    replies = [calls_of(target["answer"]) if target["answer"] else "Which one?" for target in record["targets"]]
    said = zip(record["messages"], replies, strict=True)
    conversation = [message for text, reply in said for message in (Message("user", text), Message("assistant", reply))]
    score = await environment.reward.score(tuple(conversation), task)
    assert score.components == {"accuracy": 1.0, "intent_tracking": 1.0}
    wrong = (*conversation[:-1], Message("assistant", replies[-1].replace("10", "11")))
    assert (await environment.reward.score(wrong, task)).components["accuracy"] == 0.0
    assert CallVerifier().answers("[f(a=1)]") and not CallVerifier().answers("Which one?")


@pytest.mark.parametrize(("name", "shape", "least"), [("simple_python", Shape(3, 0, 1), 0.7), ("multiple", Shape(4, 1, 1), 0.5)])
def test_real_requests_convert_and_expect_the_given_calls(collab_data, name, shape, least):
    folder = collab_data / "bfcl"
    records = [json.loads(line) for line in (folder / f"BFCL_v4_{name}.json").read_text().splitlines()]
    answers = [json.loads(line) for line in (folder / "possible_answer" / f"BFCL_v4_{name}.json").read_text().splitlines()]
    truth = {entry["id"]: entry["ground_truth"] for entry in answers}
    played = 0
    for record in records:
        try:
            conversion = convert_record(record | {"ground_truth": truth[record["id"]]}, "x", seed=0)
            conversation = evolve(conversion, shape, CALL_PHRASES)
        except (Rejected, BadRecord):
            continue
        played += 1
        final = json.loads(conversation.targets[-1].answer)
        ((function, expected),) = final[0].items()
        ((wanted, parameters),) = truth[record["id"]][0].items()
        assert function == wanted and expected.keys() == parameters.keys()
        request = {"text": calls_of(json.dumps(truth[record["id"]])), "expected": final, "functions": record["function"]}
        if "{" not in request["text"]:
            assert match_text(request)
    assert played / len(records) >= least
