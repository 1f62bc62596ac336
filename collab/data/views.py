"""Views of conversation trees as rows to train on: SFT conversations and DPO pairs.

Rows are plain dictionaries in TRL's conversational formats, with where they came from (`task_id`, node ids) beside them, so
that every row can be traced back to its tree. Tools, calls and results are put into words (`simulators.chat_models.tool_text`),
so that a row is text for any model. A reply that called tools is imitated (SFT), but makes no pair: DPO would train what the
tools said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from collab.data.candidate_note import candidate_note
from collab.data.length_balance import LengthPair, balanced_by_length
from simulators.chat_models.tool_text import tools_in_words
from simulators.conversation import Conversation, ConversationTree, Node
from simulators.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class PairSettings:
    """Which pairs a turn gives.

    A pair's chosen reply is the best one, its rejected reply the worst; `pairs_per_turn` n takes the n worst. Pairs whose MR gap
    is below `min_gap` are dropped, and so are pairs whose chosen MR is below `min_chosen_mr`, or whose chosen reply has a mean
    below `min_components` in some reward component (or lacks it).

    With `length_quantiles` n, chosen and rejected are of one n-quantile of the lengths of all replies, whatever their ranks, and
    as many chosen replies are longer as are shorter (`collab.data.length_balance`).

    Raises:
        ConfigurationError: for fewer than one pair a turn, or fewer than two quantiles.
    """

    min_gap: float = 0.0
    min_chosen_mr: float | None = None
    pairs_per_turn: int = 1
    min_components: Mapping[str, float] = field(default_factory=dict)
    length_quantiles: int | None = None

    def __post_init__(self) -> None:
        if self.pairs_per_turn < 1:
            raise ConfigurationError(f"pairs_per_turn is {self.pairs_per_turn}; it must be at least 1")
        if self.length_quantiles is not None and self.length_quantiles < 2:
            raise ConfigurationError(f"length_quantiles is {self.length_quantiles}; it must be at least 2 (null: no balancing)")


@dataclass(frozen=True, slots=True)
class Pair:
    """A better and a worse reply to one user message, as nodes of their tree."""

    turn: int
    prompt: Node
    chosen: Node
    rejected: Node

    @property
    def gap(self) -> float:
        """The difference of their reported MRs."""
        better, worse = mr_of(self.chosen), mr_of(self.rejected)
        assert better is not None and worse is not None
        return better - worse


def kept_nodes(tree: ConversationTree) -> list[Node]:
    """Return the nodes of the kept conversation, from the opening to its last reply."""
    kept = []
    node_id: int | None = None
    while kept_here := [node for node in tree.children(node_id) if node.annotations.get("kept")]:
        kept.append(kept_here[0])
        node_id = kept_here[0].id
    return kept


def candidates(tree: ConversationTree, user_node_id: int) -> list[Node]:
    """Return the candidate replies to a user message, in the order they were sampled: of each turn its last message."""
    found = []
    for node in tree.children(user_node_id):
        while candidate_note(node) is None and (after := tree.children(node.id)) and after[0].author in ("policy", "tool"):
            node = after[0]
        if candidate_note(node) is not None:
            found.append(node)
    return found


def called_tools(tree: ConversationTree, reply: Node) -> bool:
    """True for a reply that came after results of tools, or asked for one."""
    before = None if reply.parent is None else tree.nodes[reply.parent].author
    return before == "tool" or bool(reply.message.tool_calls)


def messages_of(tree: ConversationTree, conversation: Conversation) -> list[dict[str, str]]:
    """Return a conversation of a tree as rows hold it, with the tools that its policy had."""
    return [message.as_dict() for message in tools_in_words(conversation, tree.metadata.get("tools", ()))]


def mr_of(node: Node) -> float | None:
    """Return a candidate's estimated MR, None where it has none."""
    mean = node.annotations.get("mr", {}).get("mean")
    return None if mean is None else float(mean)


def components_of(node: Node) -> Mapping[str, float]:
    """Return the means of a candidate's reward components."""
    components = node.annotations.get("mr", {}).get("components")
    return components if isinstance(components, Mapping) else {}


def ranked_replies(tree: ConversationTree, user_node_id: int) -> list[Node]:
    """Return the candidates that have an MR, best first: by the rank the builder gave them, else by MR."""
    scored = [node for node in candidates(tree, user_node_id) if mr_of(node) is not None]
    notes = {node.id: candidate_note(node) for node in scored}
    ranks = {node_id: note.rank for node_id, note in notes.items() if note is not None and note.rank is not None}
    if len(ranks) == len(scored):
        return sorted(scored, key=lambda node: ranks[node.id])
    return sorted(scored, key=lambda node: (-(mr_of(node) or 0.0), node.id))


def plain_replies(tree: ConversationTree, user_node_id: int) -> list[Node]:
    """Return the ranked replies that called no tools: those that pairs are made of."""
    return [node for node in ranked_replies(tree, user_node_id) if not called_tools(tree, node)]


def sft_rows(trees: Iterable[ConversationTree], min_chosen_mr: float | None = None) -> Iterator[dict[str, Any]]:
    """Yield the kept conversations as `{"messages": [...], "task_id", "mr", "turns"}`, one a tree.

    A conversation is cut before the first reply whose MR is missing or below `min_chosen_mr`: what comes before it may still
    be worth imitating. `mr` is the mean over its replies.
    """
    for tree in trees:
        if (row := sft_row(tree, PairSettings(min_chosen_mr=min_chosen_mr))) is not None:
            yield row


def sft_row(tree: ConversationTree, settings: PairSettings) -> dict[str, Any] | None:
    """Return a tree's kept conversation, cut before the first reply that is not good enough; None where nothing is left."""
    worths: list[float] = []
    good = 0
    kept = kept_nodes(tree)
    for place, node in enumerate(kept, start=1):
        if node.message.role == "assistant" and not node.message.tool_calls:
            worth = mr_of(node)
            if worth is None or not good_enough(node, settings):
                break
            worths.append(worth)
            good = place
    if not good:
        return None
    messages = messages_of(tree, tuple(node.message for node in kept[:good]))
    return {"messages": messages, "task_id": tree.task_id, "mr": sum(worths) / len(worths), "turns": len(worths)}


def good_enough(node: Node, settings: PairSettings) -> bool:
    """True for a reply that says something and whose MR and components reach the thresholds for chosen replies."""
    worth = mr_of(node)
    if worth is None or not node.message.content.strip():
        return False
    if settings.min_chosen_mr is not None and worth < settings.min_chosen_mr:
        return False
    found = components_of(node)
    return all(found.get(name) is not None and found[name] >= least for name, least in settings.min_components.items())


def dpo_rows(trees: Iterable[ConversationTree], settings: PairSettings | None = None) -> Iterator[dict[str, Any]]:
    """Yield preference pairs as `{"prompt", "chosen", "rejected", "task_id", "turn", "mr_chosen", "mr_rejected", ...}`.

    With `settings.length_quantiles` the trees are iterated twice, so they must be a sequence or the like.
    """
    settings = settings or PairSettings()
    wanted = None if settings.length_quantiles is None else balanced_pairs(trees, settings)
    for tree in trees:
        for pair in pairs_of(tree, settings, wanted):
            yield dpo_row(tree, pair)


Wanted = frozenset[tuple[str, int, int]]
"""Pairs that were picked over a whole dataset, as (task, chosen node, rejected node)."""


def pairs_of(tree: ConversationTree, settings: PairSettings, wanted: Wanted | None = None) -> Iterator[Pair]:
    """Yield the pairs of a tree; with `wanted` those of all possible ones that are in it."""
    turn = 0
    for node in kept_nodes(tree):
        if node.message.role != "user":
            continue
        turn += 1
        replies = plain_replies(tree, node.id)
        if wanted is not None:
            every = [(better, worse) for place, better in enumerate(replies) for worse in replies[:place:-1]]
            combinations = [each for each in every if (tree.task_id, each[0].id, each[1].id) in wanted]
        else:
            combinations = [(replies[0], worse) for worse in replies[:0:-1][: settings.pairs_per_turn]]
        for better, worse in combinations:
            pair = Pair(turn, node, better, worse)
            if pair.gap >= max(settings.min_gap, 1e-9) and good_enough(better, settings):
                yield pair


def balanced_pairs(trees: Iterable[ConversationTree], settings: PairSettings) -> Wanted:
    """Pick the pairs of a whole dataset so that length does not tell chosen from rejected."""
    assert settings.length_quantiles is not None
    possible: list[LengthPair] = []
    lengths: list[int] = []
    for tree in trees:
        for node in kept_nodes(tree):
            if node.message.role != "user":
                continue
            replies = plain_replies(tree, node.id)
            lengths += [len(reply.message.content) for reply in replies]
            for place, better in enumerate(replies):
                if not good_enough(better, settings):
                    continue
                for worse in replies[place + 1 :]:
                    pair = Pair(0, node, better, worse)
                    if pair.gap >= max(settings.min_gap, 1e-9):
                        sizes = len(better.message.content), len(worse.message.content)
                        possible.append(LengthPair((tree.task_id, node.id), better.id, worse.id, pair.gap, *sizes))
    picked = balanced_by_length(possible, lengths, settings.length_quantiles, settings.pairs_per_turn)
    return frozenset((str(each.turn[0]), each.chosen, each.rejected) for each in picked)


def dpo_row(tree: ConversationTree, pair: Pair) -> dict[str, Any]:
    """Return a pair as a row."""
    return {
        "prompt": messages_of(tree, tree.conversation(pair.prompt.id)),
        "chosen": [pair.chosen.message.as_dict()],
        "rejected": [pair.rejected.message.as_dict()],
        "task_id": tree.task_id,
        "turn": pair.turn,
        "mr_chosen": mr_of(pair.chosen),
        "mr_rejected": mr_of(pair.rejected),
        "chosen_node": pair.chosen.id,
        "rejected_node": pair.rejected.id,
    }
