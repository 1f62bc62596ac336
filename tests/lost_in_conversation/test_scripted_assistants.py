"""Real records, every simulation type, assistants whose worth is known: the scores must come out as they must."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collab.environments.lost_in_conversation.loading import load_instructions
from collab.environments.lost_in_conversation.schema import Instruction, TaskKind
from collab.environments.lost_in_conversation.simulations import ALL_SIMULATIONS, Simulation
from collab.evaluation.lost_in_conversation.results import SimulationResults
from collab.evaluation.lost_in_conversation.runner import SimulationSettings
from simulators.chat_models.protocol import ChatRequest
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.errors import ConfigurationError
from simulators.policy import Policy
from tests.lost_in_conversation.assistants import Assistants
from tests.lost_in_conversation.in_folder import simulate

ONCE = SimulationSettings(runs=1)
MULTI_TURN = [simulation for simulation in ALL_SIMULATIONS if not simulation.single_turn]
SINGLE_TURN = [simulation for simulation in ALL_SIMULATIONS if simulation.single_turn]


def load(collab_data: Path, task: str) -> tuple[Instruction, ...]:
    return load_instructions(collab_data / "lost-in-conversation" / f"{task}.jsonl", "evaluation").instructions


def gold_replies(collab_data: Path, instructions: Iterable[Instruction]) -> dict[str, str]:
    """Return a right reply for each instruction, written the way assistants write."""
    with gzip.open(collab_data / "humaneval" / "HumanEval.jsonl.gz", "rt") as stream:
        programs = {record["task_id"].split("/")[1]: record for record in map(json.loads, stream)}
    replies = {}
    for instruction in instructions:
        record = instruction.record
        match instruction.kind:
            case TaskKind.MATH:
                replies[instruction.id] = f"That settles it.\nAnswer: {record['answer'].rpartition('####')[2].strip()}"
            case TaskKind.CODE:
                program = programs[record["task_id"].split("/")[1]]
                code = (program["prompt"] + program["canonical_solution"]).replace(f"{program['entry_point']}(", "solution(")
                replies[instruction.id] = f"Here it is:\n\n```python\n{code}```\nLet me know if it fits."
            case TaskKind.DATABASE:
                replies[instruction.id] = f"```sql\n{record['reference_sql']}\n```"
            case TaskKind.ACTIONS:
                replies[instruction.id] = _calls(record["reference_answer"])
            case TaskKind.DATA2TEXT:
                replies[instruction.id] = record["references"][0]
            case TaskKind.SUMMARY:
                replies[instruction.id] = _bullets(record)
    return replies


def _bullets(record: Mapping[str, Any]) -> str:
    given = {document["document_index"] for document in record["documents"]}
    lines = []
    for insight in record["insights"]:
        cited = sorted(given.intersection(record["insightid2ref_citations"][insight["insight_id"]]))
        lines.append(f"- {insight['insight_name']} {insight['insight_id']} {cited}")
    return "\n".join(lines)


def judge_of_summaries(instructions: Iterable[Instruction]) -> ScriptedChatModel:
    """A judge that knows a bullet of ours by the insight's id, which stands in it."""
    ids = {each["insight"]: each["insight_id"] for one in instructions for each in one.record["insights"]}

    def script(request: ChatRequest, rng: object) -> str:
        solution, _, reference = request.messages[-1].content.partition("<reference>")
        wanted = next(ids[text] for text in ids if text in reference)
        for line in solution.splitlines():
            if wanted in line:
                return json.dumps({"coverage": "full", "bullet": int(line.split(".")[0])})
        return '{"coverage": "none"}'

    return ScriptedChatModel(script, name="judge")


def _calls(reference: list[dict[str, dict[str, list[object]]]]) -> str:
    calls = []
    for call in reversed(reference):  # the order of calls does not matter
        ((name, arguments),) = call.items()
        given = {key: values[0] for key, values in arguments.items() if values[0] != ""}
        calls.append(f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})")
    return f"[{', '.join(calls)}]"


WRONG = {
    TaskKind.MATH: "Answer: -7",
    TaskKind.CODE: "```python\ndef solution(x):\n    return 'no'\n```",
    TaskKind.DATABASE: "```sql\nSELECT 'no'\n```",
    TaskKind.ACTIONS: "[nothing(at='all')]",
    TaskKind.DATA2TEXT: "Here we have nothing but a list of things.",
    TaskKind.SUMMARY: "- Nothing is said about it [1].",
}


async def scores(
    instructions: Iterable[Instruction], policy: Policy, folder: Path, settings: SimulationSettings = ONCE
) -> dict[Simulation, float]:
    results: SimulationResults = await simulate(list(instructions), policy, folder / policy.name, settings=settings)
    assert not results.failures(), [row for row in results.rows if row.failure][:3]
    found = results.metrics()["all"]
    print({str(simulation): round(each.performance.estimate, 1) for simulation, each in found.items()}, policy.name)
    return {simulation: each.performance.estimate for simulation, each in found.items()}


async def check_all(
    instructions: list[Instruction], right: dict[str, str], folder: Path, settings: SimulationSettings = ONCE
) -> None:
    assistants = Assistants(instructions, lambda each: right[each.id], lambda each: WRONG[each.kind])
    perfect = await scores(instructions, assistants.perfect(), folder, settings)
    premature = await scores(instructions, assistants.premature(), folder, settings)
    stubborn = await scores(instructions, assistants.stubborn(), folder, settings)
    for simulation in ALL_SIMULATIONS:
        assert perfect[simulation] == pytest.approx(100), simulation
    for simulation in SINGLE_TURN:
        assert premature[simulation] == stubborn[simulation] == pytest.approx(100), "everything was said at once"
    for simulation in MULTI_TURN:
        assert stubborn[simulation] < premature[simulation] < premature[Simulation.FULL], simulation
        assert premature[simulation] < perfect[simulation]


@pytest.mark.parametrize("task", ["math", "code", "database", "actions", "data2text"])
async def test_published_records(collab_data, tmp_path, task):
    instructions = list(load(collab_data, task))
    await check_all(instructions, gold_replies(collab_data, instructions), tmp_path)


async def test_published_summaries(collab_data, tmp_path):
    instructions = list(load(collab_data, "summary"))
    settings = replace(ONCE, judge_model=judge_of_summaries(instructions))
    await check_all(instructions, gold_replies(collab_data, instructions), tmp_path, settings)


async def test_summaries_without_a_judge_stop_the_run_with_a_sentence(collab_data, tmp_path):
    instructions = list(load(collab_data, "summary"))
    assistants = Assistants(instructions, lambda each: "- Something [1].", lambda each: "-")
    with pytest.raises(ConfigurationError, match="set a judge model"):
        await simulate(instructions, assistants.perfect(), tmp_path, ("full",), ONCE)


@pytest.mark.slow
async def test_the_698_sharded_training_problems(collab_data, tmp_path):
    """All rows of the published training file (553 different ones) through every simulation type."""
    loaded = load_instructions(collab_data / "lic-sharded-gsm8k" / "sharded_gsm8k_v2.json", "train")
    assert loaded.rows == 698
    instructions = list(loaded.instructions)
    await check_all(instructions, gold_replies(collab_data, instructions), tmp_path)
