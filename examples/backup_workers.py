# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Backup workers: of N + b workers, the first N gradients of a step make its update.

    python examples/backup_workers.py --workers 4 --backup 1

The server takes the mean of the first N gradients of the current step; later ones carry the number of
an old step and are dropped. The update is that of synchronous training on the samples of those N. A
step takes as long as the N-th fastest worker: for exponential times `H(N+b) - H(b)` of the mean
instead of `H(N)`, with H(n) = 1 + 1/2 + ... + 1/n, if all of them begin it at once. Here one that is
late first ends what it does, so that the gain is smaller. It helps against slow workers, not lost ones.
"""

import argparse
import heapq
import json
import pathlib
import threading
import time

import numpy as np

from asynchronous import gradient, held_out, start
from launch import Program
from picture import chart


class Server:
    """Holds the weights of the current step and the gradients of it that have come."""

    def __init__(self, weights, rate, wanted, steps, path, launcher):
        self.weights, self.rate, self.wanted, self.steps = weights, rate, wanted, steps
        self.path, self.launcher = path, launcher
        self.step, self.come = 0, {}
        self.used, self.dropped, self.times = [], [], [time.monotonic()]
        self.changed = threading.Condition()

    def pull(self, last):
        """The current step and its weights, once the step is another one than `last`."""
        with self.changed:
            self.changed.wait_for(lambda: self.step != last)
            return self.step, self.weights

    def push(self, worker, step, slope):
        with self.changed:
            if step != self.step:
                self.dropped.append([worker, step])
                return
            self.come[worker] = slope
            if len(self.come) < self.wanted:
                return
            # Summed by worker, so that the order in which they came leaves no trace.
            mean = sum(self.come[one] for one in sorted(self.come)) / self.wanted
            self.weights = self.weights - self.rate * mean
            self.used.append(sorted(self.come))
            self.times.append(time.monotonic())
            self.step, self.come = self.step + 1, {}
            self.changed.notify_all()
            if self.step == self.steps:
                np.save(self.path / "weights.npy", self.weights)
                (self.path / "log.json").write_text(json.dumps({
                    "used": self.used, "dropped": self.dropped, "times": self.times}))
                self.launcher.stop()


class Worker:
    """Takes `seconds(index, step)` for a step, in addition to its gradient."""

    def __init__(self, server, index, seconds):
        self.server, self.index, self.seconds = server, index, seconds

    def run(self):
        step = -1
        while True:
            step, weights = self.server.pull(step)
            time.sleep(self.seconds(self.index, step))
            self.server.push(self.index, step, gradient(weights, self.index, step))


class Exponential:
    """Seconds with a mean, exponentially distributed."""

    def __init__(self, mean):
        self.mean = mean

    def __call__(self, worker, step):
        return self.mean * np.random.default_rng((3, worker, step)).exponential()


def train(nodes, workers, backup, steps, rate, seconds, path):
    """Runs the server and `workers + backup` workers; returns the last weights and the log."""
    path = pathlib.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    program = Program()
    server = program.add("server", Server, start(), rate, workers, steps, path, program.launcher)
    for index in range(workers + backup):
        program.add(f"worker {index}", Worker, server, index, seconds)
    program.launch(nodes).wait(timeout=300)
    return np.load(path / "weights.npy"), json.loads((path / "log.json").read_text())


def recurrence(used, rate):
    """The last weights of synchronous training on the samples of the workers `used[step]`."""
    weights = start()
    for step, workers in enumerate(used):
        weights = weights - rate * (sum(gradient(weights, one, step) for one in workers) / len(workers))
    return weights


def step_times(workers, backup, steps, seconds):
    """When each step ends if nothing but `seconds` takes time, and a worker that is late for a step
    ends what it does before it begins the current one."""
    busy = [(seconds(one, 0), one, 0) for one in range(workers + backup)]
    heapq.heapify(busy)
    ends, waiting = [], []
    while len(ends) < steps:
        now, one, step = heapq.heappop(busy)
        free = [one]
        if step == len(ends):                       # not late: it waits for the end of the step
            waiting.append(one)
            free = waiting if len(waiting) == workers else []
        if len(waiting) == workers:
            ends.append(now)
            waiting = []
        for other in free:
            heapq.heappush(busy, (now + seconds(other, len(ends)), other, len(ends)))
    return ends


def harmonic(n):
    return sum(1 / i for i in range(1, n + 1))


def simulate(workers, backup, draws, generator):
    """The mean time of a step over that without backup, by order statistics of draws of
    exponential times."""
    times = generator.exponential(size=(draws, workers + backup))
    step = np.partition(times, workers - 1, axis=1)[:, workers - 1]
    return step.mean() / generator.exponential(size=(draws, workers)).max(1).mean()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", choices=["threads", "processes", "ray"], default="processes")
    parser.add_argument("--workers", type=int, default=4, help="gradients of which an update is made")
    parser.add_argument("--backup", type=int, default=1, help="workers beyond those")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--mean", type=float, default=0.03, help="seconds that a step takes")
    parser.add_argument("--draws", type=int, default=20_000, help="steps that are simulated")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("out/backup-workers"))
    parser.add_argument("--smoke", action="store_true", help="only try it, small and short")
    if parser.parse_known_args(arguments)[0].smoke:
        parser.set_defaults(workers=2, steps=6, mean=0.002, draws=500)
    options = parser.parse_args(arguments)
    n = options.workers
    for backup in sorted({0, options.backup}):
        weights, log = train(options.nodes, n, backup, options.steps, options.rate,
                             Exponential(options.mean), options.work)
        took = (log["times"][-1] - log["times"][1]) / (options.steps - 1) / options.mean
        ends = step_times(n, backup, options.steps, Exponential(options.mean))
        model = (ends[-1] - ends[0]) / (options.steps - 1) / options.mean
        same = np.array_equal(weights, recurrence(log["used"], options.rate))
        print(f"{n}+{backup} workers: a step takes {took:.2f} of a worker's mean time "
              f"({model:.2f} by a simulation of it, {harmonic(n + backup) - harmonic(backup):.2f} if all "
              f"began each step at once), loss "
              f"{held_out(weights):.4f}, {len(log['dropped'])} gradients dropped; equal to the "
              f"recurrence, bit for bit: {same}")
    generator = np.random.default_rng(0)
    backups = [0, 1, 2, 4, 8, 16, 32]
    simulated = [simulate(96, b, options.draws, generator) for b in backups]
    exact = [(harmonic(96 + b) - harmonic(b)) / harmonic(96) for b in range(33)]
    print(f"96+4 workers: {simulated[3]:.3f} of the time of 96 (simulated), {exact[4]:.3f} (closed form)")
    chart(options.work / "backup_workers.svg", "The time of a step of 96 workers and some more",
          "backup workers", "relative time",
          {"(H(96+b) - H(b)) / H(96)": list(enumerate(exact)),
           "simulated": list(zip(backups, simulated))}, points=("simulated",))
    return simulated


if __name__ == "__main__":
    main()
