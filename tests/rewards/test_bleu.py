"""BLEU: sacrebleu's figure with its signature, several references, and the character variant."""

import math

import pytest
import sacrebleu

from collab.rewards.bleu import Bleu, CharacterBleu, bleu_signature, character_bleu, corpus_bleu
from collab.rewards.component import RewardComponent, ScoringError
from collab.rewards.worker_pool import WorkerPool
from collab.tasks.task import Task
from simulators.conversation import Outcome
from simulators.errors import ConfigurationError
from tests.rewards.conversations import says

REFERENCE = "The quick brown fox jumps over the lazy dog near the river bank."
PARAPHRASE = "A fast brown fox leaps over a lazy dog by the bank of the river."
UNRELATED = "Interest rates rose again in March while most analysts had expected a pause."


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(workers=1) as pool:
        yield pool


async def test_it_is_sacrebleu(pool):
    bleu = Bleu(pool=pool)
    assert isinstance(bleu, RewardComponent)
    task = Task("t", "g", REFERENCE)
    for text in (REFERENCE, PARAPHRASE, UNRELATED):
        expected = sacrebleu.sentence_bleu(text, [REFERENCE], use_effective_order=True).score / 100
        assert await bleu.score(says(text), task) == pytest.approx(expected)
    assert await bleu.score(says(REFERENCE), task) == 1.0


async def test_words_tell_texts_apart_where_characters_do_not(pool):
    task = Task("t", "g", REFERENCE)
    words = [await Bleu(pool=pool).score(says(text), task) for text in (PARAPHRASE, UNRELATED)]
    characters = [await CharacterBleu(pool=pool).score(says(text), task) for text in (PARAPHRASE, UNRELATED)]
    assert words[1] < 0.05 < words[0] < 0.3
    assert characters[0] > 0.5
    assert characters[1] < characters[0]


def test_the_signature_is_on_record():
    signature = bleu_signature()
    assert signature == "nrefs:1|case:mixed|eff:yes|tok:13a|smooth:exp|version:" + sacrebleu.__version__


async def test_all_references_count(pool):
    task = Task("t", "g", metadata={"references": [UNRELATED, REFERENCE]})
    assert await Bleu(pool=pool).score(says(REFERENCE), task) == 1.0


def test_corpus_bleu():
    score, signature = corpus_bleu([REFERENCE, UNRELATED], [[REFERENCE], [UNRELATED, PARAPHRASE]])
    assert score == 1.0
    assert "eff:no" in signature


async def test_no_document_scores_0(pool):
    assert await Bleu(pool=pool).score(says("  "), Task("t", "g", REFERENCE)) == 0.0
    assert await Bleu(pool=pool).score((), Task("t", "g", REFERENCE)) == 0.0
    with pytest.raises(ConfigurationError, match="task t1 has no reference"):
        await Bleu(pool=pool).score(says("x"), Task("t1", "g"))


async def test_a_worker_that_hangs_is_no_zero():
    with WorkerPool(workers=1) as pool:
        with pytest.raises(ScoringError, match="killed") as caught:
            await Bleu(pool=pool, deadline_s=0.0).score(says(REFERENCE), Task("t", "g", REFERENCE))
        assert caught.value.outcome is Outcome.JUDGE_ERROR


def test_character_bleu_by_hand():
    def score(text, *references):
        return character_bleu({"text": text, "references": list(references)})

    assert score("abcde", "abcde") == pytest.approx(1.0)
    # "abcdx" against "abcde": 4 of 5 letters, 3 of 4 pairs, 2 of 3 triples, 1 of 2 quadruples
    assert score("abcdx", "abcde") == pytest.approx((4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    assert score("abcd", "abcdefgh") == pytest.approx(math.exp(1 - 8 / 4))
    assert score("abc", "abc") == 0.0
    assert score("", "abc") == 0.0
    assert score("abcde", "vwxyz", "abcde") == pytest.approx(1.0)
