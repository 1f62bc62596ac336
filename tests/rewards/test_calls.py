"""Function-call match: BFCL's rules, and text that is no call at all."""

import json

import pytest

from collab.rewards.calls import CallMatch, match_text
from collab.rewards.component import RewardComponent
from collab.tasks.task import Task
from simulators.errors import ConfigurationError
from tests.rewards.conversations import says

FUNCTIONS = [
    {
        "name": "play",
        "parameters": {
            "properties": {
                "artist": {"type": "string"},
                "minutes": {"type": "integer"},
                "volume": {"type": "float"},
                "loud": {"type": "boolean"},
                "levels": {"type": "array", "items": {"type": "float"}},
                "where": {"type": "dict", "properties": {"room": {"type": "string"}, "floor": {"type": "integer"}}},
            }
        },
    },
    {"name": "music.stop", "parameters": {"properties": {}}},
]


def matches(text, *expected):
    return match_text({"text": text, "expected": list(expected), "functions": FUNCTIONS})


def play(**allowed):
    return {"play": allowed}


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("[play(artist='Taylor Swift', minutes=20)]", {"artist": ["Taylor Swift"], "minutes": [20]}),
        ("[play('Taylor Swift', 20)]", {"artist": ["Taylor Swift"], "minutes": [20]}),
        ("play(minutes=20)", {"minutes": [20]}),
        ("[play(artist='taylor-swift')]", {"artist": ["Taylor Swift"]}),
        ("[play(minutes=20)]", {"minutes": [20], "loud": [True, ""]}),
        ("[play(minutes=20, loud=True)]", {"minutes": [20], "loud": [True, ""]}),
        ("[play(minutes=20, loud=true)]", {"minutes": [20], "loud": [True]}),
        ("[play(volume=5)]", {"volume": [5.0]}),
        ("[play(volume=5.0)]", {"volume": [5]}),
        ("[play(volume=-0.5)]", {"volume": [-0.5]}),
        ("[play(minutes=10)]", {"minutes": [20, 10]}),
        ("[play(levels=[1, 2.5])]", {"levels": [[1.0, 2.5]]}),
        ("[play(levels=(1.0, 2.0))]", {"levels": [[1, 2]]}),
        ("[play(where={'room': 'Kitchen', 'floor': 1})]", {"where": [{"room": ["kitchen"], "floor": [1]}]}),
        ("[play(where={'room': 'kitchen'})]", {"where": [{"room": ["kitchen"], "floor": [1, ""]}]}),
    ],
)
def test_right_calls(text, allowed):
    assert matches(text, play(**allowed))


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("[play(minutes=21)]", {"minutes": [20]}),
        ("[play(minutes='20')]", {"minutes": [20]}),
        ("[play(minutes=20.0)]", {"minutes": [20]}),
        ("[play(minutes=True)]", {"minutes": [1]}),
        ("[play(loud=1)]", {"loud": [True]}),
        ("[play(artist=5)]", {"artist": ["5"]}),
        ("[play(minutes=20, loud=True)]", {"minutes": [20]}),
        ("[play()]", {"minutes": [20]}),
        ("[play(levels=[1.0])]", {"levels": [[1.0, 2.0]]}),
        ("[play(levels=[2.0, 1.0])]", {"levels": [[1.0, 2.0]]}),
        ("[play(where={'room': 'kitchen', 'door': 1})]", {"where": [{"room": ["kitchen"]}]}),
        ("[stop(minutes=20)]", {"minutes": [20]}),
        ("[play(minutes=20), play(minutes=20)]", {"minutes": [20]}),
        ("[]", {"minutes": [20]}),
        ("[play(minutes=10 + 10)]", {"minutes": [20]}),
        ("[play(minutes=int('20'))]", {"minutes": [20]}),
        ("[play(minutes=20, minutes=20)]", {"minutes": [20]}),
        ("[play(**{'minutes': 20})]", {"minutes": [20]}),
        ("[play(1, 2, 3, 4, 5, 6, 7)]", {"minutes": [20]}),
        ("[20]", {"minutes": [20]}),
        ("__import__('os').system('true')", {"minutes": [20]}),
        ("play(minutes=20", {"minutes": [20]}),
        ("[play(levels=" + "[" * 150 + "]" * 150 + ")]", {"levels": [[1.0]]}),
        ("[play(minutes=" + "-" * 5000 + "1)]", {"minutes": [20]}),
        ("[play(minutes=9" + "9" * 6000 + ")]", {"minutes": [20]}),
        ("\x00", {"minutes": [20]}),
    ],
)
def test_wrong_calls(text, allowed):
    assert not matches(text, play(**allowed))


def test_order_does_not_matter_and_each_call_counts_once():
    first, second = play(minutes=[20, 10]), play(minutes=[20])
    assert matches("[play(minutes=20), play(minutes=10)]", first, second)
    assert matches("[play(minutes=10), play(minutes=20)]", first, second)
    assert not matches("[play(minutes=10), play(minutes=10)]", first, second)
    assert matches("[music.stop(), play(minutes=20)]", second, {"music.stop": {}})


def test_a_pairing_that_greedy_matching_misses():
    # the first call fits both expectations; taking the first of them leaves the second call without one
    assert matches("[play(minutes=1), play(minutes=2)]", play(minutes=[1, 2]), play(minutes=[1]))


async def test_component():
    component = CallMatch()
    assert isinstance(component, RewardComponent)
    task = Task("a1", "g", metadata={"function": FUNCTIONS, "reference_answer": [play(minutes=[20])]})
    assert await component.score(says("Sure:\n```python\n[play(minutes=20)]\n```"), task) == 1.0
    assert await component.score(says("[play(minutes=20)]", "Anything else?"), task) == 1.0
    assert await component.score(says("[play(minutes=20)]", "Now [play(minutes=30)]"), task) == 0.0
    assert await component.score(says("I cannot do that."), task) == 0.0


@pytest.mark.parametrize("expected", [None, [], "play()", [{"play": {"minutes": 20}}], [{"a": {}, "b": {}}]])
async def test_bad_references_are_configuration_errors(expected):
    with pytest.raises(ConfigurationError, match="task a2"):
        await CallMatch().score(says("[play()]"), Task("a2", "g", metadata={"reference_answer": expected}))


def _written(expected):
    """Write the first allowed value of every parameter as a call."""
    calls = []
    for call in expected:
        ((name, parameters),) = call.items()
        arguments = ", ".join(f"{key}={_first(values)!r}" for key, values in parameters.items() if values[0] != "")
        calls.append(f"{name}({arguments})")
    return f"[{', '.join(calls)}]"


def _first(values):
    value = values[0]
    if isinstance(value, dict):
        return {
            key: _first(each) if isinstance(each, list) else each for key, each in value.items() if each != [""] and each != ""
        }
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_first([each]) for each in value]
    return value


@pytest.mark.parametrize("name", ["BFCL_v4_parallel", "BFCL_v4_parallel_multiple", "BFCL_v4_multiple", "BFCL_v4_simple_python"])
def test_references_match_themselves_and_not_each_other(collab_data, name):
    with (
        (collab_data / "bfcl" / f"{name}.json").open() as questions,
        (collab_data / "bfcl/possible_answer" / f"{name}.json").open() as answers,
    ):
        pairs = [(json.loads(one), json.loads(other)) for one, other in zip(questions, answers, strict=True)]
    right = wrong = 0
    for position, (question, answer) in enumerate(pairs):
        request = {"expected": answer["ground_truth"], "functions": question["function"]}
        right += match_text(request | {"text": _written(answer["ground_truth"])})
        wrong += match_text(request | {"text": _written(pairs[position - 1][1]["ground_truth"])})
    assert right == len(pairs)
    assert wrong <= 0.05 * len(pairs)  # neighbours are now and then the same call
