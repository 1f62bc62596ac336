"""A toy task that is solvable only by asking first: the user wants a letter and says which only when asked.

The opening is the same for every task, so a guess is right once in `len(LETTERS)` times; a reply that ends in "?" is answered
with the letter, a wrong guess with "No.". The user leaves when the letter has been said. Reward 1 for a last reply that is the
letter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from collab.environments.domain import Domain, Environment, Resources
from collab.rewards.component import ScoringError
from collab.rewards.conversation_reward import ConversationReward
from collab.tasks.task import Task
from simulators.conversation import Conversation, Outcome
from simulators.errors import SimulatorError
from simulators.questions import asks
from simulators.users.protocol import UserTurn

LETTERS = "ABCDEFGHIJKLMNOP"


@dataclass(frozen=True)
class LetterUser:
    """See the module; with `fails` it gives no usable message after the opening."""

    letter: str
    fails: bool = False

    async def next_turn(self, conversation: Conversation, seed: int) -> UserTurn:
        if not conversation:
            return UserTurn("Pick.")
        if self.fails:
            raise SimulatorError("the user said nothing usable")
        reply = conversation[-1].content.strip()
        if reply == self.letter:
            return UserTurn("", ends=True)
        return UserTurn(f"It is {self.letter}." if asks(reply) else "No.")


@dataclass
class SaidLetter:
    """1.0 where the last reply is the letter; counts its calls; `fail_on` names the letters that cannot be scored."""

    name: str = "said"
    value_range: tuple[float, float] = (0.0, 1.0)
    source: str = "toy"
    fail_on: str = ""
    nan_on: str = ""
    calls: list[str] = field(default_factory=list)

    async def score(self, conversation: Conversation, task: Task) -> float:
        self.calls.append(task.id)
        assert task.reference is not None
        if task.reference in self.fail_on:
            raise ScoringError("the judge is away", Outcome.JUDGE_ERROR)
        if task.reference in self.nan_on:
            return float("nan")
        replies = [message.content.strip() for message in conversation if message.role == "assistant"]
        return float(bool(replies) and replies[-1] == task.reference)


@dataclass
class ReplyBytes:
    """A reward that every random policy gets: the share of the first reply's characters that come early in the byte table."""

    name: str = "early"
    value_range: tuple[float, float] = (0.0, 1.0)
    source: str = "toy"

    async def score(self, conversation: Conversation, task: Task) -> float:
        text = "".join(message.content for message in conversation if message.role == "assistant").encode()
        return sum(byte < 100 for byte in text) / max(1, len(text))


def tasks(count: int = len(LETTERS)) -> list[Task]:
    """`count` tasks, one a letter, round and round."""
    return [Task(f"letter-{index}", f"the letter {LETTERS[index % 16]}", LETTERS[index % 16], "Pick.") for index in range(count)]


def environment(
    max_turns: int = 2, component: object | None = None, failing: Sequence[str] = (), user: object | None = None
) -> Environment:
    """The toy environment; users of the letters in `failing` fail, `user(task, resources)` replaces the users altogether."""

    def make_user(task: Task, resources: Resources) -> LetterUser:
        assert task.reference is not None
        return LetterUser(task.reference, task.reference in failing)

    domain = Domain(
        name="toy",
        summary="Say the letter that only the user knows.",
        task_from_record=lambda record, default_id: Task(default_id, "", None),
        columns=(),
        make_user=user or make_user,  # type: ignore[arg-type]
        make_reward=lambda resources: ConversationReward(((component or SaidLetter(), 1.0),)),  # type: ignore[arg-type]
        max_turns=max_turns,
    )
    return Environment(domain, Resources(len))
