"""Small records of our own, one of each task, in the published schema."""

from typing import Any

from collab.environments.lost_in_conversation.schema import Instruction, Split, instruction_from_record


def shards(*texts: str) -> list[dict[str, Any]]:
    return [{"shard_id": number, "shard": text} for number, text in enumerate(texts, start=1)]


BAKERS = ("Zoe", "Ann", "Bea", "Cleo", "Dora", "Emma", "Fay")


def math_record(number: int = 1, **changes: Any) -> dict[str, Any]:
    """Record `number` (up to 6) asks for (number + 11) * 6 - 40, of a baker of its own."""
    baker, trays = BAKERS[number], number + 11
    return {
        "task": "math",
        "task_id": f"own/{number}",
        "question": f"{baker} fills {trays} trays. Each tray holds 6 rolls. She sells 40 of the rolls. "
        f"How many are left to {baker}?",
        "answer": f"She bakes {trays}*6=<<{trays}*6={6 * trays}>>{6 * trays} rolls.\n"
        f"She has {6 * trays}-40=<<{6 * trays}-40={6 * trays - 40}>>{6 * trays - 40} left.\n#### {6 * trays - 40}",
        "shards": shards(
            f"How many rolls are left to {baker}?",
            f"{baker} fills {trays} trays.",
            "Each tray holds 6 rolls.",
            "She sells 40 of the rolls.",
        ),
    } | changes


CODE = {
    "task": "code",
    "task_id": "own/code",
    "prompt": 'def largest(xs):\n    """Return the largest number of xs, None for an empty list."""\n',
    "test": "def check(candidate):\n    assert candidate([1, 3, 2]) == 3\n    assert candidate([]) is None\n",
    "metadata": {"func_name": "largest"},
    "source": "own",
    "shards": shards("Find the largest number", "The input is a list of numbers", "An empty list gives None"),
}
DATABASE = {
    "task": "database",
    "task_id": "own/database",
    "fully_specified_question": "What are the names of the singers older than 30?",
    "reference_sql": "SELECT name FROM singer WHERE age > 30",
    "db_id": "own",
    "schema_sql": "CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, age INTEGER);",
    "shards": shards("names of singers", "only those older than 30", "nothing but the name"),
}
ACTIONS = {
    "task": "actions",
    "task_id": "own/actions",
    "function": [
        {
            "name": "area",
            "description": "Area of a triangle.",
            "parameters": {
                "type": "dict",
                "properties": {"base": {"type": "integer", "description": ""}, "height": {"type": "integer", "description": ""}},
                "required": ["base", "height"],
            },
        }
    ],
    "fully_specified_question": [[{"role": "user", "content": "Areas of triangles with base 3, height 4 and base 5, height 6?"}]],
    "reference_answer": [{"area": {"base": [3], "height": [4]}}, {"area": {"base": [5], "height": [6]}}],
    "language": "Python",
    "test_category": "parallel",
    "shards": shards("Areas of two triangles", "The first has base 3 and height 4", "The second has base 5 and height 6"),
}
DATA2TEXT = {
    "task": "data2text",
    "task_id": "own/data2text",
    "table_html": "<table><tr><td>Ann</td><td>3</td></tr></table>",
    "table_highlighted_html": '<table><tr><td class="highlighted">Ann</td><td class="highlighted">3</td></tr></table>',
    "fewshot_descriptions": "Bob won twice in 1990.",
    "metadata": {"table_page_title": "Village cup", "table_section_title": "Winners"},
    "references": ["Ann won the Village cup three times."],
    "shards": shards(
        "Describe this table in one sentence.\n<table><tr><td>Ann</td><td>3</td></tr></table>",
        'With highlights:\n<table><tr><td class="highlighted">Ann</td><td class="highlighted">3</td></tr></table>',
        "The page is called Village cup.",
    ),
}
SUMMARY = {
    "task": "summary",
    "task_id": "own/summary",
    "topic": "A talk about gardens",
    "query": "Which plants are named?",
    "documents": [
        {"document_id": "a", "document_index": 7, "document_text": "They spoke about roses."},
        {"document_id": "b", "document_index": 2, "document_text": "They spoke about ferns."},
        {"document_id": "c", "document_index": 5, "document_text": "They spoke about roses and moss."},
    ],
    "insights": [
        {"insight_id": "i1", "insight_name": "roses", "insight": "Roses are named."},
        {"insight_id": "i2", "insight_name": "ferns", "insight": "Ferns are named."},
    ],
    "insightid2ref_citations": {"i1": [7, 5, 90], "i2": [2]},
    "shards": [
        {"shard_id": 0, "shard": "", "doc_idxs": [7]},
        {"shard_id": 1, "shard": "", "doc_idxs": [2, 5]},
    ],
}
OF_EACH_TASK = [math_record(), CODE, DATABASE, ACTIONS, DATA2TEXT, SUMMARY]


def math_instruction(number: int = 1, split: Split = Split.EVALUATION) -> Instruction:
    return instruction_from_record(math_record(number), split)


def gold_number(instruction: Instruction) -> str:
    return str(instruction.record["answer"]).rpartition("####")[2].strip()
