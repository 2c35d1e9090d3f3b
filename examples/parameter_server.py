# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""An asynchronous parameter server: workers do not wait for each other.

    python examples/parameter_server.py --workers 4

A worker pulls the weights, computes a gradient, and pushes it; the server applies what comes when it
comes, and answers with the weights: `w[t+1] = w[t] - rate * g(w[t - delay])`. The delay is how many updates of others came
between. With `--turns` workers push in turns, and it is always the number of workers less one.
Delay costs stability: on `a/2 w^2` the fixed delay d is stable only for
`rate * a < 2 sin(pi / (4 d + 2))`.
"""

import argparse
import json
import pathlib
import threading

import numpy as np

from asynchronous import gradient, held_out, start
from launch import Program
from picture import chart


class Server:
    """Holds the weights and the log of updates.

    Args:
        turns: the number of workers, if they push in turns; 0: as they come.
    """

    def __init__(self, weights, rate, turns, updates, path, launcher):
        self.weights, self.rate, self.turns, self.updates = weights, rate, turns, updates
        self.path, self.launcher = path, launcher
        self.log, self.moved, self.begun = [], 0, 0
        self.changed = threading.Condition()

    def pull(self):
        """The number of updates that the weights have, and the weights: how a worker begins."""
        with self.changed:
            self.begun += 1
            self.changed.notify_all()
            return self.current()

    def current(self):
        self.moved += self.weights.nbytes
        return len(self.log), self.weights

    def push(self, worker, step, read, slope):
        """Applies the gradient `slope`, of weights that had `read` updates, and returns what `pull`
        would, with this one; None once there were enough updates."""
        with self.changed:
            self.changed.wait_for(lambda: self.full() or not self.turns or (
                self.begun == self.turns and len(self.log) % self.turns == worker))
            if self.full():
                return None
            self.moved += slope.nbytes
            self.weights = self.weights - self.rate * slope
            self.log.append({"worker": worker, "step": step, "read": read})
            self.changed.notify_all()
            if self.full():
                np.save(self.path / "weights.npy", self.weights)
                (self.path / "log.json").write_text(json.dumps({"log": self.log, "moved": self.moved}))
                self.launcher.stop()
                return None
            return self.current()

    def full(self):
        return len(self.log) >= self.updates


class Worker:
    def __init__(self, server, index, slope=gradient):
        self.server, self.index, self.slope = server, index, slope

    def run(self):
        step, pulled = 0, self.server.pull()
        while pulled:
            read, weights = pulled
            pulled = self.server.push(self.index, step, read, self.slope(weights, self.index, step))
            step += 1


def train(nodes, workers, updates, rate, turns, path, weights=None, slope=gradient):
    """Runs server and workers; returns the last weights and the log."""
    path = pathlib.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    program = Program()
    server = program.add("server", Server, start() if weights is None else weights, rate,
                         workers if turns else 0, updates, path, program.launcher)
    for index in range(workers):
        program.add(f"worker {index}", Worker, server, index, slope)
    program.launch(nodes).wait(timeout=300)
    return np.load(path / "weights.npy"), json.loads((path / "log.json").read_text())


def recurrence(log, rate, weights, slope=gradient):
    """All weights from the first to the last, of one process that reads the log."""
    history = [weights]
    for entry in log:
        own = slope(history[entry["read"]], entry["worker"], entry["step"])
        history.append(history[-1] - rate * own)
    return history


def turns(workers, updates):
    """The log of workers that push in turns: each reads what it has just written."""
    return [{"worker": t % workers, "step": t // workers, "read": max(0, t - workers + 1)}
            for t in range(updates)]


def stability_limit(delay, steps=4000):
    """The largest rate at which `w[t+1] = w[t] - rate * w[t - delay]` does not grow, by bisection."""
    def grows(rate):
        values = [1.0] * (delay + 1)
        for _ in range(steps):
            values.append(values[-1] - rate * values[-1 - delay])
            if abs(values[-1]) > 1e6:
                return True
        return max(map(abs, values[-delay - 2:])) > 2.0

    low, high = 0.0, 3.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if grows(middle) else (middle, high)
    return low


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", choices=["threads", "processes", "ray"], default="processes")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--delays", type=int, default=9, help="fixed delays whose limits are searched for")
    parser.add_argument("--turns", action="store_true", help="workers push in turns: a fixed delay")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("out/parameter-server"))
    parser.add_argument("--smoke", action="store_true", help="only try it, small and short")
    if parser.parse_known_args(arguments)[0].smoke:
        parser.set_defaults(workers=2, updates=20, delays=2)
    options = parser.parse_args(arguments)
    weights, kept = train(options.nodes, options.workers, options.updates, options.rate, options.turns,
                          options.work)
    log = kept["log"]
    delays = [t - entry["read"] for t, entry in enumerate(log)]
    history = recurrence(log, options.rate, start())
    print(f"{len(log)} updates of {options.workers} workers; delays: mean {np.mean(delays):.2f}, "
          f"largest {max(delays)}")
    print(f"equal to the recurrence of the log, bit for bit: {np.array_equal(weights, history[-1])}")
    print(f"bytes through the server: {kept['moved']:,} ({kept['moved'] / len(log):.0f} for each update)")
    print(f"loss on held-out samples: {held_out(weights):.4f}")
    for workers in (1, 4, 16):
        history = recurrence(turns(workers, options.updates), options.rate, start())
        print(f"with a fixed delay of {workers - 1}: {held_out(history[-1]):.4f}")
    delays = range(options.delays)
    found = [(delay, stability_limit(delay)) for delay in delays]
    exact = [(delay, 2 * np.sin(np.pi / (4 * delay + 2))) for delay in delays]
    for (delay, by_bisection), (_, limit) in zip(found, exact):
        print(f"delay {delay}: stable up to rate * a = {by_bisection:.3f}; 2 sin(pi / {4 * delay + 2}) = {limit:.3f}")
    chart(options.work / "parameter_server.svg", "Old gradients: the largest rate that is stable on a/2 w^2",
          "delay in updates", "rate * a", {"2 sin(pi / (4 d + 2))": exact, "by bisection": found},
          points=("by bisection",))
    return weights, log


if __name__ == "__main__":
    main()
