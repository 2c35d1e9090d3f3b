# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Batches of each kind of data, and the position in it."""

import json
import random
import sqlite3

import numpy
import pytest
import torch

from cleave.feed import Feed, SQLite
from cleave.run import randomness
from cleave.run.batches import Batches, call_with
from loop_runs import Rows, loader


class Stateful:
    """A source with a state of its own, as torchdata's loaders have."""

    def __init__(self):
        self.at, self.order = 0, torch.arange(7)

    def __iter__(self):
        while self.at < 7:
            self.at += 1
            yield int(self.order[self.at - 1])
        self.at, self.order = 0, torch.roll(self.order, 1)

    def state_dict(self):
        return {"at": self.at, "order": self.order}

    def load_state_dict(self, state):
        self.at, self.order = state["at"], state["order"]


class Epochs(torch.utils.data.Sampler):
    """A sampler whose order follows from the number of the epoch."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(22, generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def __len__(self):
        return 22


def feed(folder):
    path = folder / "rows.db"
    if not path.exists():
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, x INTEGER)")
        db.executemany("INSERT INTO rows (x) VALUES (?)", [(i,) for i in range(22)])
        db.commit()
        db.close()
    return Feed(SQLite(path, "SELECT id, x FROM rows"), batch=4, shuffle=8, transform=lambda row: row["x"])


KINDS = {
    "list": lambda folder: list(range(5)),
    "loader": lambda folder: loader(),
    "loader with a generator": lambda folder: loader(generator=torch.Generator().manual_seed(9)),
    "loader with workers": lambda folder: loader(num_workers=1),
    "sampler of epochs": lambda folder: torch.utils.data.DataLoader(Rows(), batch_size=4, sampler=Epochs()),
    "function": lambda folder: lambda epoch: [epoch * 100 + random.randrange(10) for _ in range(4)],
    "feed": feed,
    "state": lambda folder: Stateful(),
    "iterator": lambda folder: iter(range(40)),
}


def plain(batch):
    return [x.tolist() for x in batch] if isinstance(batch, list) else (
        batch.tolist() if isinstance(batch, torch.Tensor) else batch)


def draws(batches, count):
    """Batches, with a number of each generator that a loop draws beside them."""
    return [(plain(batches.draw(None)), torch.rand(()).item(), random.random(), numpy.random.randn())
            for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [0, 1, 3, 5, 8])
def test_a_position_is_found_again(tmp_path, kind, before):
    """From each position the same batches follow, and the same random numbers."""
    torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
    batches = Batches(KINDS[kind](tmp_path))
    draws(batches, before)
    state = json.loads(json.dumps(batches.state()))
    expected = draws(batches, 9)
    torch.manual_seed(2), random.seed(2), numpy.random.seed(2)
    other = Batches(KINDS[kind](tmp_path))
    other.restore(state)
    assert draws(other, 9) == expected
    assert (other.epoch, other.used, other.total) == (batches.epoch, batches.used, before + 9)
    assert len({str(batch) for batch, *_ in expected}) > 3


def test_epochs_and_ends():
    batches = Batches([1, 2])
    assert [batches.draw(2) for _ in range(6)] == [1, 2, 1, 2, None, None]
    assert (batches.epoch, batches.total, batches.per_epoch) == (2, 4, 2)
    once = Batches(iter([1, 2]))
    assert [once.draw(None) for _ in range(3)] == [1, 2, None]


def test_what_does_not_fit():
    state = Batches([1, 2, 3]).state()
    with pytest.raises(ValueError, match="read again for each epoch, and this one has an iterator"):
        Batches(iter([1])).restore(state)
    longer = Batches([1, 2, 3])
    for _ in range(3):
        longer.draw(None)
    with pytest.raises(ValueError, match="2 batches in epoch 0, of which the run had used 3"):
        Batches([1, 2]).restore(longer.state())
    with pytest.raises(ValueError, match="1 generators of its own, and had 0"):
        randomness.restore(randomness.states(), [torch.Generator()])

    class Once:
        """Gives its batches to the first who asks, and nothing after."""

        def __init__(self):
            self.own = iter([1])

        def __iter__(self):
            return self.own

    again = Batches(Once())
    assert again.draw(None) == 1
    with pytest.raises(ValueError, match="no batches in epoch 1"):
        again.draw(None)


def test_a_batch_is_given_as_it_is_written():
    def f(*given, **named):
        return given, named
    x = torch.ones(2)
    assert call_with(f, (1, 2)) == call_with(f, [1, 2]) == ((1, 2), {})
    assert call_with(f, {"a": 1}) == ((), {"a": 1})
    assert call_with(f, x)[0][0] is x
