"""The scheduler keeps every rule wherever a schedule is feasible, and refuses the rest with the reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collab.environments.evolving_intent.intent import (
    SOURCE,
    Argument,
    Counterfactual,
    Function,
    Ingredients,
    IntentState,
    InvalidTransition,
    Reveal,
    Revision,
    Switch,
    Turn,
    states,
)
from collab.environments.evolving_intent.schedule import Infeasible, Shape, infeasibility, repeated, schedule
from collab.environments.evolving_intent.verification import terminal_violations, violations


@st.composite
def ingredients(draw: st.DrawFn) -> Ingredients:
    size = draw(st.integers(1, 6))
    arguments = tuple(
        Argument(
            f"a{index}",
            f"value {index}",
            tuple(Counterfactual(f"value {index} or {k}", f"{index}", f"{k}") for k in range(draw(st.integers(0, 3)))),
            informative=draw(st.booleans()),
        )
        for index in range(size)
    )
    keys = [argument.key for argument in arguments]
    predecessors = tuple(
        Function(
            f"f{index}",
            f"question {index}?",
            frozenset(draw(st.sets(st.sampled_from(keys), max_size=size))),
            tuple(Argument(f"f{index}own{k}", "own") for k in range(draw(st.integers(0, 2)))),
        )
        for index in range(draw(st.integers(0, 4)))
    )
    return Ingredients(Function(SOURCE, "the question?", frozenset(keys)), arguments, predecessors)


@settings(max_examples=400, deadline=None)
@given(ingredients(), st.integers(1, 12), st.integers(0, 4), st.integers(0, 5), st.integers(0, 2**32))
def test_every_feasible_schedule_keeps_every_rule_and_every_other_is_refused(parts, turns, switches, revisions, seed):
    shape = Shape(turns, switches, revisions)
    capacity = sum(len(argument.alternatives) for argument in parts.arguments)
    reveals = turns - 1 - switches - revisions
    feasible = switches <= len(parts.predecessors) and revisions <= capacity and 0 <= reveals <= len(parts.arguments) - 1
    if feasible:
        script = schedule(parts, shape, seed)
        assert violations(script, parts, shape) == []
        assert script == schedule(parts, shape, seed)
    else:
        with pytest.raises(Infeasible) as refusal:
            schedule(parts, shape, seed)
        assert str(refusal.value) == infeasibility(parts, shape)


@settings(max_examples=200, deadline=None)
@given(ingredients(), st.integers(3, 8), st.integers(1, 2), st.integers(0, 3), st.integers(1, 2), st.integers(0, 2**32))
def test_transitions_after_the_final_switch_keep_the_other_rules(parts, turns, switches, revisions, late, seed):
    if late > revisions + max(turns - 1 - switches - revisions, 0):
        return
    shape = Shape(turns, switches, revisions, late)
    try:
        script = schedule(parts, shape, seed)
    except Infeasible:
        return
    assert violations(script, parts, shape) == []
    last_switch = max(number for number, turn in enumerate(script, start=1) if turn.switch)
    assert len(script) - last_switch == late


def _parts(needs=("a0",)) -> Ingredients:
    arguments = tuple(
        Argument(f"a{index}", f"value {index}", (Counterfactual(f"stale {index}", f"{index}", f"{index + 9}"),))
        for index in range(3)
    )
    function = Function(SOURCE, "the question?", frozenset(argument.key for argument in arguments))
    return Ingredients(function, arguments, (Function("f0", "earlier?", frozenset(needs)),))


def test_late_transitions_are_found_where_they_exist():
    shape = Shape(turns=5, switches=1, revisions=1, late=2)
    assert violations(schedule(_parts(), shape, seed=1), _parts(), shape) == []


def test_different_seeds_give_different_schedules():
    assert len({schedule(_parts(), Shape(5, 1, 1), seed) for seed in range(20)}) > 2


@pytest.mark.parametrize(
    ("turns", "switches", "revisions", "reason"),
    [
        (3, 1, 2, "3 turns are too few for 1 switches and 2 revisions; 4 are needed"),
        (9, 2, 0, "2 switches need as many predecessors; there are 1"),
        (9, 0, 4, "4 revisions need as many counterfactual values; there are 3"),
        (7, 1, 1, "4 turns that reveal need 5 arguments; there are 3"),
    ],
)
def test_infeasible_shapes_are_refused_with_the_reason(turns, switches, revisions, reason):
    with pytest.raises(Infeasible, match=reason):
        schedule(_parts(), Shape(turns, switches, revisions), seed=0)


@pytest.mark.parametrize("counts", [(0, 0, 0, 0), (3, -1, 0, 0), (3, 0, 1, 1), (3, 1, 0, 5)])
def test_impossible_shapes_are_refused(counts):
    with pytest.raises(ValueError, match="schedule"):
        Shape(*counts)


def test_the_repeat_control_changes_nothing_after_the_first_turn():
    script = repeated(_parts(), 4)
    assert [len(turn.transitions) for turn in script] == [4, 0, 0, 0]
    assert terminal_violations(script, _parts()) == []
    assert len(set(map(str, states(script, _parts())))) == 1


OPENING = (Switch(SOURCE), Reveal("a0"))


@pytest.mark.parametrize(
    ("script", "rule"),
    [
        ((Turn((Reveal("a0"),)),), "must ask something"),
        ((Turn(()),), "says nothing"),
        ((Turn((*OPENING, Reveal("a0"))),), "revealed twice"),
        ((Turn((*OPENING, Revision("a1"))),), "never told"),
        ((Turn((*OPENING, Revision("a0"))),), "has that value already"),
        ((Turn(OPENING), Turn((Switch(SOURCE),))), "active function already"),
        ((Turn((Switch(SOURCE), Reveal("a0", 2))),), "no version 2"),
    ],
)
def test_states_refuse_transitions_that_make_no_sense(script, rule):
    with pytest.raises(InvalidTransition, match=rule):
        states(script, _parts())


def test_an_argument_of_another_function_cannot_be_told():
    own = Function("f0", "earlier?", frozenset(), (Argument("extra", "own"),))
    parts = Ingredients(_parts().source, _parts().arguments, (own,))
    with pytest.raises(InvalidTransition, match="belongs to another function"):
        IntentState().after(Turn((Switch(SOURCE), Reveal("extra"))), parts)


@pytest.mark.parametrize(
    ("script", "rule"),
    [
        ((Turn((Switch("f0"), Reveal("a0"), Reveal("a1"), Reveal("a2"))),), "the last turn's function is f0"),
        ((Turn((Switch(SOURCE), Reveal("a0"), Reveal("a1"))),), "a2 is not told"),
        ((Turn((Switch(SOURCE), Reveal("a0", 1), Reveal("a1"), Reveal("a2"))),), "a0 is not at its source value"),
        ((Turn((Switch(SOURCE), Reveal("a1"), Reveal("a0"), Reveal("a2"))),), "source order"),
    ],
)
def test_violations_are_named(script, rule):
    assert any(rule in violation for violation in violations(script, _parts(), Shape(1)))


def test_a_function_asked_on_a_stale_value_is_a_violation():
    told = Turn((Switch("f0"), Reveal("a0", 1), Reveal("a1"), Reveal("a2")))
    script = (told, Turn((Switch(SOURCE),)), Turn((Revision("a0"),)))
    assert any("not corrected yet" in violation for violation in violations(script, _parts(), Shape(3, 1, 1)))
    assert violations(script, _parts(), Shape(3, 1, 1, late=1)) == []


def test_ingredients_must_fit_together():
    argument = Argument("a0", "value")
    with pytest.raises(ValueError, match="unknown arguments"):
        Ingredients(Function(SOURCE, "q?", frozenset({"b"})), (argument,))
    with pytest.raises(ValueError, match="keys repeat"):
        Ingredients(Function(SOURCE, "q?", frozenset()), (argument, argument))
    with pytest.raises(ValueError, match="there must be an argument"):
        Ingredients(Function(SOURCE, "q?", frozenset()), ())
