# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Which rows a feed gives, in which order and batches, whatever database they are in."""

import itertools
import pickle

import numpy as np
import pytest
import torch

from cleave.feed import Feed, FeedError, Postgres, SQLite
from database_support import KINDS, databases, server  # noqa: F401
from feed_rows import IDS, ROWS, ids, key


@pytest.fixture(params=KINDS)
def kind(request, databases):  # noqa: F811
    databases.fill(request.param, ROWS)
    return request.param


def test_batches(kind, databases):  # noqa: F811
    """Those of the rows cut in pieces, in the order of the key; the last one is shorter."""
    feed = Feed(databases.source(kind), batch=8, epochs=1, page=7)
    batches = list(feed)
    assert [len(b["x"]) for b in batches] == [8] * 6 + [2]
    assert all(set(b) == {"x"} and b["x"].dtype == torch.int64 for b in batches)
    assert torch.cat([b["x"] for b in batches]).tolist() == [x for _, x in ROWS]
    assert feed.position == 50 and not list(feed)


@pytest.mark.parametrize("page", [1, 5, 50, 51])
def test_batches_span_epochs(kind, databases, page):  # noqa: F811
    feed = Feed(databases.source(kind), batch=8, transform=key, page=page)
    found = sum(ids(feed, 25), [])
    assert found == IDS * 4
    assert feed.used == 200


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("shuffle", [0, 1, 7, 1000])
def test_each_row_is_on_one_rank_in_each_epoch(kind, databases, ranks, shuffle):  # noqa: F811
    """The ranks' parts together are the batches that one rank alone gets, each row is transformed
    once, where it is used, and each epoch has every row once."""
    calls = []

    def transform(row, rank):
        calls.append((rank, row["id"]))
        return row["id"]

    def feed(rank, ranks):
        return Feed(databases.source(kind), batch=12, epochs=2, shuffle=shuffle, seed=3,
                    transform=lambda row: transform(row, rank), rank=rank, ranks=ranks, page=11)

    whole = ids(feed(0, 1))
    calls.clear()
    parts = [ids(feed(rank, ranks)) for rank in range(ranks)]
    joined = [sum(step, []) for step in itertools.zip_longest(*parts, fillvalue=[])]
    assert joined == whole
    assert sorted(sum(whole, [])) == sorted(IDS * 2)
    assert sorted(sum(whole, [])[:50]) == IDS
    assert len(calls) == 100
    for rank in range(ranks):
        assert [i for r, i in calls if r == rank] == sum(parts[rank], [])
    if ranks > 1:
        assert all(len(part) == 12 // ranks for own in parts for part in own[:-1])


def test_shuffled_blocks(kind, databases):  # noqa: F811
    """Each block is a permutation of its rows; epochs and seeds have others."""
    def order(**settings):
        feed = Feed(databases.source(kind), batch=1, epochs=2, transform=key, shuffle=20, **settings)
        return sum(ids(feed), [])

    found = order()
    for start in range(0, 100, 50):
        for a, b in ((0, 20), (20, 40), (40, 50)):
            assert sorted(found[start + a : start + b]) == IDS[a:b]
    assert found[:20] != IDS[:20] and found[:50] != found[50:]
    assert found == order(page=3) and found != order(seed=1)


@pytest.mark.parametrize("shuffle", [0, 7, 50])
def test_resumed_anywhere(kind, databases, shuffle):  # noqa: F811
    """From each position a feed that was opened anew gives what the first one gave after it."""
    def feed():
        return Feed(databases.source(kind), batch=4, epochs=2, shuffle=shuffle, seed=1, page=9,
                    clean=lambda row: row if row["x"] % 5 else None, transform=key)

    one = feed()
    positions, batches = [0], []
    for batch in one:
        batches.append(batch.tolist())
        positions.append(one.position)
    kept = [i for i, x in ROWS if x % 5]
    assert sorted(sum(batches, [])) == sorted(kept * 2)
    # After the end, the position counts the rows that were left out, too.
    assert one.used == 100
    for at, position in enumerate(positions):
        other = feed()
        other.position = position
        assert ids(other) == batches[at:], position


@pytest.mark.parametrize("shuffle", [0, 7, 50, 60])
@pytest.mark.parametrize("change", ["added", "removed"])
def test_resumed_after_a_change(databases, shuffle, change):  # noqa: F811
    """At each position a feed refuses another number of rows, or gives, as within the first epoch,
    all rows of the epoch that were not used before; a plain number counts by the rows of now."""
    databases.fill("sqlite", ROWS)

    def feed():
        return Feed(databases.source("sqlite"), batch=4, epochs=2, shuffle=shuffle, seed=1, page=9,
                    transform=key)

    one, taken, used = feed(), [], []
    for batch in one:
        used += batch.tolist()
        taken.append((one.position, one.used))
    rows = [*ROWS, (9997, 0), (9999, 0)] if change == "added" else ROWS[:-2]
    databases.fill("sqlite", rows)
    keys = [i for i, _ in rows]
    refused = 0
    for position, count in taken:
        other = feed()
        other.position = position
        assert (other.position, other.used) == (position, count)
        try:
            found = next(iter(other)).tolist()
        except FeedError as error:
            refused += 1
            assert f"the query has {len(rows)} rows, and had more or fewer" in str(error)
            other.position = count
            assert other.used == count
            continue
        assert count <= 50
        if change == "added":
            found = used[:count] + sum([found, *ids(other)], [])
            assert sorted(found) == sorted(keys * 2) and set(found[: len(keys)]) == set(keys)
    block = 50 % shuffle if shuffle else 0
    assert refused >= sum(count > 50 - block for _, count in taken) > 0


def test_iterating_again_goes_on(kind, databases):  # noqa: F811
    feed = Feed(databases.source(kind), batch=5, transform=key, epochs=1, page=50)
    assert sum(ids(feed, 2) + ids(feed, 3) + ids(feed), []) == IDS


def test_samples(kind, databases):  # noqa: F811
    feed = Feed(databases.source(kind), batch=5, transform=key, epochs=1)
    assert list(itertools.islice(feed.samples(), 7)) == IDS[:7]
    assert feed.position == 7
    assert list(feed.samples()) == IDS[7:]


def test_drop_last(kind, databases):  # noqa: F811
    feed = Feed(databases.source(kind), batch=20, transform=key, epochs=1, drop_last=True)
    assert ids(feed) == [IDS[:20], IDS[20:40]]
    assert feed.position == 50 and not list(feed)


def test_fewer_samples_than_ranks_at_the_end(kind, databases):  # noqa: F811
    feeds = [Feed(databases.source(kind), batch=16, epochs=1, transform=key, rank=rank, ranks=4)
             for rank in range(4)]
    last = [ids(feed)[3:] for feed in feeds]
    assert last == [[IDS[48:49]], [IDS[49:]], [], []]


def test_parameters_and_text(databases):  # noqa: F811
    """A query with parameters, of its own order, with a comment at its end, `;` and `%`."""
    databases.fill("sqlite", ROWS)
    databases.fill("postgres", ROWS)
    wanted = [i for i, x in ROWS if x < 9]
    path, address = databases.sqlite(), databases.server().address
    sources = [
        SQLite(path, "SELECT * FROM rows WHERE x < ?", parameters=(9,)),
        SQLite(path, "SELECT * FROM rows WHERE x < :x;", parameters={"x": 9}),
        SQLite(path, "SELECT * FROM rows WHERE x % 100 < 9 -- of x\n"),
        Postgres(address, "SELECT * FROM rows WHERE x < %s", parameters=[9]),
        Postgres(address, "SELECT * FROM rows WHERE x < %(x)s;", parameters={"x": 9}),
        Postgres(address, "SELECT * FROM rows WHERE x % 100 < 9 -- of x"),
    ]
    for source in sources:
        feed = Feed(source, batch=3, transform=key, epochs=2, page=4)
        assert sum(ids(feed), []) == wanted * 2, source.query
    assert sources[0].query == "SELECT * FROM rows WHERE x < ? with (9,)"
    assert sources[5].query == "SELECT * FROM rows WHERE x % 100 < 9 -- of x"


def test_keys_of_text(databases):  # noqa: F811
    """Ordered as the database orders them."""
    words = ["b", "a", "C", "ä", "%", "'", "aa"]
    for kind in ("sqlite", "postgres"):
        databases.fill(kind, enumerate(range(len(words))))
        cases = " ".join(f"WHEN {i} THEN '{w.replace(chr(39), chr(39) * 2)}'"
                         for i, w in enumerate(words))
        source = databases.source(kind, f"SELECT CASE id {cases} END AS word, x FROM rows",
                                  key="word")
        found = list(Feed(source, batch=1, epochs=1, page=2,
                          transform=lambda row: row["x"]))
        assert sorted(int(x) for x in found) == list(range(len(words)))


def test_an_aggregation_of_documents(databases):  # noqa: F811
    """Conditions, or stages; each document is a row."""
    databases.fill("mongo", ROWS)
    where = databases.source("mongo", {"x": {"$lt": 9}}, key="_id")
    stages = databases.source("mongo", [{"$match": {"x": {"$lt": 9}}},
                                        {"$project": {"twice": {"$multiply": ["$x", 2]}}}], key="_id")
    wanted = [x for _, x in ROWS if x < 9]
    found = list(Feed(where, batch=100, epochs=1))[0]["x"].tolist()
    assert found == wanted
    assert list(Feed(stages, batch=100, epochs=1))[0]["twice"].tolist() == [2 * x for x in wanted]
    assert where.query == '{"x": {"$lt": 9}}'


def test_types_of_postgres(databases):  # noqa: F811
    """Arrays, floats, booleans, bytes and JSON; each as the server prints them."""
    query = ("SELECT i AS id, ARRAY[i, i * 2] AS pair, i / 2.0::float8 AS half, i > 1 AS large, "
             "decode('0' || i || '00', 'hex') AS raw, json_build_object('a', i) AS doc "
             "FROM generate_series(0, 2) AS i")
    source = Postgres(databases.server().address, query)

    def transform(row):
        return row["pair"], row["half"], row["large"], np.frombuffer(row["raw"], "<u2"), row["doc"]["a"]

    (pair, half, large, raw, doc), = Feed(source, batch=3, epochs=1, transform=transform)
    assert pair.tolist() == [[0, 0], [1, 2], [2, 4]] and half.tolist() == [0.0, 0.5, 1.0]
    assert large.tolist() == [False, False, True] and large.dtype == torch.bool
    assert raw.tolist() == [[0], [1], [2]] and raw.dtype == torch.int64
    assert doc.tolist() == [0, 1, 2]


def test_a_server_is_only_read(databases):  # noqa: F811
    databases.fill("postgres", ROWS)
    with databases.server().connect() as connection:
        connection.execute("CREATE OR REPLACE FUNCTION spoil() RETURNS BIGINT LANGUAGE plpgsql AS "
                           "$$ BEGIN DELETE FROM rows; RETURN 1; END $$")
    feed = Feed(databases.source("postgres", "SELECT id, spoil() AS x FROM rows"), batch=2)
    with pytest.raises(FeedError, match="cannot execute DELETE in a read-only transaction"):
        next(iter(feed))
    assert len(list(Feed(databases.source("postgres"), batch=50, epochs=1))[0]["x"]) == 50


def test_a_source_moves_to_another_process(databases):  # noqa: F811
    """Without its connection."""
    databases.fill("sqlite", ROWS)
    feed = Feed(databases.source("sqlite"), batch=5, transform=key, epochs=1)
    assert ids(feed, 1) == [IDS[:5]]
    other = pickle.loads(pickle.dumps(feed))
    assert sum(ids(other), []) == IDS[5:] == sum(ids(feed), [])
