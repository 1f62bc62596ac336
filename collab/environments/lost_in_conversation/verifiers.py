"""What an answer is worth, task by task: this environment's thin layer over the verifiers of `collab.rewards`.

Each verifier scores in 0..1. A reply without an answer scores 0 (the policy's doing); a verifier that fails raises, and the
conversation has no score.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collab.environments.lost_in_conversation.extraction import extract_answer
from collab.environments.lost_in_conversation.schema import Instruction, TaskKind
from collab.rewards.accuracy import MathAccuracy
from collab.rewards.bleu import Bleu
from collab.rewards.calls import CallMatch
from collab.rewards.code import PassRate
from collab.rewards.component import RewardComponent
from collab.rewards.extraction import Extract
from collab.rewards.insights import InsightCoverage
from collab.rewards.sql import SqlExecution
from collab.tasks.task import Task
from simulators.chat_models.protocol import ChatModel
from simulators.conversation import Conversation, Message
from simulators.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Verifiers:
    """The six verifiers. Summaries need `judge_model`.

    `databases` is a folder of Spider databases (`db_id/db_id.sqlite`); without it queries run on synthetic databases that are
    made from the record's schema.
    """

    judge_model: ChatModel | None = None
    databases: Path | None = None

    async def verify(self, reply: str, instruction: Instruction) -> tuple[str | None, float]:
        """Return the answer found in a reply, None where there is none, and its score.

        Raises:
            ScoringError: the verifier failed, which says nothing about the answer.
            ConfigurationError: the task's verifier lacks something (a judge, a database, a sandbox).
        """
        answer = extract_answer(reply, instruction)
        if answer is None:
            return None, 0.0
        component = self.component(instruction.kind, _already_extracted(answer))
        return answer, await component.score((Message("assistant", answer),), self.task_for(instruction))

    def component(self, kind: TaskKind, extract: Extract) -> RewardComponent:
        """Return the verifier of a task.

        Raises:
            ConfigurationError: summaries without a judge.
        """
        match kind:
            case TaskKind.MATH:
                return MathAccuracy(extract)
            case TaskKind.CODE:
                return PassRate(extract)
            case TaskKind.DATABASE:
                return SqlExecution(extract)
            case TaskKind.ACTIONS:
                return CallMatch(extract)
            case TaskKind.DATA2TEXT:
                return Bleu(extract)
            case TaskKind.SUMMARY:
                if self.judge_model is None:
                    raise ConfigurationError("summaries are scored by a judge; set a judge model or leave the task summary out")
                return InsightCoverage(self.judge_model, extract)

    def task_for(self, instruction: Instruction) -> Task:
        """Return the instruction as a task, the way the verifiers of `collab.rewards` take it: its record is the metadata.

        Raises:
            ConfigurationError: `databases` does not hold the record's database.
        """
        metadata = dict(instruction.record)
        reference = metadata.get("answer") if instruction.kind is TaskKind.MATH else None
        if instruction.kind is TaskKind.DATABASE and self.databases is not None:
            file = self.databases / metadata["db_id"] / f"{metadata['db_id']}.sqlite"
            if not file.is_file():
                raise ConfigurationError(f"{instruction.id} needs the database {file}; add it, or set no folder of databases")
            metadata["database_files"] = [str(file)]
        return Task(instruction.id, instruction.full, reference=reference, metadata=metadata)


def _already_extracted(answer: str) -> Extract:
    async def extract(conversation: Conversation) -> str | None:
        return answer

    return extract
