"""What a tree notes about a candidate."""

from collab.data.candidate_note import CandidateNote, candidate_note
from simulators.conversation import ConversationTree, Message


def test_best_and_worst_of_several_have_a_role_and_the_others_none() -> None:
    roles = [CandidateNote.ranked(index, "base", index, 3).role for index in range(3)]
    assert roles == ["chosen", None, "rejected"]
    assert CandidateNote.ranked(0, "base", 0, 1).role is None  # nothing to compare it with
    assert CandidateNote.ranked(4, "base", None, 3).role is None  # no MR: neither chosen nor rejected


def test_a_note_is_read_as_it_was_written_and_other_nodes_have_none() -> None:
    tree = ConversationTree("t")
    user = tree.add(None, Message("user", "hello"), "user")
    reply = tree.add(user.id, Message("assistant", "hi"), "policy")
    for note in (CandidateNote(2, "base"), CandidateNote(0, "other", 1, "rejected")):
        note.write(reply)
        assert candidate_note(reply) == note
    assert candidate_note(user) is None
    CandidateNote(0, "base", 1).write(reply)
    assert reply.annotations["candidate"] == {"index": 0, "source": "base", "rank": 1}
