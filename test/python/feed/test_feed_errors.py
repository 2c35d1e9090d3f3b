# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Errors between a database and a batch: each has a message with its place, and the feed
goes on from where it was, once the reason is gone."""

import datetime
import subprocess
import sys
import threading

import numpy as np
import pytest

import cleave
from cleave.feed import Feed, FeedError, Mongo, Postgres, SQLite, Store
from database_support import KINDS, databases, needs, server  # noqa: F401
from feed_rows import IDS, ROWS, ids, key

#: Queries that fail in the row whose id is 70.
FAILS = {
    "sqlite": "SELECT id, CASE id WHEN 70 THEN abs(-9223372036854775807 - 1) ELSE x END AS x FROM rows",
    "postgres": "SELECT id, 1 / (id - 70) AS x FROM rows",
}
REASONS = {"sqlite": "integer overflow", "postgres": "division by zero"}


@pytest.mark.parametrize("kind", FAILS)
def test_a_query_that_fails_half_way(databases, kind):  # noqa: F811
    """Is an error, not the end of the data; batches before it stay good. A server may compute a
    row long before it is asked for it."""
    databases.fill(kind, ROWS)
    feed = Feed(databases.source(kind, FAILS[kind]), batch=4, epochs=1, transform=key, page=5)
    found = []
    with pytest.raises(FeedError, match=r"the query failed after (5|10|15|20) rows of epoch 0: .*"
                       + REASONS[kind]):
        for batch in feed:
            found += batch.tolist()
    assert found == IDS[: feed.position] and 0 < feed.position <= 20


def test_a_connection_that_is_lost(databases):  # noqa: F811
    """The server ends it half-way; iterating again connects again, and no row comes twice."""
    databases.fill("postgres", ROWS)
    feed = Feed(databases.source("postgres"), batch=4, epochs=1, transform=key, page=6)
    found = []
    with pytest.raises(FeedError, match="failed after 12 rows of epoch 0: .*terminating connection"):
        for batch in feed:
            found += batch.tolist()
            if len(found) == 12:
                with databases.server().connect() as other:
                    other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                                  "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
    assert found == IDS[:12]
    assert found + sum(ids(feed), []) == IDS


def test_a_mongo_that_fails_half_way(databases, monkeypatch):  # noqa: F811
    errors = needs("pymongo.errors")
    databases.fill("mongo", ROWS)
    source = databases.source("mongo")
    real, calls = type(source._collection).aggregate, []

    def aggregate(collection, *args, **more):
        calls.append(args)
        if len(calls) == 3:
            raise errors.AutoReconnect("the primary stepped down")
        return real(collection, *args, **more)

    monkeypatch.setattr(type(source._collection), "aggregate", aggregate)
    feed = Feed(source, batch=4, epochs=1, transform=key, page=6)
    found = []
    with pytest.raises(FeedError, match="failed after 12 rows of epoch 0: the primary stepped down"):
        for batch in feed:
            found += batch.tolist()
    assert found == IDS[:12] and found + sum(ids(feed), []) == IDS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows, message", [
    ([], "the query has no rows"),
    ([(1, 0), (2, 0), (2, 1), (3, 0)], "the key 'id' has the value 2 twice"),
    ([(1, 0), (2, 0), (3, 0), (3, 1)], "the query gave 3 rows in an epoch, and has 4: "),
    ([(1, 0), (None, 0)], "the key 'id' is null"),
], ids=["empty", "twice", "twice on two pages", "null"])
def test_keys(databases, kind, rows, message):  # noqa: F811
    """`3, 3` is cut between two pages of three rows."""
    if kind == "mongo":
        # The field `_id` cannot be there twice; another one can.
        databases.mongo()["rows"].drop()
        if rows:
            databases.mongo()["rows"].insert_many([{"id": i, "x": x} for i, x in rows])
        source = databases.source("mongo", [{"$project": {"_id": 0}}])
    else:
        databases.fill(kind, rows)
        source = databases.source(kind)
    with pytest.raises(FeedError, match=message):
        list(Feed(source, batch=1, epochs=1, page=3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_is_no_column(databases, kind):  # noqa: F811
    databases.fill(kind, ROWS)
    with pytest.raises(FeedError, match="nothere"):
        list(Feed(databases.source(kind, key="nothere"), batch=1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["added", "removed"])
def test_rows_that_change_during_a_run(databases, kind, change):  # noqa: F811
    """Are found at the end of the epoch; a condition in the query leaves them out."""
    databases.fill(kind, ROWS)
    feed = Feed(databases.source(kind), batch=10, transform=key)
    steps = iter(feed)
    assert sum((next(steps).tolist() for _ in range(5)), []) == IDS
    databases.fill(kind, [*ROWS, (9999, 0)] if change == "added" else ROWS[:-1])
    has = 51 if change == "added" else 49
    with pytest.raises(FeedError, match=f"gave 50 rows in an epoch, and has {has}: rows were added"):
        for _ in range(6):
            next(steps)


def test_a_growing_table_and_a_condition(databases):  # noqa: F811
    databases.fill("sqlite", ROWS)
    limit = IDS[-1]
    feed = Feed(databases.source("sqlite", f"SELECT * FROM rows WHERE id <= {limit}"), batch=10,
                transform=key, epochs=2)
    steps = iter(feed)
    found = sum((next(steps).tolist() for _ in range(3)), [])
    databases.fill("sqlite", [*ROWS, (9999, 0)])
    found += sum((batch.tolist() for batch in steps), [])
    assert found == IDS * 2


def test_what_cannot_be_opened(tmp_path):
    with pytest.raises(FeedError, match="missing.db: .*: there is no such file"):
        list(Feed(SQLite(tmp_path / "missing.db", "SELECT 1 AS id"), batch=1))
    (tmp_path / "other.db").write_text("this is no database" * 100)
    with pytest.raises(FeedError, match="other.db: .*file is not a database"):
        list(Feed(SQLite(tmp_path / "other.db", "SELECT id FROM rows"), batch=1))
    needs("psycopg")
    address = f"postgresql://someone:secret@/base?host={tmp_path}"
    with pytest.raises(FeedError, match="cannot connect") as caught:
        list(Feed(Postgres(address, "SELECT 1 AS id"), batch=1))
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="server is not what libpq connects to"):
        Postgres("postgresql://[", "SELECT 1 AS id")


@pytest.mark.parametrize("address", [
    "postgresql://reader:hunter2%zz@db/texts", "postgresql://reader:hunter2%00@db/texts",
    "host=db dbname=texts password=hun hunter2", "postgresql://reader:pa@hunter2@db/texts",
    "postgresql://reader:pa/hunter2@db/texts",
    "postgresql://reader:hunter2/texts", "host=db password='hunter2",
    "postgresql://reader:hunter2@db/texts?nothing=1", "postgresql://reader:hunter2@db:x/texts",
    "password=hunter2 host=hunter2 dbname=x"])
@pytest.mark.parametrize("make", [lambda address: Postgres(address, "SELECT 1 AS id"), Store],
                         ids=["feed", "store"])
def test_no_message_has_a_password(tmp_path, monkeypatch, address, make):
    """Nor what Python prints of the causes of an error."""
    needs("psycopg")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="server is not what libpq connects to") as caught:
        make(address)
    assert "hunter2" not in str(caught.value) and caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("query, message", [
    ("SELECT id FROM nothing", "nothing"), ("SELEC 1", "syntax error"),
    ("SELECT 1 AS id) AS q; DROP TABLE rows; --", ""),
])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_queries_that_are_none(databases, kind, query, message):  # noqa: F811
    databases.fill(kind, ROWS)
    with pytest.raises(FeedError, match=f"the query failed after 0 rows of epoch 0: .*{message}"):
        list(Feed(databases.source(kind, query), batch=1))
    assert len(list(Feed(databases.source(kind), batch=50, epochs=1))[0]["x"]) == 50


@pytest.mark.parametrize("settings, message", [
    (dict(clean=lambda row: {**row, "y": 1 / (row["id"] - 70)}), r"row id=70: clean raised ZeroDivisionError"),
    (dict(clean=lambda row: row["id"]), r"row id=1: clean returned int, not a dict or None"),
    (dict(clean=lambda row: None), "clean left out every row of an epoch"),
    (dict(transform=lambda row: 1 / (row["id"] - 70)), r"row id=70: transform raised ZeroDivision"),
    (dict(transform=lambda row: [0] * (1 + (row["id"] == 70))),
     r"row id=70: the sample is int64\[2\], and int64\[1\] in the first row of the batch"),
    (dict(transform=lambda row: {"a": 1} if row["id"] != 70 else {"b": 1}),
     "row id=70: the sample has the entries b, and a in the first row of the batch"),
    (dict(transform=lambda row: (1, 2) if row["id"] != 70 else (1,)),
     "row id=70: the sample is not a tuple of 2"),
    (dict(transform=lambda row: {"a": {"b": "text" if row["id"] == 70 else 1}}),
     "row id=70: 'a.b' is str; transform makes an array of it"),
    (dict(transform=lambda row: {"raw": b"12"}), "row id=1: 'raw' is bytes; transform makes an "),
    (dict(transform=lambda row: (None,)), "row id=1: '0' is NoneType; "),
    (dict(transform=lambda row: datetime.date(2020, 1, 1)), "row id=1: the sample is date, which is "
                                                            "no tensor"),
    (dict(transform=lambda row: 2 ** 70 if row["id"] == 70 else 1),
     "row id=70: the sample is int, which is no tensor: Overflow"),
    (dict(transform=lambda row: {}), "row id=1: the sample is empty"),
])
def test_samples_that_are_none(databases, settings, message):  # noqa: F811
    databases.fill("sqlite", ROWS)
    feed = Feed(databases.source("sqlite"), batch=10, epochs=1, **settings)
    with pytest.raises(FeedError, match=message):
        list(feed)
    assert feed.position in (0, 20)


@pytest.mark.parametrize("used", [0, 7])
def test_a_position_of_other_rows(databases, used):  # noqa: F811
    """The check of the number of rows counts, also where no row was used."""
    databases.fill("sqlite", ROWS)
    feed = Feed(databases.source("sqlite"), batch=10, epochs=1)
    feed.position = 3 << 44 | used
    with pytest.raises(FeedError, match=f"had more or fewer .* row {used} since the start"):
        list(feed)


@pytest.mark.parametrize("query, parameters, message", [
    ("SELECT id, x FROM rows WHERE id < ?", (2 ** 70,), "too large"),
    ("SELECT id, '\udc80' AS x FROM rows", (), "surrogates not allowed"),
    ("SELECT id, x FROM rows WHERE id < ?", ([],), "not supported"),
])
def test_what_sqlite_does_not_take(databases, query, parameters, message):  # noqa: F811
    databases.fill("sqlite", ROWS)
    with pytest.raises(FeedError, match=f"the query failed after 0 rows of epoch 0: .*{message}"):
        list(Feed(databases.source("sqlite", query, parameters=parameters), batch=1))


def test_threads_of_one_source(databases):  # noqa: F811
    """Two feeds of one source take turns at its connection."""
    databases.fill("postgres", ROWS)
    source, found, failed = databases.source("postgres"), [], []

    def work():
        try:
            for _ in range(5):
                found.append(sum(ids(Feed(source, batch=5, transform=key, epochs=1, page=3)), []))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not failed and found == [IDS] * 20


def test_columns_of_one_name(databases):  # noqa: F811
    """No column takes the place of another one."""
    databases.fill("postgres", ROWS)
    with pytest.raises(FeedError, match="the query has two columns named 'x'; AS renames one"):
        list(Feed(databases.source("postgres", "SELECT id, x, id AS x FROM rows"), batch=1))


def test_a_sample_of_no_columns(databases):  # noqa: F811
    databases.fill("sqlite", ROWS)
    with pytest.raises(FeedError, match="row id=1: the sample is empty"):
        list(Feed(databases.source("sqlite", "SELECT id FROM rows"), batch=10))


def test_a_position_behind_the_end(databases):  # noqa: F811
    databases.fill("sqlite", ROWS)
    feed = Feed(databases.source("sqlite"), batch=10, epochs=2)
    feed.position = 100
    assert not list(feed)
    feed.position = 101
    with pytest.raises(FeedError, match="position 101 is behind the 2 epochs of 50 rows"):
        list(feed)


@pytest.mark.parametrize("settings, error, message", [
    (dict(batch=0), ValueError, "batch is 0; it must be at least 1"),
    (dict(batch=2.0), TypeError, "batch is 2.0; it must be an integer"),
    (dict(batch=True), TypeError, "batch is True; it must be an integer"),
    (dict(batch=4, ranks=3), ValueError, "batch is 4, which is not divisible by 3 ranks"),
    (dict(batch=4, ranks=2, rank=2), ValueError, "rank is 2; of 2 ranks the last one is 1"),
    (dict(batch=4, epochs=0), ValueError, "epochs is 0; it must be at least 1"),
    (dict(batch=4, shuffle=-1), ValueError, "shuffle is -1; it must be at least 0"),
    (dict(batch=4, page=0), ValueError, "page is 0; it must be at least 1"),
    (dict(batch=4, drop_last="no"), TypeError, "drop_last is 'no'; it must be True or False"),
    (dict(batch=4, clean=3), TypeError, "clean is int, not a function"),
    (dict(batch=4, transform="x"), TypeError, "transform is str, not a function"),
])
def test_bad_arguments(settings, error, message):
    with pytest.raises(error, match=message):
        Feed(SQLite("rows.db", "SELECT 1 AS id"), **settings)


def test_other_bad_arguments():
    with pytest.raises(TypeError, match="source is str, not a cleave.feed.Source"):
        Feed("rows.db", batch=1)
    for query in ("", " ; ", None):
        with pytest.raises(ValueError, match="it must be a SELECT"):
            SQLite("rows.db", query)
    for given in (None, 3, "5", iter([5])):
        with pytest.raises(TypeError, match="parameters is .*, not a sequence of values"):
            SQLite("rows.db", "SELECT 1 AS id", parameters=given)
    for name, error in ((3, TypeError), (None, TypeError), ("", ValueError), ("a\0b", ValueError)):
        with pytest.raises(error, match=r"key is .* the name of a column"):
            SQLite("rows.db", "SELECT 1 AS id", key=name)
    feed = Feed(SQLite("rows.db", "SELECT 1 AS id"), batch=1)
    with pytest.raises(ValueError, match="position is -1; it must be at least 0"):
        feed.position = -1
    with pytest.raises(ValueError, match="position is 9223372036854775808, which is none"):
        feed.position = 2 ** 63
    needs("pymongo")
    with pytest.raises(TypeError, match="query is str, not a dict of conditions or a list"):
        Mongo(needs("mongomock").MongoClient()["a"]["b"], "x < 9")


def test_drivers_that_are_not_installed(monkeypatch):
    for name in ("psycopg", "pymongo"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FeedError, match=r"'psycopg' is not installed: pip install 'cleave\[postgres\]'"):
        Postgres("dbname=a", "SELECT 1 AS id")
    with pytest.raises(FeedError, match=r"'pymongo' is not installed: pip install 'cleave\[mongo\]'"):
        Mongo(object(), {})


def test_importing_it_imports_no_driver():
    code = ("import sys, cleave.feed; print([m for m in ('torch', 'psycopg', 'pymongo', 'numpy') "
            "if m in sys.modules])")
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
    assert "feed" in cleave.__all__


def test_a_thread_reads(databases):  # noqa: F811
    """Another one than opened the database."""
    databases.fill("sqlite", ROWS)
    feed = Feed(databases.source("sqlite"), batch=10, transform=key, epochs=1)
    found = ids(feed, 1)
    thread = threading.Thread(target=lambda: found.extend(ids(feed)))
    thread.start()
    thread.join()
    assert sum(found, []) == IDS


def test_arrays_that_cannot_be_written(databases):  # noqa: F811
    """As `frombuffer` makes them: copied, without a warning."""
    databases.fill("sqlite", ROWS)
    feed = Feed(databases.source("sqlite"), batch=10, epochs=1,
                transform=lambda row: np.frombuffer(bytes([row["x"]] * 4), "uint32"))
    for batch in feed:
        batch += 1
    assert batch.dtype.is_signed and not batch.dtype.is_floating_point
