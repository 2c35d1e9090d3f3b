# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A training script that reads its rows from an SQLite file, for tests that kill it.

    feed_script.py FOLDER STEPS
"""

import pathlib
import sys
import time

import torch

import cleave
from cleave.feed import Feed, SQLite
from cleave.compiler.entrance import grouped

ROWS, BATCH, LENGTH = 96, 4, 2


class Counts(torch.nn.Module):
    """A number for each row; trained by SGD at rate 1, it falls by 1 whenever the row comes."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(ROWS, 1)
        torch.nn.init.zeros_(self.table.weight)

    def forward(self, ids):
        return self.table(ids).sum()


def counting_step(**settings):
    ids = torch.zeros(BATCH, dtype=torch.int64)
    return cleave.compile(Counts(), (ids,), optimizer=cleave.SGD(lr=1.0),
                          **grouped(check_finite=False, **settings))


def feed(folder, **settings):
    return Feed(SQLite(pathlib.Path(folder) / "rows.db", "SELECT id, x FROM rows"), batch=BATCH,
                shuffle=10, transform=lambda row: row["x"], **settings)


def main(folder, steps):
    folder = pathlib.Path(folder)
    step, rows = counting_step(), feed(folder)
    if (folder / "run").exists():
        step.load(folder / "run")
        rows.position = step.data_position
    for batch in rows:
        if step.step == steps:
            return
        step(batch)
        step.data_position = rows.position
        if step.step % 3 == 0:
            step.save(folder / "run" / f"step-{step.step}")
        print(step.step, flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
