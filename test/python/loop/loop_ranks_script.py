# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A script whose ranks are processes that run the same loop; the last one stops it.

    loop_ranks_script.py FOLDER RESUME

Each process prints its rank, its steps, and how many callbacks of each kind it had.
"""

import pathlib
import sys

import torch

import cleave
from cleave.run import JSONL
from loop_runs import BATCH, Recorder, Rows, loader, small_step


class Stops(Recorder):
    """Stops the run in the last rank alone, after step 5, and in the next part after step 8."""

    def on_step(self, run, values):
        super().on_step(run, values)
        if run.step.rank == 1 and run.step.step in (5, 8):
            run.stop()


def main(folder, resume):
    folder = pathlib.Path(folder)
    step, recorder, rows = small_step({"dp": 2}), Stops(), Rows().rows[:BATCH]
    torch.manual_seed(3 if resume == "none" else 4)
    run = cleave.Run(step, loader(), eval_data=[(rows, rows)], eval_every=4, norms="parameter",
                     callbacks=[JSONL(folder / "log.jsonl"), recorder], folder=folder / "run", save_every=3,
                     save_minutes=1000, progress="lines" if resume == "none" else "none")
    run.fit(steps=20, resume=None if resume == "none" else resume)
    print("ranks:", step.rank, run.leads, step.step, recorder.events[-1], len(recorder.events), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
