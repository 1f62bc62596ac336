"""What an assistant's reply *does*: the seven response strategies of Lost in Conversation (section 4.2), by rules.

Only a reply that is an answer attempt is extracted and scored, so this decides what counts as answering too early. The rules
read form, not meaning: answers have a form in every task (a concluding number, a function with a body, a query, a list of
calls), and so have questions, refusals and case distinctions. `strategy_judge` asks a model instead.

| strategy | the reply |
|---|---|
| answer_attempt | commits to one complete answer, right or wrong, whatever it assumes; polite offers after it do not matter |
| clarification | is short and asks the user for one thing |
| interrogation | asks the user for several things |
| discussion | speaks about the problem (plan, partial result, template) and neither answers, asks nor refuses |
| hedge | gives several answers, each under its own assumption |
| refuse | says that it cannot or will not answer, and asks for nothing |
| missing | is blank, or has nothing in it outside its private reasoning and markup |
"""

from __future__ import annotations

import ast
import re
import textwrap
from enum import StrEnum
from itertools import pairwise

from collab.environments.lost_in_conversation.schema import TaskKind


class Strategy(StrEnum):
    """See the table above."""

    ANSWER_ATTEMPT = "answer_attempt"
    CLARIFICATION = "clarification"
    INTERROGATION = "interrogation"
    DISCUSSION = "discussion"
    HEDGE = "hedge"
    REFUSE = "refuse"
    MISSING = "missing"


CLARIFICATION_WORDS = 100
"""A single question in a longer reply is a discussion that happens to ask (the paper's limit)."""

_LONGEST = 20_000
"""Characters read, from the end: answers stand there."""

_FENCE_LINE = re.compile(r"^[ \t]*```[\w+-]*[ \t]*$", re.MULTILINE)
_CODE_BLOCK = re.compile(r"^[ \t]*```[\w+-]*[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_DEFINITION = re.compile(r"\bdef\s+\w+\s*\(")
_SQL = re.compile(r"\bSELECT\b[^;]{1,4000}?\bFROM\b[^;\n]{0,400}?(?=\bSELECT\b|[;\n]|\Z)", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"<\w[\w .]*>|\.\.\.|…|\[\w+ (?:name|condition|here)\]|\byour_\w+", re.IGNORECASE)
_CALL_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\([^\[\]]{0,2000}(?:\[[^\[\]]{0,2000}\][^\[\]]{0,2000}){0,40}\]")

_NUMBER = r"(?:[-+]?[$€£]?\d[\d,]*(?:\.\d+)?)"
_ANNOUNCED = re.compile(rf"\\boxed\{{|^\s*####\s*\S|\banswer\b[*_ ]*(?:is|:|=|would be)[^.?\n]{{0,60}}?{_NUMBER}", re.I | re.M)
_RESULT = re.compile(
    rf"(?:=|\bequals)\s*\**\s*{_NUMBER}|\*\*[^*\n?]{{0,60}}{_NUMBER}[^*\n?]{{0,40}}\*\*|"
    rf"\b(?:total|sum|cost|profit|result)\b[^.?\n]{{0,60}}?(?:\bis\b|\bof\b|:|\bcomes to\b)\s*\**{_NUMBER}|"
    rf"\b(?:that's|that is|which is|which makes|that makes|brings us to|leaves|leaving|gives|"
    rf"ends? up with|adds? up to|comes? to|^(?:so|therefore|thus|hence|overall|altogether|in total))\b"
    rf"[^.?\n]{{0,40}}?{_NUMBER}",
    re.I,
)
_CLOSING_RESULT = re.compile(rf"(?:=|\bequals)\s*\**\s*{_NUMBER}[^.=?\n]{{0,60}}$", re.I)
_PLAN = re.compile(
    r"\b(?:i'll|we'll|i will|we will|let's|let me|we can|one can|we need|we have to|has to be|have to be|we should|next step|"
    r"take this into account|work backwards|as soon as|once (?:we|you|i|the)|find (?:the|how|out)|let \w be)\b",
    re.I,
)
_ACKNOWLEDGEMENT = re.compile(r"^(?:got it|noted|thanks|thank you|i see|ok(?:ay)?|understood|so far|right|great)\b", re.I)
_BARE_ANSWER_WORDS = 25

_BRANCH = re.compile(
    r"\bif\b|\bassum(?:e|ing)\b|\bsuppos(?:e|ing)\b|\bshould (?:he|she|it|they|you|the)\b|\bcase \d|\boption [a-d1-9]\b|"
    r"\bscenario [a-d1-9]\b|\bon (?:the|a) (?:\d-day|\w+ (?:reading|assumption|interpretation))\b|\bwhereas\b|"
    r"(?:^|^[-*] |, )with (?:\d|the default)|\blet's say\b|"
    r"\botherwise\b|\balternatively\b",
    re.I,
)
_ALTERNATIVE = re.compile(
    r"^for (?:the|a|an|all|only)\b|\bon the other hand\b|\b(?:ways?|readings?|interpretations?|versions?) (?:to read|of|\d)\b|"
    r"\b(?:choose|pick|use) (?:the one|which|whichever)\b|\bwhichever\b",
    re.I,
)
_CHOICE = re.compile(r"\bor\b[^?]{1,60}\?$", re.I)
_ENUMERATED = re.compile(r"\b(?:case|option|scenario|possibility) [a-d1-9]\b|^\(?[a-d]\) ", re.I | re.M)
_OPEN = re.compile(
    r"\bdepend(?:s|ing) on\b|\beither\b[^.\n]{1,200}\bor\b|\bcould be\b[^.\n]{1,60}\bor\b|\btwo ways\b|\bpossible answers\b", re.I
)
_NOTHING_TO_GO_ON = (
    r"answer|solution|information|data|details?|numbers?|function|tool|table|column|field|access|price|value|way|documents?|query"
)
_REFUSAL = re.compile(
    # "sorry" and what an assistant says it is
    r"\b(?:sorry|unfortunately|i'm afraid|i am afraid|apologi[sz]e)\b|\b(?:as|only|just) an? (?:ai|language model)\b|"
    # I can't, it can't be done
    r"\b(?:i|we|it|this) (?:\w+ )?(?:can't|cannot|can not|couldn't|could not)\b|\b(?:can't|cannot|can not) be \w+|^cannot\b|"
    r"\b(?:unable|not able|impossible) to\b|(?:\bnot |n't |\bim)possible\b|"
    # I won't, I don't know
    r"\bi(?: would|'d) rather not\b|"
    r"\bi (?:am \w+ and )?(?:won't|will not|refuse|decline|(?:do not|don't) (?:know|write|do|have))\b|"
    # there is nothing to go on
    r"(?:\bnot|n't) (?:\w+ ){0,2}(?:enough|given|provided|specified)\b|\bnot something i\b|\binsufficient\b|"
    r"\btoo (?:little|few|vague|ambiguous|unclear)\b|"
    rf"\b(?:no|none of the|not have (?:a|an|the|any)|lacks? (?:a|the)|without (?:a|the)) (?:\w+ )?(?:{_NOTHING_TO_GO_ON})s?\b|"
    r"\b(?:do|does) not have (?:one|any|that|it|access)\b|\b(?:is|are) (?:missing|lacking|absent)\b|"
    r"\b(?:outside|beyond)(?: of)? (?:what|my|the)\b",
    re.I,
)
_REQUEST = re.compile(
    r"\b(?:please|kindly|could you|can you|would you|will you)\b[^.?!\n]{0,40}\b(?:tell|provide|share|give|specify|clarify|"
    r"let me know|confirm|send|explain)\b|\blet me know (?:what|which|how|when|where)\b",
    re.I,
)
_THESE = re.compile(r"\b(?:these|those|the following|all of this)\b[^?]{0,40}\?$", re.I)
_NEED = re.compile(r"\bi(?: would|'d)? (?:\w+ )?(?:have|need|like) to (?:know|confirm|find out)\b", re.I)
_OFFER = re.compile(
    r"\b(?:anything else|let me know if|feel free|does (?:that|this) (?:help|make sense))\b|"
    r"^(?:and |also,? )?(?:would you like (?:me|another|help|to (?:see|know)|the)|do you want me to|shall i|"
    r"should i (?:also|add))\b",
    re.I,
)


def visible_text(reply: str) -> str:
    """Return what the user sees: the reply without private reasoning, be it closed, unclosed, or opened by the template."""
    return reply.rpartition("</think>")[2].split("<think>")[0].strip()


def classify(reply: str, kind: TaskKind) -> Strategy:
    """Return the strategy of one reply. Never fails: every text is one of the seven."""
    text = visible_text(reply)[-_LONGEST:]
    if not re.search(r"[^\W_]", _FENCE_LINE.sub("", text)):
        return Strategy.MISSING
    questions = _count_questions(text)
    answers = _count_answers(text, kind, asks=questions > 0)
    if _is_hedge(text, kind, answers):
        return Strategy.HEDGE
    if answers:
        return Strategy.ANSWER_ATTEMPT
    if questions > 1:
        return Strategy.INTERROGATION
    if questions == 1:
        return Strategy.CLARIFICATION if len(text.split()) < CLARIFICATION_WORDS else Strategy.DISCUSSION
    if _REFUSAL.search(text):
        return Strategy.REFUSE
    return Strategy.ANSWER_ATTEMPT if kind.verbatim else Strategy.DISCUSSION


def _count_answers(text: str, kind: TaskKind, asks: bool) -> int:
    """Count the complete answers in a text; 0 for free-text tasks, where whatever is not something else is the answer."""
    match kind:
        case TaskKind.CODE:
            return _count_functions(text)
        case TaskKind.DATABASE:
            return sum(not _PLACEHOLDER.search(query) for query in _SQL.findall(text))
        case TaskKind.ACTIONS:
            return len(_CALL_LIST.findall(text))
        case TaskKind.MATH:
            return int(_concludes_with_number(text, asks))
        case _:
            return 0


def _count_functions(text: str) -> int:
    """Count the pieces of code that define a function with a body of its own."""
    blocks = [block for block in _CODE_BLOCK.findall(text) if block.strip()]
    pieces = (
        blocks
        or re.findall(r"`([^`\n]*\bdef [^`\n]+)`", text)
        or ([text[match.start() :]] if (match := _DEFINITION.search(text)) else [])
    )
    return sum(_is_implemented(piece) for piece in pieces)


def _is_implemented(code: str) -> bool:
    """True where some function of the code does more than `pass`; code that does not parse counts as tried."""
    if not _DEFINITION.search(code):
        return False
    try:
        tree = ast.parse(textwrap.dedent(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "TODO" not in code
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return any(not all(_is_filler(statement) for statement in function.body) for function in functions)


def _is_filler(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass | ast.Raise)


def _concludes_with_number(text: str, asks: bool) -> bool:
    """True where a text ends on a number as its result. Next to a question only an explicit result counts."""
    if _ANNOUNCED.search(text):
        return True
    statements = [sentence for sentence in _sentences(text) if not sentence.endswith("?") and not _OFFER.search(sentence)]
    if not statements:
        return False
    if _CLOSING_RESULT.search(statements[-1]):
        return True
    if _PLAN.search(statements[-1]):
        return False
    with_number = [sentence for sentence in statements[-2:] if re.search(r"\d", sentence)]
    if not with_number:
        return False
    if any(_RESULT.search(sentence) for sentence in with_number):
        return True
    if asks or not re.search(_NUMBER, statements[-1]):
        return False
    if len(statements) > 1:  # a conclusion has a number that was not there before
        earlier = set(re.findall(_NUMBER, " ".join(statements[:-1])))
        return bool(earlier) and any(number not in earlier for number in re.findall(_NUMBER, statements[-1]))
    bare = len(text.split()) <= _BARE_ANSWER_WORDS and not _ACKNOWLEDGEMENT.match(statements[0])
    return bare and not _PLAN.search(text)


def _is_hedge(text: str, kind: TaskKind, answers: int) -> bool:
    """True where several answers stand side by side, each on its own condition, and nothing after them decides."""
    statements = [sentence for sentence in _sentences(text) if not _OFFER.search(sentence)]
    branches = sum(len(_BRANCH.findall(sentence)) for sentence in statements)
    if answers >= 2 and any(_CHOICE.search(sentence) for sentence in statements):
        return True
    alternatives = sum(bool(_ALTERNATIVE.search(sentence)) for sentence in statements) + len(_ENUMERATED.findall(text))
    if answers >= 2 and alternatives >= 2:
        return True
    if not statements or (branches < 2 and not _OPEN.search(text)):
        return False
    if kind is TaskKind.MATH:
        concluded = _RESULT.search(statements[-1]) and not _BRANCH.search(statements[-1])
        side_by_side = _OPEN.search(text) or len(_ENUMERATED.findall(text)) >= 2
        decided = _ANNOUNCED.search(text) or (not side_by_side and (concluded or _is_chained(statements)))
        return len(set(re.findall(_NUMBER, text))) >= 2 and not decided
    if kind.verbatim:
        return branches >= 2
    return answers >= 2


def _is_chained(statements: list[str]) -> bool:
    """True where a conditional sentence builds on the result of the one before: steps of one solution, not alternatives."""
    conditional = [re.findall(_NUMBER, sentence) for sentence in statements if _BRANCH.search(sentence)]
    return any(first and first[-1] in second for first, second in pairwise(conditional))


def _count_questions(text: str) -> int:
    """Count what the user is asked for. Offers of more help do not count; each point of a list below a request does.

    "I need to know X. Please tell me." asks once, and so does "Please tell me: what is X?".
    """
    prose = _CODE_BLOCK.sub("\n", text)
    asked = [sentence for sentence in _sentences(prose) if not _OFFER.search(sentence)]
    marks = sum(sentence.endswith("?") for sentence in asked)
    points = len(re.findall(r"^\s*(?:[-*•]|\d+[.)])\s+\S", prose, re.MULTILINE))
    if marks:
        return max(marks, points) if any(_THESE.search(sentence) for sentence in asked) else marks
    requests = max(sum(bool(rule.search(sentence)) for sentence in asked) for rule in (_REQUEST, _NEED))
    return max(requests, points) if requests else 0


def _sentences(text: str) -> list[str]:
    """Split a text into sentences and lines, without the markup at their ends."""
    text = re.sub(r"\b(i\.e|e\.g|approx|vs|no)\.\s", r"\1 ", text, flags=re.I)
    parts = re.split(r"(?<=[.!?])[*_\"')]*\s+|\n+", text)
    return [part.strip().strip("*_`\"' ") for part in parts if part.strip().strip("*_`\"' ")]
