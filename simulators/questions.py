"""When does a message ask something? One rule, used by scripted users and by the evaluation alike."""

_CLOSERS = " \t\r\n\"'”’)*_`"


def asks(text: str) -> bool:
    """True where the message *ends* in a question, so that the floor is handed to the other side.

    A question that the writer goes on to answer itself ("What is 3 + 4? It is 7.") asks nobody anything.
    """
    return text.rstrip(_CLOSERS).endswith("?")
