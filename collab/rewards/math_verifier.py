"""Symbolic comparison of two answers with math-verify. Runs in a worker process only: it may hang on hostile input.

math-verify's own time limits use signals and swallow errors; both are switched off, as the worker pool has a harder limit and
an error must not pass for "wrong".
"""

from __future__ import annotations

import logging

logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)


def verify_answer(pair: dict[str, str]) -> bool:
    """Return whether `pair["answer"]` means the same as `pair["gold"]`.

    An answer that cannot be parsed is wrong. A gold answer that cannot be, or a comparison that breaks down, raises: then
    there is no verdict.
    """
    from math_verify import parse, verify

    gold = parse(_boxed(pair["gold"]), parsing_timeout=None, raise_on_error=True)
    if not gold:
        raise ValueError(f"the gold answer {pair['gold'][:80]!r} cannot be parsed")
    try:
        answer = parse(_boxed(pair["answer"]), parsing_timeout=None, raise_on_error=True)
    except MemoryError:
        raise
    except Exception:
        return False
    return bool(answer) and bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True))


def _boxed(text: str) -> str:
    return f"\\boxed{{{text}}}"
