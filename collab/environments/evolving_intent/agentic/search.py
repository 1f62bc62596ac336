"""Search as an evolving task family: an answer that only documents hold, found by a tool, graded by the exact answer.

The corpus is pluggable (anything with `search(query, limit)`); `WordIndex` serves small ones. Real BrowseComp-like corpora need
their own index and, for free-form answers, a judge as the verifier.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from collab.environments.domain import BadRecord, Resources
from collab.environments.evolving_intent.conversion import Conversion, SourceTask
from collab.environments.evolving_intent.intent_domain import IntentDomain, Tools, domain_factory
from collab.environments.evolving_intent.parts import conversion_from_parts
from collab.environments.evolving_intent.rendering import Phrases
from collab.environments.loading import bundled_file, read_records
from collab.rewards.accuracy import ContainsFact
from collab.tasks.task import Task
from simulators.conversation import Message
from simulators.errors import ConfigurationError

_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus."""

    title: str
    text: str


class Corpus(Protocol):
    """Something that can be searched."""

    async def search(self, query: str, limit: int) -> Sequence[Document]:
        """Return the best documents for a query, best first."""
        ...


@dataclass(frozen=True)
class WordIndex:
    """A small corpus ranked by the words that query and document share, rare ones counting more (TF-IDF)."""

    documents: tuple[Document, ...]
    _words: tuple[Counter[str], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        words = tuple(Counter(_WORD.findall(f"{document.title} {document.text}".lower())) for document in self.documents)
        object.__setattr__(self, "_words", words)

    async def search(self, query: str, limit: int) -> Sequence[Document]:
        """Return the documents that share words with the query, best first."""
        wanted = set(_WORD.findall(query.lower()))
        total = len(self.documents)
        rarity = {word: math.log(1 + total / (1 + sum(word in words for words in self._words))) for word in wanted}
        scores = [sum(rarity[word] for word in wanted if word in words) for words in self._words]
        order = sorted(range(total), key=lambda index: (-scores[index], index))
        return [self.documents[index] for index in order[:limit] if scores[index] > 0]


def load_corpus(source: str | None) -> WordIndex:
    """Load documents, one a line with `title` and `text`, from a file; None is the bundled corpus.

    Raises:
        ConfigurationError: no such file, or a line is not a document.
    """
    if source is None:
        with bundled_file("evolving_search_documents") as path:
            return load_corpus(str(path))
    documents = []
    for where, record in read_records(source, "train"):
        title, text = record.get("title"), record.get("text")
        if not isinstance(title, str) or not isinstance(text, str):
            raise ConfigurationError(f"{where}: a document needs the texts 'title' and 'text'")
        documents.append(Document(title, text))
    return WordIndex(tuple(documents))


def search_tools(corpus: Corpus, results: int) -> Tools:
    """Return what gives every task the tool `search` over one corpus."""

    async def search(query: str) -> str:
        """Search the documents and show the best ones.

        Args:
            query: words to look for
        """
        found = await corpus.search(query, results)
        return "\n\n".join(f"{document.title}\n{document.text}" for document in found) or "Nothing found."

    def make_tools(task: Task, resources: Resources) -> Sequence[Callable[..., Any]]:
        return (search,)

    return make_tools


def _tools(corpus: str | None = None, results: int = 3) -> Tools:
    return search_tools(load_corpus(corpus), results)


SEARCH_PHRASES = Phrases(
    reveal=("Something else I know about it: {}", "One more clue: {}", "I remember this as well: {}"),
    reveal_many=("A few more clues: {}", "I remember this as well: {}"),
    revision=("Sorry, I had that wrong. {}", "Wait, I mixed that up. {}", "Correction: {new}, not {old}. {}"),
    switch=("Thanks. Now find out: {}", "Good. What I am after now: {}", "OK, next: {}"),
    switch_request=("Thanks. {}", "Good. Now this: {}", "OK, next. {}"),
    repeat=("Could you look again? {}", "Please check that once more. {}"),
    function_first=True,
)


@dataclass(frozen=True, slots=True)
class FactVerifier:
    """A reply gives an answer when it contains it as whole words."""

    async def gives(self, reply: str, target: str, task: Task) -> bool:
        """Return whether the target stands in the reply."""
        return await ContainsFact().score((Message("assistant", reply),), Task(task.id, task.goal, target)) == 1.0

    def answers(self, reply: str) -> bool:
        """True for a reply that says something and does not end in a question."""
        return bool(reply.strip()) and not reply.rstrip().endswith("?")


def source_task(record: Mapping[str, Any], default_id: str) -> SourceTask:
    """Return the single-turn task of a record with `text` and `reference`, for the LLM builder.

    Raises:
        BadRecord: when one is missing.
    """
    for name in ("text", "reference"):
        if not isinstance(record.get(name), str) or not record[name].strip():
            raise BadRecord(f"field {name!r} must be a text that is not empty")
    return SourceTask(str(record.get("id") or default_id), record["text"], record["reference"], dict(record.get("details", {})))


def from_parts(record: Mapping[str, Any], default_id: str, seed: int = 0) -> Conversion:
    """Return the conversion of a record with written-out parts; the seed is not used."""
    return conversion_from_parts(record, default_id)


SEARCH = IntentDomain(
    name="evolving_search",
    summary="Search whose user gives clues bit by bit, corrects them, and asks for other things on the way.",
    phrases=SEARCH_PHRASES,
    convert=from_parts,
    verifier=ContainsFact,
    reply_verifier=FactVerifier,
    bundled="evolving_search.jsonl",
)

domain = domain_factory(SEARCH, _tools)
"""The factory of `evolving_search`; its options are `domain_of`'s, and `corpus` (a file) and `results` (documents a search)."""
