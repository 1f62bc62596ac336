"""Text-to-SQL: values cut out of question and query, gold queries of every state, graded by running them."""

import json
import sqlite3

import pytest

from collab.environments.domain import BadRecord, Environment, Resources
from collab.environments.evolving_intent.conversations import evolve
from collab.environments.evolving_intent.conversion import Rejected, SourceTask, conversion_from_record
from collab.environments.evolving_intent.schedule import Shape
from collab.environments.evolving_intent.solvers import query_solver
from collab.environments.evolving_intent.sql.builder import convert_record
from collab.environments.evolving_intent.sql.domain import SQL_PHRASES, QueryVerifier
from collab.environments.registry import load_domain
from collab.rewards.database_schema import Schema
from simulators.chat_models.scripted import ScriptedChatModel
from simulators.conversation import Message

SCHEMA = "CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name TEXT, country TEXT, age INTEGER);"
SINGERS = {
    "id": "singers",
    "question": "What are the names of all singers from France older than 30?",
    "query": "SELECT name FROM singer WHERE country = 'France' AND age > 30",
    "schema_sql": SCHEMA,
}


def test_values_become_arguments_and_the_question_loses_them():
    conversion = convert_record(SINGERS, "x", seed=0)
    parts = conversion.ingredients
    assert parts.source.text == "What are the names of all singers from a certain country older than a certain age?"
    assert [argument.text for argument in parts.arguments][:2] == ["The country I mean is France.", "The age I mean is 30."]
    told = {argument.key: 0 for argument in parts.arguments}
    assert conversion.answers.answer(parts.source, told) == SINGERS["query"]
    other = parts.arguments[0].alternatives[0].new
    assert conversion.answers.answer(parts.source, told | {"a1": 1}) == SINGERS["query"].replace("France", other)
    assert conversion.answers.answer(parts.source, {"a1": 0}) is None
    count = parts.predecessors[0]
    assert count.text == "How many rows of singer are there whose country is the one I mean?"
    assert conversion.answers.answer(count, {"a1": 0}) == 'SELECT COUNT(*) FROM "singer" WHERE "country" = \'France\''


def test_a_hint_that_names_a_value_keeps_it_fixed():
    record = SINGERS | {"evidence": "singers from France have country = 'France'"}
    arguments = convert_record(record, "x", seed=0).ingredients.arguments
    assert arguments[0].alternatives == () and arguments[1].alternatives
    assert arguments[2].text.startswith("A hint about the data:")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"question": ""}, "field 'question'"),
        ({"query": None}, "field 'query'"),
        ({"schema_sql": ""}, "no schema"),
        ({"schema_sql": "CREATE TABLE ("}, "do not run"),
    ],
)
def test_bad_records_are_named(change, complaint):
    with pytest.raises(BadRecord, match=complaint):
        convert_record(SINGERS | change, "x", seed=0)


def test_a_query_without_a_shared_value_is_rejected():
    with pytest.raises(Rejected, match="share no value"):
        convert_record(SINGERS | {"question": "How many singers are there?", "query": "SELECT count(*) FROM singer"}, "x", seed=0)


async def test_conversations_are_graded_by_running_queries():
    environment = Environment(load_domain("evolving_sql", {"turns": 4}), Resources(count_tokens=len))
    task = environment.domain.task_from_record(SINGERS, "x")
    record = task.metadata["evolving"]
    assert record["messages"][0].startswith("Here is my database:\nsinger(singer_id, name, country, age)")
    gold = [target["answer"] for target in record["targets"]]

    def conversation(queries):
        said = zip(record["messages"], queries, strict=True)
        return tuple(
            message for text, query in said for message in (Message("user", text), Message("assistant", f"```sql\n{query}\n```"))
        )

    fallback = "SELECT 1"
    score = await environment.reward.score(conversation([query or fallback for query in gold]), task)
    assert score.components == {"accuracy": 1.0, "intent_tracking": 1.0}
    stale = [*gold[:-1], conversion_answer(task, {"a1": 1})]
    score = await environment.reward.score(conversation([query or fallback for query in stale]), task)
    assert score.components["accuracy"] == 0.0 and score.components["intent_tracking"] < 1.0


def conversion_answer(task, versions):
    conversion = conversion_from_record(task.metadata["conversion"])
    told = {argument.key: 0 for argument in conversion.ingredients.arguments}
    return conversion.answers.answer(conversion.ingredients.source, told | versions)


async def test_a_solver_of_queries_compares_by_running():
    solver = query_solver(ScriptedChatModel(lambda request, rng: "```sql\nSELECT name FROM singer WHERE age > 30\n```"))
    task = SourceTask(
        "x", "Who?", "SELECT name FROM singer WHERE 30 < age", {"verifier": {"schema_sql": SCHEMA}, "preamble": "DB"}
    )
    found = await solver.solve("Who?", task, 0)
    assert found == "SELECT name FROM singer WHERE age > 30"
    assert await solver.same(task.reference, found, task)
    assert not await solver.same(task.reference, "SELECT name FROM singer WHERE age > 60", task)
    assert QueryVerifier().answers("```sql\nSELECT 1\n```") and not QueryVerifier().answers("Which table?")


def _spider(folder):
    tables = {entry["db_id"]: entry for entry in json.loads((folder / "spider" / "tables.json").read_text())}
    rows = json.loads((folder / "spider" / "dev_slim.json").read_text())
    return [row | {"schema": tables[row["db_id"]], "id": f"spider-{number}"} for number, row in enumerate(rows)]


def _bird(folder):
    tables = {entry["db_id"]: entry for entry in json.loads((folder / "bird-mini-dev" / "dev_tables.json").read_text())}
    rows = json.loads((folder / "bird-mini-dev" / "mini_dev_sqlite.json").read_text())
    return [row | {"schema": tables[row["db_id"]]} for row in rows]


@pytest.mark.parametrize(("read", "least"), [(_spider, 0.28), (_bird, 0.5)])
def test_real_questions_convert_and_every_states_query_runs(collab_data, read, least):
    records = read(collab_data)
    converted = played = 0
    for number, record in enumerate(records):
        try:
            conversion = convert_record(record, f"x{number}", seed=0)
        except Rejected:
            continue
        converted += 1
        if converted % 8:
            continue
        try:
            conversation = evolve(conversion, Shape(4, 1, 1), SQL_PHRASES)
        except Rejected:
            continue
        played += 1
        connection = _empty(Schema.from_spider(record["schema"]))
        for target in conversation.targets:
            for query in (target.answer, *target.stale_values, *target.stale_functions):
                if query is not None:
                    connection.execute(query).fetchall()
        assert conversation.targets[-1].answer == conversion.task.reference
    assert converted / len(records) >= least and played >= 5


def _empty(schema: Schema) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for table in schema.tables:
        columns = ", ".join(f'"{column.name}"' for column in table.columns)
        connection.execute(f'CREATE TABLE "{table.name}" ({columns})')
    return connection


async def test_no_style_and_no_model_touches_the_schema_or_a_recap():
    options = {"turns": 4, "recap": "oracle"}
    plain = load_domain("evolving_sql", options).task_from_record(SINGERS, "x").metadata["evolving"]
    assert "singer(singer_id, name, country, age)" in plain["preamble"]
    for seed in range(20):
        styled = load_domain("evolving_sql", options | {"persona": "hasty", "seed": seed}).task_from_record(SINGERS, "x")
        for message, recap in zip(styled.metadata["evolving"]["messages"], styled.metadata["evolving"]["recaps"], strict=True):
            assert message.endswith(recap)
        assert styled.opening.startswith(plain["preamble"] + "\n\n")
    chosen = load_domain("evolving_sql", options | {"user": "model"})
    task = chosen.task_from_record(SINGERS, "x")
    mute = ScriptedChatModel(lambda request, rng: json.dumps({"message": "hm"}))
    echo = ScriptedChatModel(
        lambda request, rng: json.dumps({"message": request.messages[-1].content.split("<point>\n")[1].split("\n</point>")[0]})
    )
    for model in (mute, echo):
        user = chosen.make_user(task, Resources(count_tokens=len, user_model=model))
        said = [(await user.next_turn((Message("user", "?"),) * turn, 0)).text for turn in range(4)]
        assert said == task.metadata["evolving"]["messages"]
