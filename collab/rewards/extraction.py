r"""Extract(t) of CollabLLM equation 3: the final solution, cut out of a conversation.

By rules where a solution has a form (a boxed or announced answer, a code block, a query, a list of calls), by an LLM where it
has none. Either way the result is a piece of one assistant message, letter by letter: nothing is ever repaired or invented.
None means that the policy gave no solution, which is its own doing.

Every rule looks at the latest assistant message first and goes back until one has something to offer, so a "You're welcome!"
does not undo the answer before it. Rules run in linear time and see at most the last `MAX_CHARACTERS` of a message.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from simulators.conversation import Conversation
from simulators.questions import asks

Rule = Callable[[str], str | None]
"""Cuts the solution out of one message."""
Extract = Callable[[Conversation], Awaitable[str | None]]
"""Cuts the solution out of a conversation."""

MAX_CHARACTERS = 40_000
TAIL_CHARACTERS = 4_000
"""Where an unmarked number or formula is looked for."""
MAX_ANNOUNCEMENTS = 20
"""How many of the last "the answer is" of a message are looked at."""


def by_rule(rule: Rule) -> Extract:
    """Return an extraction that applies `rule` to the assistant's messages from the last one back."""

    async def extract(conversation: Conversation) -> str | None:
        return latest(conversation, rule)

    return extract


def latest(conversation: Conversation, rule: Rule) -> str | None:
    """Return what `rule` finds in the latest assistant message in which it finds anything."""
    for message in reversed(conversation):
        if message.role == "assistant" and (found := rule(message.content[-MAX_CHARACTERS:])) is not None:
            return found
    return None


def final_reply(conversation: Conversation) -> str | None:
    """Return the last assistant message, None where there is none or it is blank."""
    for message in reversed(conversation):
        if message.role == "assistant":
            return message.content if message.content.strip() else None
    return None


# ---------------------------------------------------------------- answers

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_HASHES = re.compile(r"^[ \t]*####[ \t]*(\S.*)$", re.MULTILINE)
_ANNOUNCED = re.compile(
    r"\b(?P<word>answer|result|solution|total)\b(?:[ \t]+(?:to|of|for)\b[^.:\n]{0,80}?)?"
    r"[*_ \t]{0,4}(?:\bis\b[ \t]*:?|:|=)[*_ \t]*",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(r"[.!?;](?=\s|$|[*_\"'])|\n")
_SENTENCE_GAP = re.compile(r"(?<=[.!?])(?=\s)|\n")
_SAYS_SOMETHING = re.compile(r"[\d\\]")
_FORMULA = re.compile(
    r"\$\$(.{1,500}?)\$\$|\\\[(.{1,500}?)\\\]|\\\((.{1,500}?)\\\)"
    r"|(?<![\\$\w])\$(?![\s$])([^$\n]{0,200}?[^\s$\\])\$(?![\d$])",  # "$5 and $6" is money, not a formula
    re.DOTALL,
)
_NUMBER = re.compile(
    r"(?<![\w.,^/\\])(?:[-+−][ ]?)?[$€£¥]?[-+−]?"
    r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:[ ]?/[ ]?\d+(?![\d.]))?(?:[ ]?\\?%)?(?![\w^])"
)

_EQUALS = re.compile(rf"=[ ]?(?P<value>{_NUMBER.pattern})(?P<words>(?:[ ]+[A-Za-z][A-Za-z'-]*){{1,20}}[ ]+)$")
_NEXT_CLAIM = frozenset("is are was were be so or and equals makes make gives give leaves has have had gets get but then".split())
"""Words after which the next number is said anew, and not a part of what was computed."""


def answer(text: str) -> str | None:
    r"""Find the answer a message states: `\boxed{}`, then `#### `, then "the answer is", then the last formula or number.

    A total, a result or a solution may be one on the way: it announces the answer where no statement after it holds a number.
    What stands in a question is no answer ("Is it 5 or 6?"), unless it is boxed or marked.
    """
    if (boxed := last_boxed(text)) is not None:
        return boxed
    if hashes := _HASHES.findall(text):
        return str(hashes[-1]).strip()
    statements = _without_questions(text[-TAIL_CHARACTERS:])
    formula, number = _last(_FORMULA, statements), _last(_NUMBER, statements)
    stated = max((match.end() for match in (formula, number) if match is not None), default=0)
    if (announced := _announced(text, max(0, len(text) - TAIL_CHARACTERS) + stated)) is not None:
        return announced
    if formula is not None and (number is None or number.end() <= formula.end()):
        return next(group for group in formula.groups() if group is not None).strip()
    return _computed(statements, number).strip() if number is not None else None


def _computed(statements: str, last: re.Match[str]) -> str:
    """Return the last number, or the one that was computed before it: 5 in "125 / 25 = 5 hours to fill 125 cans"."""
    match = _EQUALS.search(statements[max(0, last.start() - 200) : last.start()])
    return last.group() if match is None or _NEXT_CLAIM & set(match.group("words").lower().split()) else match.group("value")


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` whose braces balance, None where there is none or it is empty."""
    opened: list[int | None] = []  # where each open brace's content starts, None for braces that are no box
    found: str | None = None
    for match in _BOXED.finditer(text):
        token = match.group()
        if token == "}":
            if opened and (start := opened.pop()) is not None:
                found = text[start : match.start()].strip() or found
        elif token == "{":
            opened.append(None)
        elif token.endswith("{") and len(token) > 2:
            opened.append(match.end())
    return found


def _without_questions(text: str) -> str:
    """Return the text with its questions blanked out, so that what is left stands where it stood."""
    kept, start = [], 0
    for end, after in [*(gap.span() for gap in _SENTENCE_GAP.finditer(text)), (len(text), len(text))]:
        part = text[start:end]
        kept.append((" " * len(part) if asks(part) else part) + "\n" * (after - end))
        start = after
    return "".join(kept)


def _announced(text: str, stated: int) -> str | None:
    """Return what follows the last "the answer is" that is followed by something with a digit or a formula in it.

    Where none is, the last announcement of all ("The answer is Tuesday") will do. `stated` is where the last number of a
    statement ends: a total before it is one on the way.
    """
    fallback: str | None = None
    for match in reversed(list(_ANNOUNCED.finditer(text))[-MAX_ANNOUNCEMENTS:]):
        whole = text[match.end() : match.end() + TAIL_CHARACTERS]
        rest = whole.lstrip()
        start = match.end() + len(whole) - len(rest)
        on_the_way = match.group("word").lower() != "answer"
        if rest.startswith(("$$", "\\[", "\\(")) and (formula := _FORMULA.match(rest)):
            if on_the_way and stated > start + formula.end():
                continue
            return next(group for group in formula.groups() if group is not None).strip()
        end = _CLAUSE_END.search(rest)
        if end is not None and end.group() == "?":
            continue
        if on_the_way and stated > start + (end.start() if end else len(rest)):
            continue
        clause = (rest[: end.start()] if end else rest).strip().strip("*_").strip()
        if _SAYS_SOMETHING.search(clause):
            return clause
        fallback = fallback or clause or None
    return fallback


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    match = None
    for match in pattern.finditer(text):  # noqa: B007 - the last one is wanted
        pass
    return match


# ---------------------------------------------------------------- code, queries, calls, documents

_SQL_START = re.compile(r"^[ \t]*(?:SELECT|WITH)\b", re.IGNORECASE | re.MULTILINE)
_CALL_LIST_START = re.compile(r"\[\s*[A-Za-z_][\w.]{0,200}\s*\(")


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Return (language in lower case, content) of every fenced block; one that is never closed runs to the end."""
    blocks: list[tuple[str, str]] = []
    fence, language, lines = "", "", list[str]()
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        if not fence and stripped.startswith(("```", "~~~")):
            fence = stripped[:3]
            label = stripped.lstrip("`~").strip().split()
            language, lines = label[0].lower() if label else "", []
        elif fence and stripped.startswith(fence) and not stripped.strip("`~"):
            blocks.append((language, "".join(lines)))
            fence = ""
        elif fence:
            lines.append(line)
    if fence and "".join(lines).strip():
        blocks.append((language, "".join(lines)))
    return blocks


def solution_code(name: str | None) -> Extract:
    """Return an extraction of the latest code that defines `name`, or failing that the latest code of all.

    So a usage example in a later message does not displace the solution.
    """

    async def extract(conversation: Conversation) -> str | None:
        defining = latest(conversation, code_defining(name, or_any=False)) if name else None
        return defining if defining is not None else latest(conversation, code_defining(name))

    return extract


def code_defining(name: str | None, or_any: bool = True) -> Rule:
    """Return a rule for Python code: the last block that defines `name`, else (`or_any`) the last block of Python.

    A reply without fences counts as code when a line of it defines `name`.
    """
    defines = re.compile(rf"^[ \t]*(?:async[ \t]+def|def|class)[ \t]+{re.escape(name)}\b", re.MULTILINE) if name else None

    def rule(text: str) -> str | None:
        blocks = fenced_blocks(text)
        python = [content for language, content in blocks if language in {"", "python", "python3", "py"}]
        if defines is not None:
            if defining := [content for content in python if defines.search(content)]:
                return defining[-1]
            if not blocks and defines.search(text):
                return text
        return python[-1] if python and or_any else None

    return rule


def sql_query(text: str) -> str | None:
    """Find the last SQL block, or the last unfenced statement that starts a line with SELECT or WITH."""
    blocks = fenced_blocks(text)
    if queries := [content for language, content in blocks if "sql" in language and content.strip()]:
        return queries[-1].strip()
    if queries := [content for _, content in blocks if _SQL_START.match(content)]:
        return queries[-1].strip()
    paragraphs = text.split("\n\n")
    for paragraph in reversed(paragraphs):
        if (start := _SQL_START.search(paragraph)) is not None:
            return paragraph[start.start() :].split(";")[0].strip().strip("`")
    return None


def call_list(text: str) -> str | None:
    """Find the last `[f(a=1), g(b=2)]`, by its matching bracket; a fenced block without one counts as a whole."""
    for match in reversed(list(_CALL_LIST_START.finditer(text))):
        if (end := _matching_bracket(text, match.start())) is not None:
            return text[match.start() : end]
        break  # an unbalanced list: earlier ones were not the last word
    blocks = [content for _, content in fenced_blocks(text) if "(" in content]
    return blocks[-1].strip() if blocks else None


def _matching_bracket(text: str, start: int) -> int | None:
    depth, quote, position = 0, "", start
    while position < len(text):
        character = text[position]
        if quote:
            if character == "\\":
                position += 1
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "[({":
            depth += 1
        elif character in "])}":
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return None


def document(text: str) -> str | None:
    """Find the document in a reply: a fenced block or what stands between rules (`---`), where that is most of the reply.

    Otherwise the whole reply is the document.
    """
    whole = text.strip()
    candidates = [content.strip() for _, content in fenced_blocks(text)]
    parts = re.split(r"^[ \t]*(?:-{3,}|\*{3,}|_{3,})[ \t]*$", text, flags=re.MULTILINE)
    if len(parts) > 2:
        start, end = text.find(parts[1]), text.rfind(parts[-1])
        candidates.append(text[start:end].strip().rstrip("-*_").strip())
    longest = max(candidates, key=len, default="")
    return (longest if 2 * len(longest) > len(whole) else whole) or None
