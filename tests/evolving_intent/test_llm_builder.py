"""The LLM builder: what it accepts, what it rejects and why, and that it is the same twice."""

import json
import re

import pytest

from collab.environments.evolving_intent import briefs
from collab.environments.evolving_intent.acceptance import counterfactual_fault, extraction_fault, predecessor_fault
from collab.environments.evolving_intent.conversations import evolve
from collab.environments.evolving_intent.conversion import Rejected, SourceTask
from collab.environments.evolving_intent.intent import Argument
from collab.environments.evolving_intent.llm_builder import ModelBuilder
from collab.environments.evolving_intent.rendering import MATH
from collab.environments.evolving_intent.schedule import Shape
from collab.environments.evolving_intent.solvers import ModelSolver, number_solver
from collab.rewards.accuracy import compare
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.errors import ChatModelError

SOURCE = "Ann buys 12 pens for $3 each and pays $40. How much change does she get?"
TASK = SourceTask("pens", SOURCE, "4")
ARGUMENTS = ("Ann buys 12 pens.", "Each pen costs $3.", "Ann pays $40.")


@pytest.mark.parametrize(
    ("function", "arguments", "fault"),
    [
        ("How much change does Ann get?", ARGUMENTS, None),
        ("", ARGUMENTS, "there is no function"),
        ("How much change does Ann get?", (), "there are 0 arguments"),
        ("How much change does Ann get?", tuple("abcdef"), "there are 6 arguments"),
        ("How much of $40 does Ann get back?", ARGUMENTS, "the function carries a value"),
        ("How much change does Ann get?", ARGUMENTS[:2], "the value 40 of the source is in no argument"),
        ("How much change does Ann get?", (*ARGUMENTS, "She spends $36."), "the value 36 is not in the source"),
        ("How much change does Ann get?", (*ARGUMENTS, "Ann pays $40!"), "two arguments say the same"),
    ],
)
def test_extractions_are_checked(function, arguments, fault):
    found = extraction_fault(SOURCE, function, arguments)
    assert found is None if fault is None else fault in found


@pytest.mark.parametrize(
    ("old", "new", "sentence", "fault"),
    [
        ("12", "15", "Ann buys 15 pens.", None),
        ("12", "15", "ann buys 15  pens", None),
        ("12", "12", "Ann buys 12 pens.", "no value is exchanged"),
        ("13", "15", "Ann buys 15 pens.", "stands 0 times"),
        ("12", "15", "Ann buys 15 red pens.", "does not give the sentence"),
        ("pens", "pens and caps", "Ann buys 12 pens and caps.", "added to or taken away"),
        ("12", "more than one hundred and twenty", "Ann buys more than one hundred and twenty pens.", "far longer"),
        ("12", "40", "Ann buys 40 pens.", "has the new value already"),
        ("12", "18", "Ann buys 18 pens.", "proposed before"),
    ],
)
def test_counterfactuals_are_checked(old, new, sentence, fault):
    found = counterfactual_fault(ARGUMENTS[0], old, new, sentence, [*ARGUMENTS, "Ann buys 18 pens."])
    assert found is None if fault is None else fault in found


@pytest.mark.parametrize(
    ("function", "own", "shared", "fault"),
    [
        ("How much do the pens cost?", (), 2, None),
        ("", (), 2, "1 to 25 words"),
        ("How " + "very " * 25 + "much?", (), 2, "1 to 25 words"),
        ("How much do 12 pens cost?", (), 2, "carries a value"),
        ("How much change does she get?", (), 2, "later question again"),
        ("How much do the pens cost?", (), 0, "0 arguments are shared; 1 to 4"),
        ("How much do the pens cost?", ("Ann pays $40",), 1, "one of the source's"),
    ],
)
def test_predecessors_are_checked(function, own, shared, fault):
    arguments = [Argument(f"a{number}", text) for number, text in enumerate(ARGUMENTS)]
    found = predecessor_fault(function, own, shared, (1, 4), arguments, ["How much change does she get?"])
    assert found is None if fault is None else fault in found


def proposals(**changes: object):
    """A model that proposes sensible parts for the pens task; `changes` replaces what it says at a stage."""
    said = {
        "extract": {"function": "How much change does Ann get?", **{f"argument_{n}": a for n, a in enumerate(ARGUMENTS, 1)}},
        "predecessor": {
            "archetype": "total_then_component",
            "question": "How much do the pens cost together?",
            "shared": "1, 2",
        },
        "judge": {"different": True, "contradicts": False, "reason": "cost against change"},
    } | changes

    def script(request, rng):
        system, asked = request.messages[0].content, request.messages[-1].content
        if "take a word problem apart" in system:
            return json.dumps(said["extract"])
        if "Exchange exactly one value" in system:
            sentence = re.search(r"The sentence to change:\n(.*)", asked)[1]
            old = re.search(r"\d+", sentence)[0]
            new = str(int(old) + 5 + asked.count("Taken already"))
            return json.dumps({"old_value": old, "new_value": new, "sentence": sentence.replace(old, new)})
        if "earlier question" in system:
            return json.dumps(said["predecessor"])
        return json.dumps(said["judge"])

    return ScriptedChatModel(script)


def solver(answers=None) -> ModelSolver:
    """A solver that computes: the cost, or the change when that is asked for."""

    def script(request, rng):
        text = request.messages[-1].content
        pens, price, paid = (
            int(re.search(p, text)[1]) if re.search(p, text) else 0 for p in (r"buys (\d+)", r"\$(\d+) each", r"pays \$(\d+)")
        )
        price = price or int((re.search(r"costs \$(\d+)", text) or [0, 0])[1])
        discount = 1 if "discount" in text else 0
        result = paid - pens * price + discount if "change" in text else pens * price
        return answers.pop(0) if answers else f"The answer is {result}."

    return number_solver(ScriptedChatModel(script))


def builder(model=None, reference=None, **options) -> ModelBuilder:
    return ModelBuilder(model or proposals(), briefs.MATH_BRIEF, reference or solver(), predecessors=1, **options)


async def test_a_task_is_taken_apart_and_can_be_played():
    conversion = await builder().convert(TASK)
    parts = conversion.ingredients
    assert [argument.text for argument in parts.arguments] == list(ARGUMENTS)
    assert [[other.new for other in argument.alternatives] for argument in parts.arguments] == [
        ["17", "18"],
        ["8", "9"],
        ["45", "46"],
    ]
    (predecessor,) = parts.predecessors
    assert predecessor.needs == {"a1", "a2"}
    assert conversion.answers.answer(predecessor, {"a1": 0, "a2": 0}) == "36"
    assert conversion.answers.answer(predecessor, {"a1": 1, "a2": 0}) is None
    assert conversion.answers.answer(parts.source, {"a1": 0, "a2": 0, "a3": 0}) == "4"
    assert len(evolve(conversion, Shape(5, 1, 2), MATH).messages) == 5
    assert (await builder().convert(TASK)).to_record() == conversion.to_record()


async def test_extraction_gives_up_after_its_attempts_with_the_reason():
    model = proposals(extract={"function": "How much?", "argument_1": "Ann buys 12 pens."})
    with pytest.raises(Rejected, match="the value 3 of the source is in no argument"):
        await builder(model).convert(TASK)
    assert model.calls == 5
    with pytest.raises(Rejected, match="the solver does not get the reference"):
        await builder(reference=solver(["The answer is 1.", "The answer is 2."] * 9)).convert(TASK)


async def test_the_solvers_answer_to_the_original_will_do_where_it_misses_the_reference():
    wrong = SourceTask("pens", SOURCE, "5")  # the reference is off; the solver agrees with itself
    original = solver()
    conversion = await builder(reference=original).convert(wrong)
    assert [argument.text for argument in conversion.ingredients.arguments] == list(ARGUMENTS)


@pytest.mark.parametrize(
    ("stage", "reply", "note"),
    [
        ("judge", {"different": False, "contradicts": False, "reason": "same"}, "judged to ask the same"),
        ("judge", {"different": True, "contradicts": True, "reason": "no"}, "judged to contradict"),
        ("predecessor", {"archetype": "sideways", "question": "Why?", "shared": ""}, "unknown archetype 'sideways'"),
        (
            "predecessor",
            {"archetype": "total_then_component", "question": "How much change is due?", "shared": "1, 2, 3"},
            "it has the answer of the source",
        ),
        (
            "predecessor",
            {
                "archetype": "total_then_component",
                "question": "How much do the pens cost together?",
                "shared": "1, 2",
                "new_argument_1": "There is a discount today.",
            },
            "its own arguments change the final answer",
        ),
    ],
)
async def test_rejected_proposals_are_kept_with_their_reasons(stage, reply, note):
    conversion = await builder(proposals(**{stage: reply})).convert(TASK)
    assert conversion.ingredients.predecessors == ()
    assert any(note in kept for kept in conversion.notes)


async def test_new_arguments_that_do_not_matter_are_accepted():
    reply = {
        "archetype": "total_then_component",
        "question": "How much do the pens cost together?",
        "shared": "1, 2",
        "new_argument_1": "The shop sells red pens only.",
    }
    (predecessor,) = (await builder(proposals(predecessor=reply)).convert(TASK)).ingredients.predecessors
    assert [own.text for own in predecessor.own] == ["The shop sells red pens only."]


async def test_unusable_replies_are_notes_and_a_broken_model_is_an_error():
    def script(request, rng):
        return "no idea" if "earlier question" in request.messages[0].content else good._script(request, rng)

    good = proposals()
    conversion = await builder(ScriptedChatModel(script)).convert(TASK)
    assert conversion.ingredients.predecessors == () and any(note.startswith("predecessor:") for note in conversion.notes)

    def broken(request, rng):
        raise ChatModelError("down")

    with pytest.raises(ChatModelError):
        await builder(ScriptedChatModel(broken)).convert(TASK)


def test_every_brief_says_what_it_must():
    for brief in (briefs.MATH_BRIEF, briefs.SQL_BRIEF, briefs.CALLS_BRIEF, briefs.SEARCH_BRIEF, briefs.SOFTWARE_BRIEF):
        assert brief.function in briefs.extraction_prompt(brief)
        assert all(
            way.name in briefs.predecessor_prompt(brief) and 0 <= way.shared[0] <= way.shared[1] for way in brief.archetypes
        )
    assert compare("4", "4") is True
