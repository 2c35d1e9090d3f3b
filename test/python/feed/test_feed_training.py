# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Steps that are fed from a database: the bits of those that read a file of the same rows, each row
once in each epoch on every mesh, also if the process is killed."""

import random
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import cleave
import feed_script
from cleave.feed import Feed, SQLite
from database_support import KINDS, databases, server  # noqa: F401
from proofs import ALL
from training_support import net, same_bits, snapshot, token_loss

MESHES = [{}, {"dp": 2}, {"dp": 3}, {"dp": 4}]


def mesh_name(mesh):
    return f"dp {mesh.get('dp', 1)}"


def filled(databases, kind, numbers):  # noqa: F811
    databases.fill(kind, list(enumerate(numbers)))
    return databases.source(kind)


@pytest.mark.parametrize("mesh", MESHES if ALL else MESHES[::2], ids=mesh_name)
def test_the_bits_of_a_file(databases, tmp_path, mesh):  # noqa: F811
    """Losses and state after two epochs of rows from SQLite, and of the same rows from a file of
    NumPy, cut by NumPy."""
    import sqlite3

    tokens = np.random.default_rng(0).integers(3, 96, (30, 8)).astype(np.uint16)
    np.save(tmp_path / "rows.npy", tokens)
    connection = sqlite3.connect(tmp_path / "rows.db")
    connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, tokens BLOB)")
    order = list(range(30))
    random.Random(1).shuffle(order)
    with connection:
        connection.executemany("INSERT INTO rows VALUES (?, ?)",
                               [(i, tokens[i].tobytes()) for i in order])

    def transform(row):
        ids = np.frombuffer(row["tokens"], np.uint16)
        return ids, ids

    from_database = Feed(SQLite(tmp_path / "rows.db", "SELECT * FROM rows"), batch=12, epochs=2,
                         transform=transform, page=7)
    twice = np.concatenate([np.load(tmp_path / "rows.npy")] * 2).astype(np.int64)
    from_file = [twice[i : i + 12] for i in range(0, 60, 12)]
    results = []
    for batches in (from_database, [(torch.from_numpy(b), torch.from_numpy(b)) for b in from_file]):
        example = torch.zeros(12, 8, dtype=torch.int64)
        step = cleave.compile(net(), (example, example), token_loss, mesh=mesh or None,
                              plan=["zero1"] if mesh else None,
                              optimizer=cleave.AdamW(lr=1e-2, max_grad_norm=1.0))
        results.append(([float(step(*batch)) for batch in batches], snapshot(step)))
    (one, state), (other, expected) = results
    assert len(one) == 5 and one == other and len(set(one)) == 5
    assert same_bits(state, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", MESHES if ALL else [MESHES[0], MESHES[3]], ids=mesh_name)
def test_each_row_is_trained_once_in_each_epoch(databases, monkeypatch, kind, mesh):  # noqa: F811
    """A parameter that counts how often each row came, on all ranks together: `-epochs` after so
    many, and after a few steps more, one less for each of their rows."""
    numbers = list(range(96))
    random.Random(2).shuffle(numbers)
    source = filled(databases, kind, numbers)
    monkeypatch.setattr(feed_script, "BATCH", 12)
    step = feed_script.counting_step(mesh=mesh or None)
    feed = Feed(source, batch=12, shuffle=10, page=17, transform=lambda row: row["x"])
    batches = iter(feed)
    for _ in range(16):
        step(next(batches))
    assert feed.used == 192
    assert step.state_dict()["table.weight"].flatten().tolist() == [-2.0] * 96
    last = torch.cat([next(batches) for _ in range(3)])
    for i in range(0, 36, 12):
        step(last[i : i + 12])
    found = step.state_dict()["table.weight"].flatten()
    assert (found == -2.0 - torch.bincount(last, minlength=96)).all() and len(set(last.tolist())) == 36


@pytest.mark.parametrize("after", [5, 13] if ALL else [5])
def test_killed_and_resumed(databases, tmp_path, after):  # noqa: F811
    """By SIGKILL, after a step that no checkpoint has: two epochs have every row twice."""
    filled(databases, "sqlite", list(range(96)))

    def start(steps):
        return subprocess.Popen([sys.executable, feed_script.__file__, str(tmp_path), str(steps)],
                                stdout=subprocess.PIPE, text=True)

    killed = start(48)
    for line in killed.stdout:
        if int(line) == after:
            killed.send_signal(signal.SIGKILL)
            break
    assert killed.wait() == -signal.SIGKILL
    saved = max(int(path.name[5:]) for path in (tmp_path / "run").glob("step-*")
                if path.name[5:].isdigit())
    assert saved < 48
    resumed = start(48)
    lines = [int(line) for line in resumed.stdout]
    assert resumed.wait() == 0 and lines == list(range(saved + 1, 49))
    step = feed_script.counting_step()
    step.load(tmp_path / "run")
    feed = feed_script.feed(tmp_path)
    feed.position = step.data_position
    assert (step.step, feed.used) == (48, 192)
    assert step.state_dict()["table.weight"].flatten().tolist() == [-2.0] * 96


#: Reads N rows of an SQLite file twice, one by one and in batches, and prints how many they were,
#: their sum, and the peak of the memory in KiB after each.
READER = """
import sys
from cleave.feed import Feed, SQLite
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if "VmHWM" in line)
path, batched = sys.argv[1], sys.argv[2] == "batches"
feed = Feed(SQLite(path, "SELECT id, x FROM rows"), batch=1000, epochs=1, shuffle=5000,
            transform=lambda row: row["x"])
if batched:
    import torch
    next(iter(feed))
    feed.position = 0
before, count, total = peak(), 0, 0
for part in feed if batched else feed.samples():
    count += len(part) if batched else 1
    total += int(part.sum()) if batched else part
print(count, total, peak(), peak() - before)
"""


@pytest.mark.parametrize("form", ["samples", "batches"])
def test_memory(tmp_path, form):
    """Reading 10 M rows takes less than 200 MiB, Python included; PyTorch, which batches need,
    takes more than that alone, and they add little to it. By default 1/50 of the rows."""
    import sqlite3

    rows = 10_000_000 if ALL else 200_000
    connection = sqlite3.connect(tmp_path / "rows.db")
    connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, x INTEGER)")
    with connection:
        connection.execute("WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n "
                           f"WHERE i < {rows - 1}) INSERT INTO rows SELECT i, i % 1000 FROM n")
    connection.close()
    out = subprocess.check_output([sys.executable, "-c", READER, str(tmp_path / "rows.db"), form],
                                  text=True)
    count, total, peak, growth = map(int, out.split())
    print(f"{form}: {count} rows, at most {peak / 1024:.1f} MiB, {growth / 1024:.1f} MiB of it to "
          "read")
    assert (count, total) == (rows, rows // 1000 * 499500)
    assert growth < 32 << 10
    assert form == "batches" or peak < (200 << 10)
