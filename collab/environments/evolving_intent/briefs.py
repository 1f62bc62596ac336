"""What the model that takes tasks apart is told: the domain's words for function, arguments, values and earlier questions."""

from __future__ import annotations

from dataclasses import dataclass

from simulators.structured_reply import ReplyField, Schema


@dataclass(frozen=True, slots=True)
class Archetype:
    """A way in which an earlier question leads to the later one; `shared` bounds the source arguments both rest on."""

    name: str
    description: str
    shared: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Brief:
    """A domain in words."""

    name: str
    task: str
    function: str
    arguments: str
    values: str
    archetypes: tuple[Archetype, ...]


_MATH_ARCHETYPES = (
    Archetype("lookup_then_compute", "first ask for a quantity that is (nearly) given, then compute with it", (0, 1)),
    Archetype("total_then_component", "first ask for a total, then for one part of it", (1, 4)),
    Archetype("compute_then_extend", "first ask for an intermediate result, then for something that builds on it", (1, 4)),
    Archetype("reframe_problem", "first ask for another quantity of the same situation", (2, 4)),
)
_GENERAL_ARCHETYPES = (
    Archetype("enables", "the answer of the earlier request is something one would want to know before the later one", (0, 3)),
    Archetype("narrows", "the earlier request is broader, the later one picks a part of it", (1, 4)),
    Archetype("reframes", "the earlier request looks at the same things from another side", (1, 4)),
)

MATH_BRIEF = Brief(
    "math",
    "a word problem",
    "the question, as a short sentence without any number",
    "the statements it rests on, each a full sentence that can be understood alone (names instead of pronouns)",
    "a number",
    _MATH_ARCHETYPES,
)
SQL_BRIEF = Brief(
    "text-to-SQL",
    "a request for a database query",
    "what is to be listed, counted or computed, without any concrete value",
    "the conditions, hints and wishes for the result, each a full sentence that can be understood alone",
    "a name, date, number or category that the query compares with",
    _GENERAL_ARCHETYPES,
)
CALLS_BRIEF = Brief(
    "function calling",
    "a request that one or more tool calls fulfil",
    "what is to be done, without any parameter value",
    "the parameters, each a full sentence that gives one value",
    "a parameter's value",
    _GENERAL_ARCHETYPES,
)
SEARCH_BRIEF = Brief(
    "search",
    "a question whose answer must be found in documents",
    "what is looked for, in general words, with no clue that identifies it",
    "the clues, each a full sentence that can be understood alone",
    "a date, quantity, place, category or other detail of a clue",
    _GENERAL_ARCHETYPES,
)
SOFTWARE_BRIEF = Brief(
    "software engineering",
    "a request to change a code base",
    "what is to be changed, without details of how it must behave",
    "the requirements, each a full sentence that can be understood alone",
    "a limit, name, default, message or behaviour that a requirement fixes",
    _GENERAL_ARCHETYPES,
)

EXTRACTION: Schema = {
    "function": ReplyField("text", "What is asked."),
    "argument_1": ReplyField("text", "The first thing it rests on."),
    **{f"argument_{number}": ReplyField("text", "The next, if there is one.", required=False) for number in range(2, 6)},
}
COUNTERFACTUAL: Schema = {
    "old_value": ReplyField("text", "The value as it stands in the sentence, letter by letter."),
    "new_value": ReplyField("text", "Another plausible value of the same kind and about the same length."),
    "sentence": ReplyField("text", "The sentence with the new value in place of the old one, and nothing else changed."),
}
PREDECESSOR: Schema = {
    "archetype": ReplyField("text", "Which of the ways it follows."),
    "question": ReplyField("text", "The earlier question: at most 25 words, no values."),
    "shared": ReplyField("text", "The numbers of the arguments it rests on, as in 1, 3. Empty for none."),
    **{f"new_argument_{number}": ReplyField("text", "A new argument of its own.", required=False) for number in range(1, 4)},
}
JUDGEMENT: Schema = {
    "different": ReplyField("boolean", "true if the two ask for different things"),
    "contradicts": ReplyField("boolean", "true if the new arguments contradict the given ones or change what they mean"),
    "reason": ReplyField("text", "One short sentence."),
}


def extraction_prompt(brief: Brief) -> str:
    """Return the instructions for taking a task apart."""
    return (
        f"You take {brief.task} apart, so that a conversation can tell it bit by bit. Return its function: {brief.function}. "
        f"And its arguments: {brief.arguments}; at most five. Together they must say all that the task says and nothing more: "
        "keep every value exactly as written, derive nothing, leave nothing out. No value may stand in the function."
    )


def counterfactual_prompt(brief: Brief) -> str:
    """Return the instructions for another value of one argument."""
    return (
        f"A person first gets one detail of {brief.task} wrong and corrects it later. Exchange exactly one value of the sentence "
        f"({brief.values}) for a nearby, plausible one of the same kind. It must make a real difference. Exchange, do not add or "
        "remove anything. Do not use a value that the task has already."
    )


def predecessor_prompt(brief: Brief) -> str:
    """Return the instructions for an earlier question."""
    ways = "\n".join(f"- {way.name}: {way.description} ({way.shared[0]} to {way.shared[1]} shared)" for way in brief.archetypes)
    return (
        f"Before a person came to {brief.task} below, they asked for something else. Think of that earlier question: related, "
        "but with a genuinely different answer, and such that asking it first makes sense. It rests on some of the numbered "
        "arguments, and may bring one to three new ones of its own, which must not contradict anything, must not matter for the "
        f"later question, and must not give its answer away.\nWays in which it may lead on:\n{ways}"
    )


def judge_prompt(brief: Brief) -> str:
    """Return the instructions for comparing an earlier with a later question."""
    return f"Compare two questions that a person asks one after the other while working on {brief.task}."
