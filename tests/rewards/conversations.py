"""Conversations for reward tests."""

from simulators.conversation import Conversation, Message


def says(*replies: str) -> Conversation:
    """Return a conversation in which the assistant gives these replies."""
    messages = []
    for reply in replies:
        messages += [Message("user", "Go on."), Message("assistant", reply)]
    return tuple(messages)
