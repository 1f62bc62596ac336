"""Errors that a conversation can meet, and the boundary between "this future failed" and "this run cannot go on".

A future that fails is data: it ends in an `Outcome` and is counted. A `ConfigurationError` is different: every other future
would fail in the same way, so it stops the run with one sentence for the person who started it.
"""

import difflib
from collections.abc import Iterable


class CollabError(Exception):
    """Base of every error this project raises on purpose; its text is one sentence fit for a terminal."""


class ConfigurationError(CollabError):
    """The run as configured can never work: a missing file, a wrong key, a server that is not there."""


class ChatModelError(CollabError):
    """A chat model could not answer one request; the conversation that asked for it fails alone."""


class ContextOverflow(ChatModelError):
    """The conversation no longer fits in the model's context, which ends it as `truncated`."""


class SimulatorError(CollabError):
    """The simulated user produced no usable message (empty, unparseable, out of role)."""


class ToolError(CollabError):
    """A tool could not do its work for reasons that the policy did not cause: a sandbox or an index that is not there."""


class UnusableReply(CollabError):
    """A model's structured reply does not have the fields that were asked for, even after one more try.

    The caller turns it into whose fault that is: a user's `SimulatorError`, a judge's failed score.
    """


class BudgetExhausted(CollabError):
    """The run has spent what it was allowed to spend; everything before is kept, and a higher limit lets it go on."""


class TooManyFailures(CollabError):
    """So many conversations failed that the run's figures would not mean what they say."""


class ReplayMiss(ConfigurationError):
    """A replay asked for a model call that the journal does not hold."""


class StorageError(CollabError):
    """The disk refused a record (full, read-only); everything written before it is intact."""


def first_lines(error: BaseException, count: int = 1) -> str:
    """Return the beginning of another library's error on one line: they come by the page, and say at the head what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:count])[:300] or type(error).__name__


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return " (did you mean ...?)" for the known name that is most like `name`, "" where none is: the tail of a sentence."""
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
