"""Execution match on files and synthetic fills, hostile queries, and real gold queries by the thousand."""

import json
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collab.rewards.component import RewardComponent, ScoringError
from collab.rewards.database_schema import Schema
from collab.rewards.sql import SqlExecution
from collab.rewards.sql_worker import match_execution, orders_rows, same_rows
from collab.rewards.synthetic_database import fill, telling
from collab.rewards.worker_pool import WorkerPool
from collab.tasks.task import Task
from simulators.conversation import Outcome
from simulators.errors import ConfigurationError
from tests.rewards.conversations import says
from tests.rewards.wrong_queries import near_misses, one_row_too_many

SCHEMA = """
CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, country TEXT, age INTEGER);
CREATE TABLE concert (id INTEGER PRIMARY KEY, singer_id INTEGER, year INTEGER, hall TEXT,
                      FOREIGN KEY (singer_id) REFERENCES singer(id));
"""
GOLD = """SELECT T1.name, count(*) FROM singer AS T1 JOIN concert AS T2 ON T1.id = T2.singer_id
WHERE T1.country = 'France' GROUP BY T1.id"""


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(workers=1) as pool:
        yield pool


def task(gold=GOLD, **metadata):
    return Task("q1", "g", metadata={"reference_sql": gold, "schema_sql": SCHEMA, **metadata})


async def score(pool, query, gold=GOLD, **options):
    component = SqlExecution(pool=pool, **options)
    return await component.score(says(f"Try this:\n```sql\n{query}\n```"), task(gold))


@pytest.mark.parametrize(
    "query",
    [
        GOLD,
        GOLD + ";",
        """SELECT s.name, COUNT(c.id) FROM concert c, singer s
           WHERE c.singer_id = s.id AND s.country IN ('France') GROUP BY s.id ORDER BY 2""",
        """WITH n AS (SELECT singer_id, count(*) AS c FROM concert GROUP BY singer_id)
           SELECT name, c FROM singer, n WHERE id = singer_id AND country = 'France'""",
    ],
)
async def test_equal_queries(pool, query):
    assert await score(pool, query) == 1.0


@pytest.mark.parametrize(
    "query",
    [
        GOLD.replace("France", "Spain"),
        GOLD.replace("count(*)", "1"),
        GOLD.replace("WHERE T1.country = 'France'", ""),
        GOLD.replace("T1.name, ", ""),
        "SELECT 1",
        "SELECT nonsense FROM nowhere",
        "not SQL at all",
        "",
        GOLD + "; SELECT 1",
    ],
)
async def test_wrong_queries(pool, query):
    assert await score(pool, query) == 0.0


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM singer",
        "DROP TABLE singer",
        "INSERT INTO singer VALUES (1, 'a', 'b', 2)",
        "UPDATE singer SET age = 1",
        "CREATE TABLE x (y)",
        "ATTACH DATABASE '/etc/passwd' AS p",
        "PRAGMA query_only = OFF",
        "PRAGMA writable_schema = 1",
        "VACUUM INTO 'copy.db'",
        "SELECT load_extension('libc.so.6')",
        "SELECT readfile('/etc/passwd')",
        "SELECT * FROM pragma_database_list",
        "SELECT fts3_tokenizer('simple')",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
        "SELECT count(*) FROM singer a, singer b, singer c, singer d, singer e, singer f, singer g",
        "SELECT hex(zeroblob(2000000000))",
        "SELECT " + "(" * 3000 + "1" + ")" * 3000,
        "SELECT 1" + " UNION ALL SELECT 1" * 1000,
        "WITH RECURSIVE t(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM t) SELECT count(*) FROM t",
    ],
)
async def test_hostile_queries_score_0_and_change_nothing(pool, query):
    assert await score(pool, query, seconds=1.0) == 0.0
    assert await score(pool, GOLD, seconds=1.0) == 1.0


async def test_a_query_that_cannot_be_interrupted_is_killed_and_gives_no_score():
    query = "SELECT instr(hex(zeroblob(4000000)), hex(zeroblob(2000000)) || '1')"  # one step of SQLite, hours of work
    with WorkerPool(workers=1) as pool:
        with pytest.raises(ScoringError, match="was killed") as caught:
            await score(pool, query, deadline_s=1.0)
        assert caught.value.outcome is Outcome.JUDGE_ERROR
        assert await score(pool, GOLD) == 1.0


async def test_a_gold_query_that_fails_gives_no_score(pool):
    with pytest.raises(ScoringError, match="the gold query does not run") as caught:
        await score(pool, "SELECT 1", gold="SELECT nonsense FROM singer")
    assert caught.value.outcome is Outcome.JUDGE_ERROR


async def test_no_query_scores_0(pool):
    assert await SqlExecution(pool=pool).score(says("Which table do you mean?"), task()) == 0.0


async def test_order_counts_only_where_the_gold_query_orders(pool):
    ordered, bag = "SELECT name FROM singer ORDER BY age", "SELECT name FROM singer"
    assert await score(pool, "SELECT name FROM singer ORDER BY age DESC", gold=bag) == 1.0
    assert await score(pool, "SELECT name FROM singer ORDER BY age DESC", gold=ordered) == 0.0
    assert await score(pool, "SELECT name FROM singer ORDER BY age ASC", gold=ordered) == 1.0


async def test_column_order_counts_unless_told_otherwise(pool):
    gold, turned = "SELECT name, age FROM singer", "SELECT age, name FROM singer"
    assert await score(pool, turned, gold=gold) == 0.0
    assert await score(pool, turned, gold=gold, any_column_order=True) == 1.0
    assert await score(pool, "SELECT age, age FROM singer", gold=gold, any_column_order=True) == 0.0


async def test_database_files_are_read_and_not_written(pool, tmp_path):
    path = tmp_path / "real.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(SCHEMA + "INSERT INTO singer VALUES (1, 'Ann', 'France', 30), (2, 'Bo', 'Spain', 20);")
    connection.close()
    before = path.read_bytes()
    of_file = Task("q2", "g", reference="SELECT name FROM singer WHERE age > 25", metadata={"database_files": [str(path)]})
    component = SqlExecution(pool=pool)
    assert await component.score(says("SELECT name FROM singer WHERE country = 'France'"), of_file) == 1.0
    assert await component.score(says("SELECT name FROM singer"), of_file) == 0.0
    assert await component.score(says("```sql\nDELETE FROM singer\n```"), of_file) == 0.0
    assert path.read_bytes() == before
    missing = Task("q3", "g", reference="SELECT 1", metadata={"database_files": [str(tmp_path / "none.sqlite")]})
    with pytest.raises(ScoringError, match="there is no database"):
        await component.score(says("SELECT 1"), missing)
    assert not (tmp_path / "none.sqlite").exists()


async def test_tasks_that_can_never_be_scored(pool):
    with pytest.raises(ConfigurationError, match="task q4 has no gold query"):
        await SqlExecution(pool=pool).score(says("SELECT 1"), Task("q4", "g", metadata={"schema_sql": SCHEMA}))
    with pytest.raises(ConfigurationError, match="task q5: no schema"):
        await SqlExecution(pool=pool).score(says("SELECT 1"), Task("q5", "g", reference="SELECT 1"))
    with pytest.raises(ConfigurationError, match="do not run"):
        Schema.from_sql("CREATE TABLE t (a); ATTACH DATABASE 'x' AS y")
    assert isinstance(SqlExecution(), RewardComponent)


def test_a_fill_is_the_same_every_time_and_differs_by_seed():
    schema = Schema.from_sql(SCHEMA)

    def dump(seed):
        return list(fill(schema, GOLD, seed).iterdump())

    assert dump(1) == dump(1)
    assert dump(1) != dump(2)


def test_schema_survives_the_pipe():
    schema = Schema.from_sql(SCHEMA)
    assert Schema.from_plain(json.loads(json.dumps(schema.as_plain()))) == schema


ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None])), max_size=6)


@given(ROWS, st.randoms())
def test_bags_do_not_care_about_order_but_about_numbers(rows, rng):
    shuffled = rows[:]
    rng.shuffle(shuffled)
    assert same_rows(rows, shuffled, ordered=False, any_column_order=False)
    assert same_rows(rows, shuffled, ordered=True, any_column_order=False) == (rows == shuffled)
    assert not same_rows(rows, [*shuffled, (0, "a")], ordered=False, any_column_order=False)


def test_values_are_compared_by_meaning():
    assert same_rows([(5, 0.1 + 0.2)], [(5.0, 0.3)], ordered=True, any_column_order=False)
    assert not same_rows([("5",)], [(5,)], ordered=True, any_column_order=False)
    assert not same_rows([(None,)], [(0,)], ordered=True, any_column_order=False)


def test_where_the_order_is_part_of_the_answer():
    assert orders_rows("SELECT a FROM t ORDER BY a")
    assert not orders_rows("SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3)")
    assert not orders_rows("SELECT a FROM t WHERE b = 'order by'")
    assert not orders_rows("SELECT rank() OVER (ORDER BY a) FROM t")


def gold_queries(collab_data):
    """Yield (schema as plain data, gold query) for all of Spider dev and BIRD mini-dev."""
    tables = json.loads((collab_data / "spider/tables.json").read_text()) + json.loads(
        (collab_data / "bird-mini-dev/dev_tables.json").read_text()
    )
    schemas = {entry["db_id"]: Schema.from_spider(entry).as_plain() for entry in tables}
    for name, key in (("spider/dev_slim.json", "query"), ("bird-mini-dev/mini_dev_sqlite.json", "SQL")):
        for record in json.loads((collab_data / name).read_text()):
            yield schemas[record["db_id"]], record[key]


def verdict(schema, gold, query):
    request = {
        "gold": gold,
        "query": query,
        "files": [],
        "schema": schema,
        "fills": 3,
        "seed": 0,
        "seconds": 60,
        "any_column_order": False,
    }
    return match_execution(request)


def check_gold_queries(queries):
    """Every gold query matches itself; none matches a wrong one; and small mistakes are found almost always."""
    empty = caught = missed = 0
    for schema, gold in queries:
        itself = verdict(schema, gold, gold)
        assert itself["equal"], (gold, itself)
        empty += not itself["telling"]
        wrong = one_row_too_many(gold) if itself["telling"] else "SELECT 'not empty'"
        assert not verdict(schema, gold, wrong)["equal"], gold
        for _, near in near_misses(gold):
            equal = verdict(schema, gold, near)["equal"]
            caught, missed = caught + (not equal), missed + equal
    return empty, caught, missed


def test_some_gold_queries_of_spider_and_bird(collab_data):
    queries = list(gold_queries(collab_data))
    empty, caught, missed = check_gold_queries(queries[::17])
    assert len(queries) == 1534
    assert empty <= 2
    assert caught > 9 * missed


@pytest.mark.slow
def test_all_gold_queries_of_spider_and_bird(collab_data):
    queries = list(gold_queries(collab_data))
    empty, caught, missed = check_gold_queries(queries)
    print(f"{len(queries)} gold queries, {empty} without a telling fill; near misses caught {caught} of {caught + missed}")
    assert len(queries) == 1534
    assert empty <= 0.01 * len(queries)
    assert caught > 0.95 * (caught + missed)


def test_schemas_and_queries_of_lost_in_conversation(collab_data):
    for line in (collab_data / "lost-in-conversation/database.jsonl").read_text().splitlines():
        record = json.loads(line)
        schema = Schema.from_metadata(record)
        rows = [fill(schema, record["reference_sql"], seed).execute(record["reference_sql"]).fetchall() for seed in range(4)]
        assert any(map(telling, rows)), record["reference_sql"]
