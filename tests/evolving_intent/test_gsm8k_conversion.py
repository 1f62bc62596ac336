"""GSM8K by rules: conversions, their counterfactuals, their answers, and what a reader of the words makes of them."""

import json
import random
from fractions import Fraction
from pathlib import Path

import pytest

from collab.environments.domain import BadRecord
from collab.environments.evolving_intent.conversations import evolve, harmless_ways, repeat, single
from collab.environments.evolving_intent.conversion import Rejected, conversion_from_record
from collab.environments.evolving_intent.gsm8k.builder import RulesBuilder, convert_record, gold_answer, plain, source_task
from collab.environments.evolving_intent.gsm8k.calculator import read_calculation
from collab.environments.evolving_intent.gsm8k.counterfactuals import exchanges
from collab.environments.evolving_intent.intent import SOURCE, Revision, Switch, states
from collab.environments.evolving_intent.reader import Reader, meaning_kept
from collab.environments.evolving_intent.rendering import MATH
from collab.environments.evolving_intent.schedule import Infeasible, Shape, schedule
from collab.environments.evolving_intent.verification import reading_violations, violations
from collab.language.numbers import find_numbers
from tests.evolving_intent.tasks import BAKERY, PROBLEMS, conversions

EVOLVE = Shape(7, 2, 2)


def _records(folder: Path, name: str, count: int, seed: int) -> list[tuple[str, dict]]:
    lines = (folder / "gsm8k" / name).read_text(encoding="utf-8").splitlines()
    chosen = random.Random(seed).sample(range(len(lines)), count)
    return [(f"{name}-{index}", json.loads(lines[index])) for index in chosen]


def test_a_problem_is_taken_apart_with_exact_answers():
    conversion = convert_record(BAKERY, "x", seed=0)
    ingredients = conversion.ingredients
    assert ingredients.source.text == "How much profit does Nora make every morning?"
    assert [argument.text for argument in ingredients.arguments][1] == "She bakes 34 trays of rolls every morning."
    assert [function.text for function in ingredients.predecessors] == [
        "How many rolls does Nora bake every morning?",
        "How much money does Nora earn on the rolls in total?",
    ]
    assert conversion.exact
    told = {argument.key: 0 for argument in ingredients.arguments}
    assert conversion.answers.answer(ingredients.source, told) == "3577"
    assert conversion.answers.answer(ingredients.predecessors[0], {"a2": 0, "a3": 0}) == "612"
    assert conversion.answers.answer(ingredients.predecessors[0], {"a2": 0}) is None


def test_counterfactual_answers_are_the_calculation_done_again():
    for conversion in conversions():
        calculation = read_calculation(str(conversion.task.details["solution"]), Fraction(conversion.task.reference))
        assert calculation is not None
        everything = {argument.key: 0 for argument in conversion.ingredients.arguments}
        revisable = [argument for argument in conversion.ingredients.arguments if argument.alternatives]
        assert len(revisable) >= 3
        for argument in revisable:
            for version, other in enumerate(argument.alternatives, start=1):
                value = find_numbers(other.text)[0].value
                expected = calculation.compute({find_numbers(argument.text)[0].value: value})[-1]
                found = conversion.answers.answer(conversion.ingredients.source, everything | {argument.key: version})
                assert found == plain(expected)
                assert found != conversion.task.reference


def test_structural_counterfactuals_keep_to_plausible_values_that_are_new():
    problem = "Ann has 3 sisters, Bea, Cleo and Dot. She has $20 and buys 12 pens. At 9 am she pays 5% tax."
    calculation = read_calculation("<<20-12=8>>8\n<<8*3=24>>24", Fraction(24))
    numbers = find_numbers(problem)
    seen = set()
    for seed in range(30):
        for found in exchanges(problem, numbers, problem, calculation, False, random.Random(seed)):
            seen.add((found.counterfactual.old, found.counterfactual.new))
            assert found.literal is None
    assert {old for old, _ in seen} == {"20", "12"}  # the list fixes 3, and the solution does not compute with 9 and 5
    assert all(new not in ("3", "9", "5") for _, new in seen)


def test_a_year_has_no_more_weeks_than_it_has():
    weeks = BAKERY | {
        "question": "Nora works 50 weeks a year. She bakes 7 rolls every week. How many rolls does Nora bake?",
        "answer": "Nora bakes 50*7 = <<50*7=350>>350 rolls.\n#### 350",
    }
    for seed in range(20):
        told = convert_record(weeks, "x", seed).ingredients.arguments[0]
        assert told.alternatives and all(int(other.new) <= 52 for other in told.alternatives)


def test_the_first_two_of_something_are_not_other_ones():
    tanks = BAKERY | {
        "question": "The first two tanks need 8 gallons each. The others need 3 gallons less than the first two tanks. How much?",
        "answer": "The others need 8-3 = <<8-3=5>>5 gallons.\nAll need 8*2+5*2 = <<8*2+5*2=26>>26.\n#### 26",
    }
    for seed in range(20):
        texts = [
            other.text for argument in convert_record(tanks, "x", seed).ingredients.arguments for other in argument.alternatives
        ]
        assert texts and not any("three" in text or "four" in text for text in texts)


def test_a_calculation_done_again_must_stay_sensible():
    text = "Ann has 40 sweets for 8 friends."
    calculation = read_calculation("<<40/8=5>>5", Fraction(5))
    for seed in range(20):
        for found in exchanges(text, find_numbers(text), text, calculation, True, random.Random(seed)):
            assert find_numbers(found.counterfactual.text)[0].value / find_numbers(found.counterfactual.text)[1].value % 1 == 0


@pytest.mark.parametrize("seed", range(5))
def test_on_exact_conversions_listening_is_everything(seed):
    """A perfect solver scores 100; ignoring revisions fails exactly where there are some, ignoring switches likewise."""
    shapes = [Shape(1), EVOLVE, Shape(4, 1, 1), Shape(3, 0, 0), Shape(3, 0, 2), Shape(3, 2, 0), Shape(5, 1, 1, late=1)]
    for conversion in conversions():
        conversations = [evolve(conversion, shape, MATH, seed) for shape in shapes] + [repeat(conversion, 7, MATH, seed)]
        for conversation in conversations:
            script = conversation.script
            revised = any(isinstance(change, Revision) for turn in script for change in turn.transitions)
            switched = sum(isinstance(change, Switch) for turn in script for change in turn.transitions) > 1
            gold = conversion.task.reference
            messages = _as_told(conversion, conversation)
            assert Reader(conversion).answer(messages) == gold
            assert (Reader(conversion, ignores_revisions=True).answer(messages) == gold) is not revised
            assert (Reader(conversion, ignores_switches=True).answer(messages) == gold) is not switched
            assert conversation.targets[-1].answer == gold
            assert harmless_ways(script, conversion) == []


def _as_told(conversion, conversation):
    """Single-turn text is the source's own; the reader knows the wordings of the parts, so it is given those."""
    if conversation.messages[0] != conversion.task.text:
        return conversation.messages
    parts = " ".join([*(argument.text for argument in conversion.ingredients.arguments), conversion.ingredients.source.text])
    return tuple(message.replace(conversion.task.text, parts) for message in conversation.messages)


def test_targets_follow_the_intent_turn_by_turn():
    conversion = convert_record(BAKERY, "x", seed=0)
    for seed in range(6):
        conversation = evolve(conversion, EVOLVE, MATH, seed)
        path = states(conversation.script, conversion.ingredients)
        for state, target in zip(path, conversation.targets, strict=True):
            function = conversion.ingredients.function(str(state.function))
            assert target.told is state.knows(function)
            assert (target.answer is not None) is target.told
            assert target.answer not in target.stale_values + target.stale_functions
        assert conversation.targets[-1].stale_functions and conversation.targets[-1].stale_values


def test_the_same_seed_gives_the_same_conversation():
    for conversion in conversions():
        first = evolve(conversion, EVOLVE, MATH, seed=3).to_record()
        assert first == evolve(conversion, EVOLVE, MATH, seed=3).to_record()
        assert any(first != evolve(conversion, EVOLVE, MATH, seed=other).to_record() for other in range(4, 8))


def test_single_is_the_source_word_for_word_and_repeat_repeats_it():
    conversion = convert_record(BAKERY, "x", seed=0)
    assert single(conversion).messages == (BAKERY["question"],)
    again = repeat(conversion, 4, MATH, seed=0)
    assert len(again.messages) == 4 and all(BAKERY["question"] in message for message in again.messages)
    assert again.kinds == ("opening", "repeat", "repeat", "repeat")
    assert {target.answer for target in again.targets} == {"3577"}


def test_conversions_survive_storage():
    for conversion in conversions():
        stored = json.loads(json.dumps(conversion.to_record()))
        read = conversion_from_record(stored)
        assert read.to_record() == conversion.to_record()
        assert evolve(read, EVOLVE, MATH, 1) == evolve(conversion, EVOLVE, MATH, 1)


async def test_the_builder_is_the_rules():
    task = source_task(BAKERY, "x")
    assert (await RulesBuilder(seed=2).convert(task)).to_record() == convert_record(BAKERY, "x", seed=2).to_record()


def test_shards_take_the_place_of_extraction():
    record = BAKERY | {"shards": [{"shard_id": 1, "shard": "How much profit is made?"}, {"shard": "34 trays are baked."}]}
    ingredients = convert_record(record, "x", seed=0).ingredients
    assert (ingredients.source.text, ingredients.arguments[0].text) == ("How much profit is made?", "34 trays are baked.")


@pytest.mark.parametrize(
    "shards",
    [
        ["How much profit is made on 34 trays?", "34 trays are baked."],  # the question tells a value that may be revised
        ["Nora bakes rolls.", "34 trays are baked."],  # no question, and the last turn would ask none
        ["How much profit is made?", "34 trays are baked.", "How many rolls is that?"],
        ["How much profit is made?", " "],
        ["", "34 trays are baked."],
    ],
)
def test_shards_that_are_not_one_question_and_its_facts_are_not_believed(shards):
    record = BAKERY | {"shards": [{"shard": shard} for shard in shards]}
    found, plain = (convert_record(each, "x", seed=0).ingredients for each in (record, BAKERY))
    assert (found.source, found.arguments) == (plain.source, plain.arguments)
    blank = BAKERY | {"shards": [{"shard": "How much profit is made?"}, {"shard": ""}, {"shard": "34 trays are baked."}]}
    assert [each.text for each in convert_record(blank, "x", seed=0).ingredients.arguments] == ["34 trays are baked."]


def test_socratic_questions_serve_where_a_line_makes_none():
    answer = "How many rolls are there? ** So 34 x 18 = <<34*18=612>>612\nWhat then? ** <<612/9=68>>68\n#### 68"
    problem = "Nora bakes 34 trays. Each holds 18 rolls. A bag holds 9. How many bags are there?"
    conversion = convert_record({"question": problem, "answer": answer}, "x", seed=0)
    assert [function.text for function in conversion.ingredients.predecessors] == ["How many rolls are there?"]


@pytest.mark.parametrize(
    "question",
    [
        "How many rolls are there on those trays?",
        "How long did the rolls bake to bake?",
        "What is the number of the rolls each?",
        "What is Nora's new total?",
        "How many rolls does she use for it?",
        "How many rolls did each tray hold each?",
        "How many going does Nora spend baking?",
        "How many rolls has across the months Nora baked?",
        "How many rolls do Nora and his sister bake?",
    ],
)
def test_socratic_questions_that_read_badly_are_left_out(question):
    answer = f"{question} ** So 34 x 18 = <<34*18=612>>612\nWhat then? ** <<612/9=68>>68\n#### 68"
    problem = "Nora bakes 34 trays, as she does every day. Each holds 18 rolls. A bag holds 9. How many bags are there?"
    assert convert_record({"question": problem, "answer": answer}, "x", seed=0).ingredients.predecessors == ()


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ({"answer": "#### 3"}, "field 'question'"),
        ({"question": "How many?", "answer": 3}, "field 'answer'"),
        ({"question": "How many?", "answer": "three"}, "must end with"),
        ({"question": "How many?", "answer": "#### three"}, "must end with"),
    ],
)
def test_bad_records_are_named(record, complaint):
    with pytest.raises(BadRecord, match=complaint):
        source_task(record, "x")


def test_gold_answers_are_read_without_signs():
    assert gold_answer("... #### $1,200") == "1200"
    assert plain(Fraction(5, 2)) == "2.5" and plain(Fraction(1, 3)) == "1/3"


def test_uncertain_problems_give_answers_only_where_they_are_sure():
    record = {
        "question": "Ann buys 30 pens. Each costs $4. She pays with money from 3 jars. How much does she pay for the pens?",
        "answer": (
            "The pens cost 30*4 = $<<30*4=120>>120.\nHalf is hidden <<60=60>>60.\nShe pays 60+60=$<<60+60=120>>120.\n#### 120"
        ),
    }
    conversion = convert_record(record, "x", seed=0)
    assert not conversion.exact
    stale = {argument.key: 1 if argument.alternatives else 0 for argument in conversion.ingredients.arguments}
    told = {argument.key: 0 for argument in conversion.ingredients.arguments}
    assert conversion.answers.answer(conversion.ingredients.source, stale) is None
    assert conversion.answers.answer(conversion.ingredients.source, told) == "120"


def test_infeasible_shapes_are_rejections_with_the_reason():
    with pytest.raises(Rejected, match="9 switches need as many predecessors"):
        evolve(convert_record(BAKERY, "x", seed=0), Shape(12, 9, 0), MATH)


def test_on_real_exact_problems_listening_is_everything_too(collab_data):
    played = 0
    for default_id, record in _records(collab_data, "test_socratic.jsonl", 220, seed=9):
        try:
            conversion = convert_record(record, default_id, seed=0)
            conversation = evolve(conversion, Shape(4, 1, 1), MATH, seed=2)
        except Rejected:
            continue
        if not conversion.exact:
            continue
        played += 1
        gold, messages = plain(Fraction(conversion.task.reference)), conversation.messages
        assert Reader(conversion).answer(messages) == gold
        assert Reader(conversion, ignores_revisions=True).answer(messages) != gold
        assert Reader(conversion, ignores_switches=True).answer(messages) != gold
    assert played >= 20


@pytest.mark.parametrize(("name", "least"), [("train.jsonl", 0.14), ("test_socratic.jsonl", 0.25)])
def test_real_conversations_keep_every_rule_and_end_in_their_source(collab_data, name, least):
    records = _records(collab_data, name, 150, seed=5)
    sound = 0
    for default_id, record in records:
        try:
            conversion = convert_record(record, default_id, seed=0)
            script = schedule(conversion.ingredients, EVOLVE, seed=1)
            conversation = evolve(conversion, EVOLVE, MATH, seed=1)
        except (Rejected, Infeasible):
            continue
        sound += 1
        assert violations(script, conversion.ingredients, EVOLVE) == []
        assert reading_violations(conversation.messages, conversion) == []
        assert meaning_kept(conversion, conversation.messages)
        assert conversation.targets[-1].answer in (plain(Fraction(conversion.task.reference)), conversion.task.reference)
    assert sound / len(records) >= least


def test_a_tampered_conversation_is_caught(collab_data):
    conversion = convert_record(PROBLEMS[1], "x", seed=0)
    messages = list(evolve(conversion, EVOLVE, MATH, seed=0).messages)
    spoken = next(number for number, message in enumerate(messages) if "25" in message or "37" in message)
    broken = [*messages[:spoken], messages[spoken].replace("25", "99").replace("37", "99"), *messages[spoken + 1 :]]
    assert reading_violations(broken, conversion) != [] or not meaning_kept(conversion, broken)
    assert reading_violations(messages[:-1], conversion) != []
    assert SOURCE == "source"
