# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A script that trains by a run, for tests that kill it.

    loop_script.py FOLDER STEPS SECONDS

SECONDS is slept after each step; `ended` is printed at the end.
"""

import pathlib
import random
import sys
import time

import numpy
import torch

import cleave
from cleave.run import JSONL, Callback
from loop_runs import loader, small_step


class Slow(Callback):
    """Draws numbers of each generator, as callbacks may, and takes its time."""

    def __init__(self, seconds):
        self.seconds, self.drawn = seconds, []

    def on_step(self, run, values):
        self.drawn.append((torch.rand(()).item(), random.random(), numpy.random.rand(), numpy.random.randn()))
        print(run.step.step, flush=True)
        time.sleep(self.seconds)


def main(folder, steps, seconds):
    folder = pathlib.Path(folder)
    step = small_step({"dp": 2, "tp": 2}, seed=3)
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    slow = Slow(seconds)
    run = cleave.Run(step, loader(), callbacks=[JSONL(folder / "log.jsonl"), slow],
                     folder=folder / "checkpoints", save_every=3, keep=2)
    run.fit(steps=steps, resume="auto")
    print("ended", slow.drawn[-1], flush=True)
    return slow.drawn


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
