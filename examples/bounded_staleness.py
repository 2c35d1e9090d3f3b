# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Bounded staleness (stale synchronous parallel): fast workers may be a few steps ahead.

    python examples/bounded_staleness.py --workers 4 --bound 2

A worker may begin step c only when no worker has finished fewer than `c - bound` steps. It then reads
weights that have all updates of steps up to `c - bound - 1`, and all of its own. This server shows it
these and no others, so that a run has the same bits however fast workers are; with bound 0 it is
synchronous training. What a larger bound gains is time, where workers are slow by turns.
"""

import argparse
import json
import pathlib
import threading
import time

import numpy as np

from asynchronous import gradient, held_out, start
from launch import Program
from picture import chart


class Server:
    """Holds each worker's update of each step, and their sum up to a step."""

    def __init__(self, weights, rate, bound, workers, steps, path, launcher):
        self.rate, self.bound, self.steps = rate, bound, steps
        self.path, self.launcher = path, launcher
        self.updates = [[] for _ in range(workers)]
        #: Weights with all updates of the first n steps.
        self.complete, self.reads = [weights], []
        self.begin, self.times = time.monotonic(), []
        self.changed = threading.Condition()

    def pull(self, worker, step):
        """The weights for a worker's step; waits until the slowest worker allows it."""
        with self.changed:
            first = max(0, step - self.bound)       # all updates of steps before it are seen
            self.changed.wait_for(lambda: len(self.complete) > first)
            self.reads.append([worker, step, min(map(len, self.updates))])
            weights = self.complete[first]
            for own in self.updates[worker][first:]:
                weights = weights - self.rate * own
            return weights

    def push(self, worker, slope):
        with self.changed:
            self.updates[worker].append(slope)
            while min(map(len, self.updates)) >= len(self.complete):
                step, weights = len(self.complete) - 1, self.complete[-1]
                for own in self.updates:
                    weights = weights - self.rate * own[step]
                self.complete.append(weights)
                self.times.append(time.monotonic() - self.begin)
            self.changed.notify_all()
            if len(self.complete) > self.steps:
                np.save(self.path / "weights.npy", self.complete)
                (self.path / "log.json").write_text(json.dumps({"reads": self.reads, "times": self.times}))
                self.launcher.stop()


class Worker:
    """Takes `seconds(index, step)` for a step, in addition to its gradient."""

    def __init__(self, server, index, steps, mean):
        self.server, self.index, self.steps, self.mean = server, index, steps, mean

    def run(self):
        for step in range(self.steps):
            weights = self.server.pull(self.index, step)
            time.sleep(seconds(self.index, step, self.mean))
            self.server.push(self.index, gradient(weights, self.index, step))


def seconds(worker, step, mean):
    """Of a step: exponentially distributed, so that each worker is slow now and then."""
    return mean * np.random.default_rng((2, worker, step)).exponential()


def train(nodes, workers, bound, steps, rate, mean, path):
    """Runs server and workers; returns the weights after each step and the log."""
    path = pathlib.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    program = Program()
    server = program.add("server", Server, start(), rate, bound, workers, steps, path, program.launcher)
    for index in range(workers):
        program.add(f"worker {index}", Worker, server, index, steps, mean)
    program.launch(nodes).wait(timeout=300)
    return np.load(path / "weights.npy"), json.loads((path / "log.json").read_text())


def recurrence(workers, bound, steps, rate):
    """The weights after each step, by one process: each update is of
    `w0 - rate (all updates of steps before c - bound, and own ones from there to c - 1)`."""
    complete, updates = [start()], [[] for _ in range(workers)]
    for step in range(steps):
        for worker in range(workers):
            first = max(0, step - bound)
            seen = complete[first]
            for own in updates[worker][first:]:
                seen = seen - rate * own
            updates[worker].append(gradient(seen, worker, step))
        weights = complete[-1]
        for own in updates:
            weights = weights - rate * own[step]
        complete.append(weights)
    return complete


def finish_times(workers, bound, steps, mean):
    """When each step is complete if workers take `seconds` and nothing else takes time:
    `t[w][c] = max(t[w][c-1], max over all workers of t[.][c-bound-1]) + seconds`."""
    ends = np.zeros((steps + 1, workers))
    for step in range(steps):
        first = step - bound
        ready = np.maximum(ends[step], ends[first].max() if first > 0 else 0.0)
        ends[step + 1] = ready + [seconds(worker, step, mean) for worker in range(workers)]
    return ends[1:].max(1)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", choices=["threads", "processes", "ray"], default="processes")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--bound", type=int, default=2, help="steps that a worker may be ahead")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--mean", type=float, default=0.02, help="seconds that a step takes")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("out/bounded-staleness"))
    parser.add_argument("--smoke", action="store_true", help="only try it, small and short")
    if parser.parse_known_args(arguments)[0].smoke:
        parser.set_defaults(workers=2, steps=8, mean=0.002)
    options = parser.parse_args(arguments)
    series = {}
    for bound in sorted({0, options.bound}):
        weights, log = train(options.nodes, options.workers, bound, options.steps, options.rate,
                             options.mean, options.work)
        own = recurrence(options.workers, bound, options.steps, options.rate)
        model = finish_times(options.workers, bound, options.steps, options.mean)[-1]
        print(f"bound {bound}: {log['times'][-1] - log['times'][0]:.2f} s from step 1 on ({model:.2f} s for all "
              f"by the recurrence of times), loss {held_out(weights[-1]):.4f}; equal to the recurrence, "
              f"bit for bit: {np.array_equal(weights, own)}")
        series[f"bound {bound}"] = [(end, held_out(one)) for end, one in zip(log["times"], weights[1:])]
    chart(options.work / "bounded_staleness.svg", "Workers that may be ahead: loss on held-out samples",
          "seconds since the server began", "loss", series, log="y")
    return series


if __name__ == "__main__":
    main()
