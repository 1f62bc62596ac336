"""The sharding pipeline: by rules on GSM8K, by a model that is not believed, and the review file."""

import json
import random
from collections import Counter
from fractions import Fraction

import pytest

from collab.environments.evolving_intent.gsm8k.calculator import accounted_values, read_calculation
from collab.environments.lost_in_conversation.loading import load_instructions
from collab.environments.lost_in_conversation.schema import Split
from collab.environments.lost_in_conversation.sharding.drafts import (
    draft,
    instruction_of,
    read_review,
    save_instructions,
    write_review,
)
from collab.environments.lost_in_conversation.sharding.gradual import gradual_variants, merged
from collab.environments.lost_in_conversation.sharding.model_sharding import ModelSharder
from collab.environments.lost_in_conversation.sharding.properties import check, has_fault
from collab.environments.lost_in_conversation.sharding.rephrasing import rephrase
from collab.environments.lost_in_conversation.sharding.segmentation import NotShardable, segment
from collab.evaluation.lost_in_conversation.draft_verification import verify
from collab.evaluation.lost_in_conversation.runner import SimulationSettings
from collab.language.numbers import find_numbers, values_in
from collab.language.sentences import tidy
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.errors import ConfigurationError
from simulators.users.sharded import concat
from tests.lost_in_conversation.assistants import Assistants, answers
from tests.lost_in_conversation.records import gold_number, math_instruction, math_record


def unsharded(number: int = 1, **changes):
    record = math_record(number, **changes)
    del record["shards"]
    return record


def test_a_problem_is_cut_at_sentences_conditions_and_joints():
    pieces = segment("Each acre gives 5 tons, and each ton makes 2 barrels. If he has 10 acres, how many barrels does he make?")
    assert pieces.intent == "how many barrels does he make?"
    assert pieces.facts == ("Each acre gives 5 tons", "each ton makes 2 barrels.", "If he has 10 acres")
    assert rephrase(pieces) == (
        "How many barrels does he make?",
        "Each acre gives 5 tons.",
        "Each ton makes 2 barrels.",
        "He has 10 acres.",
    )


def test_a_pronoun_becomes_a_name_only_where_one_name_can_be_meant():
    assert rephrase(segment("Delores has $450. She buys a pen for $4. Her pen lasts 3 days. How much is left?"))[2:] == (
        "Delores buys a pen for $4.",
        "Delores's pen lasts 3 days.",
    )
    assert "She buys a pen for $4." in rephrase(
        segment("Delores has $450. Then Anna pays $9. She buys a pen for $4. What is left?")
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("He has 3 cats and 4 dogs. How many pets does he have?", "only 2 segments"),
        ("He has 3 cats. How many? He has 4 dogs. How many pets?", "several questions"),
        ("He has 3 cats. He has 4 dogs. He is happy.", "nothing is asked"),
    ],
)
def test_what_cannot_be_sharded_says_why(text, reason):
    with pytest.raises(NotShardable, match=reason):
        segment(text)


def test_properties_name_what_is_wrong():
    original = "Ann has 3 cats. Bob has 4 dogs. Cleo has 5 fish. How many pets are there?"
    good = ("How many pets are there?", "Ann has 3 cats.", "Bob has 4 dogs.", "Cleo has 5 fish.")
    assert check(original, good) == ()
    found = {str(finding) for finding in check(original, (*good[:3], "Cleo has 6 fish."))}
    assert any("P1 fault: numbers lost: 5" in text for text in found) and any("added or repeated: 6" in text for text in found)
    assert has_fault(check(original, (*good, "Ann has 3 cats.")))
    assert has_fault(check(original, good[:2]))
    assert any(finding.code == "P2" for finding in check(original, ("How many pets do 3 cats make?", "Ann.", *good[2:])))
    assert any(finding.code == "P3" for finding in check(original, (*good[:3], "Then she gets 5 fish.")))
    assert any(finding.code == "P3" for finding in check(original, (*good[:3], "She has 5 fish.")))
    remarks = check(original, ("What is it?", "3 things.", "4 things.", "5 things."))
    assert any(finding.code == "P1" and finding.severity == "remark" for finding in remarks)


async def test_200_gsm8k_problems_sharded_by_rules(collab_data):
    """Every number of the original stands in exactly one shard, and CONCAT holds what the solution computes with."""
    rows = [json.loads(line) for line in (collab_data / "gsm8k" / "train.jsonl").read_text("utf-8").splitlines()]
    random.Random(8).shuffle(rows)
    made, rejected, computed = [], Counter(), 0
    for number, row in enumerate(rows):
        if len(made) == 200:
            break
        record = {"task": "math", "task_id": f"gsm8k-train-{number}", **row}
        result = await draft(record)
        if result.rejected:
            rejected[result.rejected] += 1
            continue
        made.append(result)
        original, together = Counter(values_in(tidy(row["question"]))), concat(result.shards)
        in_shards = [Counter(values_in(shard)) for shard in result.shards]
        assert sum(in_shards, Counter()) == original, row["question"]
        assert Counter(values_in(together)) == original
        gold = Fraction(row["answer"].rpartition("####")[2].strip().replace(",", ""))
        calculation = read_calculation(row["answer"], gold)
        if calculation is not None:
            computed += 1
            literals = {token.value for step in calculation.steps for token in step.tokens if hasattr(token, "value")}
            before, after = (accounted_values(find_numbers(text)) for text in (tidy(row["question"]), together))
            assert {value: before[value] for value in literals} == {value: after[value] for value in literals}
        assert len(result.shards) >= 3 and result.shards[0].endswith(("?", "."))
        instruction = instruction_of(result, Split.TRAIN)
        assert instruction.full == row["question"].strip() and instruction.shard_texts == result.shards
    sizes = Counter(len(result.shards) for result in made)
    print(
        f"\n200 of {number} sharded, rejected {dict(rejected)}, shards {dict(sorted(sizes.items()))}, {computed} checked by graph"
    )
    assert len(made) == 200 and sum(rejected.values()) < 60 and computed > 150


def test_gradual_variants_lose_nothing_and_nest():
    instruction = math_instruction()
    variants = gradual_variants(instruction)
    assert sorted(variants) == [1, 2, 3, 4] and variants[4] is instruction
    words = " ".join(instruction.shard_texts).split()
    for count, variant in variants.items():
        assert len(variant.shards) == count and " ".join(variant.shard_texts).split() == words
        if count > 1:
            assert variant.shard_texts[0] == instruction.shard_texts[0], "the intent stays alone"
    for count in (2, 3):
        finer, coarser = variants[count + 1].shard_texts, variants[count].shard_texts
        assert len(set(coarser) - set(finer)) == 1, "one pair was merged, the rest is as it was"
    for count in (0, 5):
        with pytest.raises(ConfigurationError, match="cannot be told in"):
            merged(instruction, count)


def test_gradual_variants_of_the_published_problems(collab_data):
    """An 8-shard instruction in 2 to 7 shards, and every other record, summaries included."""
    for path in (collab_data / "lost-in-conversation").glob("*.jsonl"):
        for instruction in load_instructions(path, "evaluation").instructions:
            for count, variant in gradual_variants(instruction).items():
                assert len(variant.shards) == count
                joined, source = ("".join(each.shard_texts).replace(" ", "").replace(".", "") for each in (variant, instruction))
                assert joined == source, variant.id


def test_sentences_without_a_stop_stay_apart():
    variant = merged(math_instruction().with_shards(("How many?", "Ann has 3", "Bob has 4"), "/x"), 2)
    assert variant.shard_texts == ("How many?", "Ann has 3. Bob has 4")


# ---------------------------------------------------------------- with a model

SEGMENTS = """INTENT: How many are left to Ann?
FACT: Ann fills 12 trays.
FACT: Each tray holds 6 rolls.
FACT: She sells 40 of the rolls."""
SHARDS = """INTENT: How many rolls does Ann have left?
FACT: Ann fills 12 trays.
FACT: There are 6 rolls on each tray.
FACT: Ann sells 40 rolls."""


def sharder(*replies, seen=None):
    left = list(replies)

    def script(request, rng):
        if seen is not None:
            seen.append(request)
        return left.pop(0)

    return ModelSharder(ScriptedChatModel(script))


async def test_a_model_shards_in_two_calls():
    result = await draft(unsharded(), sharder(f"Here you are:\n\n{SEGMENTS}", SHARDS))
    assert result.rejected is None and result.shards[2] == "There are 6 rolls on each tray."
    assert result.segments[0] == "How many are left to Ann?"
    assert not has_fault(result.findings)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (SEGMENTS.replace("fills 12", "fills twelve"), "does not stand in the text word for word"),
        (SEGMENTS + "\nFACT: 12 trays.", "overlaps another piece"),
        (SEGMENTS.replace("FACT: Ann fills 12 trays.\n", ""), "the number 12 is in none of the pieces"),
        (SEGMENTS.replace("INTENT", "FACT"), "0 lines that start with INTENT"),
        ("I would rather not.", "0 lines that start with INTENT"),
    ],
)
async def test_bad_segments_are_asked_for_again_with_the_reason(bad, reason):
    seen = []
    result = await draft(unsharded(), sharder(bad, SEGMENTS, SHARDS, seen=seen))
    assert result.rejected is None and reason in seen[1].messages[-1].content
    result = await draft(unsharded(), sharder(bad, bad, bad))
    assert "could not segment" in result.rejected and reason in result.rejected and not result.shards


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (SHARDS.replace("12 trays", "some trays"), "does not have exactly the numbers"),
        (SHARDS.replace("40 rolls", "40 of the 72 rolls"), "does not have exactly the numbers"),
        (SHARDS.rsplit("\n", 1)[0], "2 FACT lines for 3 facts"),
    ],
)
async def test_bad_shards_are_given_up_after_some_attempts(bad, reason):
    result = await draft(unsharded(), sharder(SEGMENTS, bad, bad, bad))
    assert "could not rephrase" in result.rejected and reason in result.rejected


# ---------------------------------------------------------------- verification and review

NUMBERS = range(1, 4)


async def drafts():
    return [await draft(unsharded(number)) for number in NUMBERS]


def assistants(made):
    instructions = [instruction_of(each, Split.EVALUATION) for each in made]
    right = {each.id: f"Answer: {gold_number(each)}" for each in instructions}
    return Assistants(instructions, *answers(right, "Answer: 7"))


async def test_verification_keeps_what_survives_the_concatenation(tmp_path):
    made = await drafts()
    kept = await verify(made, assistants(made).perfect(), tmp_path, SimulationSettings(runs=3))
    assert [each.rejected for each in kept] == [None] * 3
    assert all(each.verified == {"full": 100.0, "concat": 100.0, "shuffle_concat": 100.0} for each in kept)


async def test_verification_rejects_what_loses_too_much(tmp_path):
    made = await drafts()
    helpers = assistants(made)

    def reply(conversation):
        instruction = helpers.instruction_of(conversation)
        in_full = conversation[0].content == instruction.full
        return f"Answer: {gold_number(instruction)}" if in_full and "own/2" in instruction.id else "Answer: 7"

    first, second, third = await verify(made, helpers.policy(reply, "full_only"), tmp_path, SimulationSettings(runs=2))
    assert second.rejected == "concat reaches 0.0 of 100.0 in full"
    assert first.rejected == third.rejected == "not verified: the policy never solves the full instruction"


async def test_rejected_drafts_are_not_run(tmp_path):
    made = [await draft(unsharded(question="Ann has 3 cats. How many?"))]
    assert made[0].rejected == "only 2 segments"
    assert await verify(made, assistants([]).perfect(), tmp_path) == made


async def test_the_review_file_has_the_last_word(tmp_path):
    path = tmp_path / "review.json"
    write_review(path, [*await drafts(), await draft(unsharded(4, question="Ann has 3 cats. How many?"))])
    with pytest.raises(ConfigurationError, match="3 drafts have no decision, the first is number 1"):
        read_review(path, Split.TRAIN)
    data = json.loads(path.read_text("utf-8"))
    assert data["drafts"][3]["decision"] == "reject" and "only 2 segments" in data["drafts"][3]["rejected"]
    for entry, decision in zip(data["drafts"], ("accept", "reject", "accept"), strict=False):
        entry["decision"] = decision
    data["drafts"][2]["shards"][1:3] = [" ".join(data["drafts"][2]["shards"][1:3])]
    path.write_text(json.dumps(data), "utf-8")
    first, third = read_review(path, Split.TRAIN)
    assert len(first.shards) == 4 and len(third.shards) == 3
    save_instructions(tmp_path / "out.jsonl", [first, third])
    again = load_instructions(tmp_path / "out.jsonl", "train").instructions
    assert [each.shard_texts for each in again] == [first.shard_texts, third.shard_texts]
    data["drafts"][0]["shards"][1] = "Ann fills 13 trays."
    path.write_text(json.dumps(data), "utf-8")
    with pytest.raises(ConfigurationError, match="draft 1 is accepted but has a P1 fault"):
        read_review(path, Split.TRAIN)


@pytest.mark.parametrize("content", ["{", "[]", '{"drafts": 3}', "{}"])
def test_a_file_that_is_no_review_file(tmp_path, content):
    path = tmp_path / "review.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="is not a review file"):
        read_review(path, Split.TRAIN)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_review(tmp_path / "absent.json", Split.TRAIN)


async def test_evaluation_problems_cannot_be_accepted_for_training(tmp_path, collab_data):
    row = json.loads((collab_data / "gsm8k" / "test.jsonl").read_text("utf-8").splitlines()[1])
    made = [await draft({"task": "math", "task_id": "x", **row})]
    assert made[0].rejected or made[0].shards
    row = json.loads((collab_data / "gsm8k" / "test.jsonl").read_text("utf-8").splitlines()[0])
    made = [await draft({"task": "math", "task_id": "x", **row})]
    write_review(tmp_path / "r.json", made)
    text = (tmp_path / "r.json").read_text("utf-8").replace('"decision": ""', '"decision": "accept"')
    (tmp_path / "r.json").write_text(text, "utf-8")
    with pytest.raises(ConfigurationError, match="must not be trained on"):
        read_review(tmp_path / "r.json", Split.TRAIN)
    assert read_review(tmp_path / "r.json", Split.EVALUATION)
