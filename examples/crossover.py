# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Two jobs that share a device by turns (CrossoverScheduler, arXiv 2103.07974).

    python examples/crossover.py

A job computes a step, and then synchronises its parameters with replicas elsewhere before the next
one. While one job synchronises, the other computes. With C seconds of computing and M of
communication, two equal jobs on one device and one link take `2 max(C, M)` for a step of both
instead of `2 (C + M)`: a speed-up of `(C + M) / max(C, M)`, at most 2. What a job computes does
not change.

The steps are Cleave's, and run as they are; the link is a stand-in: it copies the parameters and
takes as long as a link of the given rate would.
"""

import argparse
import contextlib
import pathlib
import statistics
import threading
import time

import torch

import cleave
from picture import chart


class Turns:
    """Something that one job has at a time, each in its turn."""

    def __init__(self, jobs):
        self.left, self.changed = list(range(jobs)), threading.Condition()

    @contextlib.contextmanager
    def turn(self, job):
        """Waits for the job's turn; the next one begins at the end of the block."""
        with self.changed:
            self.changed.wait_for(lambda: self.left[0] == job)
        try:
            yield
        finally:
            with self.changed:
                self.left.append(self.left.pop(0))
                self.changed.notify_all()

    def leave(self, job):
        """The job takes no more turns."""
        with self.changed:
            self.left.remove(job)
            self.changed.notify_all()


class Job:
    """A training step of Cleave, batches for it and the replica that follows it."""

    def __init__(self, seed, width, samples):
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.samples, self.replica = samples, {}
        model = torch.nn.Sequential(torch.nn.Linear(32, width), torch.nn.GELU(),
                                    torch.nn.Linear(width, width), torch.nn.GELU(),
                                    torch.nn.Linear(width, 4))
        self.rule = torch.randn(32, 4, generator=self.generator)
        self.step = cleave.compile(model, self.batch(), loss_fn=torch.nn.functional.cross_entropy,
                                   optimizer=cleave.AdamW(lr=1e-3), target=cleave.Target(threads=1))
        self.losses = []

    def batch(self):
        x = torch.randn(self.samples, 32, generator=self.generator)
        return x, (x @ self.rule).argmax(1)

    def compute(self):
        self.losses.append(float(self.step(*self.batch())))

    def synchronise(self, seconds):
        """Sends the parameters over a link that takes `seconds` for them."""
        end = time.monotonic() + seconds
        self.replica = {name: value.clone() for name, value in self.step.state_dict().items()}
        time.sleep(max(0.0, end - time.monotonic()))


def run(jobs, steps, seconds, together):
    """Runs all jobs, by turns or one after another; returns the seconds that it took."""
    begin = time.monotonic()
    if not together:
        for job in jobs:
            for _ in range(steps):
                job.compute()
                job.synchronise(seconds)
        return time.monotonic() - begin
    device, link = Turns(len(jobs)), Turns(len(jobs))

    def live(i):
        try:
            for _ in range(steps):
                with device.turn(i):
                    jobs[i].compute()
                with link.turn(i):
                    jobs[i].synchronise(seconds)
        finally:
            device.leave(i)
            link.leave(i)

    threads = [threading.Thread(target=live, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - begin


def computing(job, steps):
    """The median of the seconds in which a job alone computes a step."""
    took = []
    for _ in range(steps):
        begin = time.monotonic()
        job.compute()
        took.append(time.monotonic() - begin)
    return statistics.median(took)


def simulate(compute, communicate, steps):
    """When the last job ends each of its steps, if jobs take turns on one device and one link.

    Args:
        compute, communicate: seconds of each job's step.
    """
    device = link = 0.0
    ends = [0.0] * len(compute)
    done = []
    for _ in range(steps):
        for i, (c, m) in enumerate(zip(compute, communicate)):
            device = max(device, ends[i]) + c
            link = max(link, device) + m
            ends[i] = link
        done.append(max(ends))
    return done


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5, help="measurements, of which the median counts")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("out/crossover"))
    parser.add_argument("--smoke", action="store_true", help="only try it, small and short")
    if parser.parse_known_args(arguments)[0].smoke:
        parser.set_defaults(steps=4, rounds=1, width=32, samples=32)
    options = parser.parse_args(arguments)

    alone = Job(0, options.width, options.samples)
    apart, together = ([Job(seed, options.width, options.samples) for seed in (1, 2)] for _ in range(2))
    measured = []
    for ratio in (0.2, 0.5, 1.0, 2.0):
        faster = []
        for _ in range(options.rounds):
            # Measured each time, so that what else the machine does meets all three alike.
            seconds = ratio * computing(alone, options.steps)
            faster.append(run(apart, options.steps, seconds, False) / run(together, options.steps, seconds, True))
        same = [job.losses for job in apart] == [job.losses for job in together]
        model = 2 * options.steps * (1 + ratio) / simulate([1.0] * 2, [ratio] * 2, options.steps)[-1]
        measured.append((ratio, statistics.median(faster)))
        print(f"M = {ratio:g} C: {measured[-1][1]:.2f}x as fast by turns, simulated {model:.2f}x; losses equal, bit "
              f"for bit: {same}")
    expected = [(r / 50, (1 + r / 50) / max(1, r / 50)) for r in range(121)]
    chart(options.work / "crossover.svg", "Two jobs by turns on one device",
          "communication / computing of a step (M / C)", "speed-up",
          {"(C + M) / max(C, M)": expected, "measured": measured}, points=("measured",))
    return measured


if __name__ == "__main__":
    main()
