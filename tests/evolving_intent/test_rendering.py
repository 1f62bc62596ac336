"""What the user says: cues, corrections, recaps, and the file for a person to read."""

import itertools
import json

import pytest

from collab.environments.evolving_intent.conversations import evolve
from collab.environments.evolving_intent.gsm8k.builder import convert_record
from collab.environments.evolving_intent.gsm8k.domain import domain
from collab.environments.evolving_intent.intent import (
    SOURCE,
    Argument,
    Counterfactual,
    Function,
    Ingredients,
    Reveal,
    Revision,
    Switch,
    Turn,
)
from collab.environments.evolving_intent.preview import as_markdown, faults_of, main, sample_tasks
from collab.environments.evolving_intent.recaps import PROMPT_RECAP, Recap, recaps_of
from collab.environments.evolving_intent.rendering import MATH, corrected_part, exchanged_words, render
from collab.environments.evolving_intent.schedule import Shape
from tests.evolving_intent.tasks import BAKERY, PROBLEMS

PARTS = Ingredients(
    Function(SOURCE, "How much is left?", frozenset({"a1", "a2"})),
    (
        Argument("a1", "Ann has $80. She is rich.", (Counterfactual("Ann has $90. She is rich.", "80", "90"),)),
        Argument("a2", "Mr. Bo takes 5."),
    ),
    (Function("f1", "Can you work out how much Ann has?", frozenset({"a1"})),),
)
SCRIPT = (
    Turn((Switch("f1"), Reveal("a1", 1))),
    Turn((Reveal("a2"),)),
    Turn((Revision("a1"),)),
    Turn((Switch(SOURCE),)),
)


def test_only_the_update_is_said_with_a_cue_for_its_kind():
    for seed in range(12):
        opening, reveal, revision, switch = render(SCRIPT, PARTS, MATH, seed)
        assert opening == "Ann has $90. She is rich. Can you work out how much Ann has?"
        assert reveal.endswith("Mr. Bo takes 5.") and reveal != "Mr. Bo takes 5."
        assert "Ann has $80." in revision and "rich" not in revision
        assert switch.endswith("how much is left?")
        assert ("$80, not $90" in revision) == ("not" in revision)


def test_wordings_differ_by_seed_and_never_repeat_in_a_row():
    assert len({render(SCRIPT, PARTS, MATH, seed) for seed in range(20)}) > 5
    script = (Turn((Switch(SOURCE), Reveal("a1"))), Turn(()), Turn(()), Turn(()))
    for seed in range(10):
        said = render(script, PARTS, MATH, seed)
        assert all(one != other for one, other in itertools.pairwise(said))


def test_requests_follow_a_full_stop():
    said = render((Turn((Switch(SOURCE), Reveal("a1"))), Turn((Switch("f1"),))), PARTS, MATH, 0)
    assert said[1].endswith("Can you work out how much Ann has?") and ": Can" not in said[1]


def test_corrections_repeat_only_what_changed():
    assert corrected_part("A is 3. B is 4.", "A is 3. B is 5.") == "B is 5."
    assert corrected_part("Mr. Bo has 3.", "Mr. Bo has 4.") == "Mr. Bo has 4."
    assert corrected_part("A is 3.", "A is 3. B is 4.") == "A is 3. B is 4."
    assert exchanged_words("It costs $90, then.", "It costs $80, then.") == ("$90", "$80")


def test_recaps_are_appended_from_the_second_turn_on():
    said = render(SCRIPT, PARTS, MATH, 0)
    assert recaps_of(said, SCRIPT, PARTS, Recap.NONE) == ("",) * 4
    assert recaps_of(said, SCRIPT, PARTS, Recap.PROMPT) == ("", *[PROMPT_RECAP] * 3)
    oracle = recaps_of(said, SCRIPT, PARTS, Recap.ORACLE)
    assert "Ann has $90" in oracle[1] and "Mr. Bo takes 5." in oracle[1]
    assert "Ann has $90" not in oracle[2] and "Ann has $80" in oracle[2]
    assert "The question now: How much is left?" in oracle[3]
    dump = recaps_of(said, SCRIPT, PARTS, Recap.DUMP)
    assert all(message in dump[3] for message in said[:3])


def test_the_oracle_leaves_out_what_another_function_brought():
    own = Function("f1", "First?", frozenset(), (Argument("x", "Only for the first."),))
    parts = Ingredients(PARTS.source, PARTS.arguments, (own,))
    script = (Turn((Switch("f1"), Reveal("x"), Reveal("a1"))), Turn((Reveal("a2"),)), Turn((Switch(SOURCE),)))
    oracle = recaps_of(render(script, parts, MATH, 0), script, parts, Recap.ORACLE)
    assert "Only for the first." in oracle[1] and "Only for the first." not in oracle[2]


def test_a_page_of_conversations_is_checked_one_by_one():
    tasks = [domain(turns=7).task_from_record(problem, "x") for problem in PROBLEMS]
    page = as_markdown(tasks)
    assert page.count("ends in the source problem") == 3 and "## 3. library" in page
    spoilt = tasks[0].metadata["evolving"]["messages"]
    spoilt[-1] = "OK, next question: how many rolls does Nora bake every morning?"
    assert "the question asked last is not the source's" in faults_of(tasks[0])
    assert "Check: the question asked last" in as_markdown(tasks)


def test_samples_hold_no_problem_twice():
    tasks = {length: [domain(turns=length).task_from_record(problem, "x") for problem in PROBLEMS] for length in (7, 4)}
    sample = sample_tasks(tasks, 10, seed=1)
    assert sorted(task.id for task in sample) == ["bakery", "library", "orchard"]
    assert sample == sample_tasks(tasks, 10, seed=1)


def test_the_preview_command_writes_the_page(tmp_path, capsys):
    source = tmp_path / "problems.jsonl"
    source.write_text("\n".join(json.dumps(problem) for problem in PROBLEMS))
    assert main([str(source), "--out", str(tmp_path / "page.md"), "--count", "3"]) == 0
    assert "3 conversations" in capsys.readouterr().out
    assert (tmp_path / "page.md").read_text().count("Source:") == 3
    assert main([str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "page.md")]) == 1
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("recap", list(Recap))
def test_recaps_do_not_change_targets(recap):
    conversion = convert_record(BAKERY, "x", seed=0)
    plain, recapped = (evolve(conversion, Shape(7, 2, 2), MATH, 1, kind) for kind in (Recap.NONE, recap))
    assert plain.targets == recapped.targets and plain.script == recapped.script
