"""The calculator annotations: read, computed again, and bound only where that is certain."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collab.environments.evolving_intent.gsm8k.calculator import (
    NotComputable,
    binding_fault,
    exchangeable,
    implied_constants,
    read_calculation,
)
from collab.language.numbers import find_numbers


def test_operands_are_bound_to_earlier_steps_or_the_text():
    calculation = read_calculation("a <<16-3-4=9>>9\nb <<9*11=99>>99", Fraction(99))
    assert calculation is not None
    assert calculation.literals_of(1) == {16, 3, 4, 11}
    assert calculation.compute({Fraction(16): Fraction(20)}) == (13, 143)
    assert [step.line for step in calculation.steps] == [0, 1]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("20%*50", 10),
        ("-3+5", 2),
        ("7/2", Fraction(7, 2)),
        ("2*(3+(4-1))/3", 4),
        (".5*10", 5),
        ("1,000-1", 999),
        ("8-3-2", 3),
        ("16/4/2", 2),
    ],
)
def test_arithmetic(expression, value):
    calculation = read_calculation(f"<<{expression}={float(value)}>>", Fraction(value))
    assert calculation is not None
    assert calculation.values[-1] == value


@pytest.mark.parametrize(
    "expression", ["2+", "(2", "2)", "2**3", "x*2", "", "3 4", "__import__('os')", "((" * 15 + "1" + "))" * 15]
)
def test_what_is_no_sum_is_not_read(expression):
    assert read_calculation(f"<<{expression}=1>>", Fraction(1)) is None


def test_a_solution_that_does_not_give_the_gold_answer_is_not_read():
    assert read_calculation("<<2+3=5>>", Fraction(6)) is None
    assert read_calculation("<<2+3=6>>", Fraction(6)) is None
    assert read_calculation("no annotation", Fraction(6)) is None


def test_division_by_zero_is_named():
    calculation = read_calculation("<<8/4=2>>", Fraction(2))
    assert calculation is not None
    with pytest.raises(NotComputable):
        calculation.compute({Fraction(4): Fraction(0)})


@pytest.mark.parametrize(
    ("solution", "gold", "text", "fault"),
    [
        ("<<5=5>>5", 5, "There are 5.", "without computing"),
        ("<<4+5=9>>9\n<<9*2=18>>18", 18, "4 and 5 and 9 are twice.", "may be a result or a number"),
        ("<<4+135=139>>139", 139, "There are 4.", "nothing in the text explains"),
        ("<<4+5=9>>9\n<<3+6=9>>9\n<<9+1=10>>10", 10, "4, 5, 3 and 6.", "may be a result or a number"),
        ("<<4+5=9>>9", 9, "4 and 5.", None),
        ("<<40*20/100=8>>8", 8, "40 people, 20% of them.", None),
    ],
)
def test_binding_is_refused_where_it_is_not_certain(solution, gold, text, fault):
    calculation = read_calculation(solution, Fraction(gold))
    assert calculation is not None
    found = binding_fault(calculation, find_numbers(text), text)
    assert (fault is None and found is None) or (fault is not None and found is not None and fault in found)


@pytest.mark.parametrize(
    ("text", "solution", "gold", "place", "literal"),
    [
        ("40 boys and 9 girls.", "<<40+9=49>>", 49, 0, 40),
        ("40 boys and 40 girls.", "<<40+40=80>>", 80, 0, None),  # twice in the text
        ("7 days a week, 30 pens.", "<<7*30=210>>", 210, 0, None),  # a constant that a word implies
        ("2 boys and 9 girls.", "<<2+9=11>>", 11, 0, None),  # too small to be sure
        ("80 pens, 20% off.", "<<80*.2=16>>", 16, 1, Fraction(1, 5)),  # a percentage as its hundredth
        ("80 pens, 13 caps.", "<<80*2=160>>", 160, 1, None),  # not computed with
    ],
)
def test_values_are_exchangeable_only_where_they_are_certain(text, solution, gold, place, literal):
    calculation = read_calculation(solution, Fraction(gold))
    assert calculation is not None
    numbers = find_numbers(text)
    assert exchangeable(calculation, numbers[place], numbers, text) == literal


def test_words_imply_constants():
    assert {7, 52} <= implied_constants("every week")
    assert 12 in implied_constants("a dozen eggs")
    assert not implied_constants("boys and girls")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("+-*"), st.integers(1, 99)), min_size=1, max_size=6), st.integers(1, 99))
def test_any_sum_is_computed_as_python_would(terms, first):
    expression = str(first) + "".join(f"{operator}{value}" for operator, value in terms)
    gold = Fraction(eval(expression))
    if gold == 0:
        return
    calculation = read_calculation(f"<<{expression}={gold}>>", gold)
    assert calculation is not None
    assert calculation.values[-1] == gold
