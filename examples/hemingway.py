# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""How many ranks? Two models of the logs of short runs say it (Hemingway, arXiv 1702.05865).

    python -m pip install -r examples/requirements.txt
    python examples/hemingway.py

- The *system* model is the seconds of a step with m ranks and a batch of a size:
  `f(m) = a + b size/m + c log(m) + d m`, none of them negative: least squares of that kind.
- The *convergence* model is the loss after i steps with m ranks, whose batch grows with m:
  `log(loss - floor)` is a sum of few terms such as log(i), sqrt(i), i/m, chosen by the Lasso with
  cross-validation.

Together, `loss(t / f(m), m)` is the loss after t seconds: it gives the number of ranks that comes to
a loss first, and the one with the least loss in a given time. The logs are those of
`cleave-run --log`, of data-parallel runs that this script makes.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import numpy as np

try:
    from scipy.optimize import nnls
    from sklearn.linear_model import LassoCV
    from sklearn.model_selection import GroupKFold
    from sklearn.preprocessing import StandardScaler
except ImportError as error:
    raise SystemExit(f"error: {error}; install what this example needs: "
                     "python -m pip install -r examples/requirements.txt") from None

from picture import chart

ROOT = pathlib.Path(__file__).resolve().parent.parent


class System:
    """Seconds of a step. Errors are weighed by the seconds, so that short steps count as much.

    Args:
        ranks, sizes, seconds: of each run: ranks, samples of a batch, and time of a step.
    """

    def __init__(self, ranks, sizes, seconds):
        seconds = np.asarray(seconds, float)
        terms = self.terms(ranks, sizes)
        self.weights, _ = nnls(terms / seconds[:, None], np.ones(len(seconds)))

    @staticmethod
    def terms(ranks, sizes):
        ranks, sizes = np.broadcast_arrays(np.asarray(ranks, float), np.asarray(sizes, float))
        return np.stack([np.ones_like(ranks), sizes / ranks, np.log(ranks), ranks], -1)

    def __call__(self, ranks, size):
        return float(self.terms(ranks, size) @ self.weights)


class Convergence:
    """The loss after a number of steps.

    Args:
        runs: by the number of ranks, the losses of steps 1, 2, ...
        floor: a loss that is not reached, in the scale of the losses.
    """

    def __init__(self, runs, floor):
        self.floor = floor
        rows = [(i, m, loss) for m, losses in runs.items() for i, loss in enumerate(losses, 1) if loss > floor]
        steps, ranks, losses = map(np.asarray, zip(*rows))
        self.scaler = StandardScaler()
        terms = self.scaler.fit_transform(self.terms(steps, ranks))
        # Whole runs are left out, since it is to predict runs that were not made.
        folds = list(GroupKFold(min(5, len(runs))).split(terms, groups=ranks)) if len(runs) > 1 else None
        self.lasso = LassoCV(alphas=np.logspace(-4, 0, 30), cv=folds, max_iter=50_000)
        self.lasso.fit(terms, np.log(losses - floor))

    @staticmethod
    def terms(steps, ranks):
        i, m = np.broadcast_arrays(np.asarray(steps, float), np.asarray(ranks, float))
        return np.stack([i, np.sqrt(i), np.log(i), i / m, i / m ** 2, np.log(i) / m, 1 / m, np.log(m),
                         np.log(m) * np.log(i)], -1)

    def __call__(self, steps, ranks):
        """The loss; `steps` may be an array."""
        terms = self.terms(steps, ranks)
        shape = terms.shape[:-1]
        logs = self.lasso.predict(self.scaler.transform(terms.reshape(-1, terms.shape[-1])))
        return self.floor + np.exp(logs).reshape(shape)


def time_to(goal, seconds, loss, ranks, most=10_000):
    """Seconds until a loss of `goal`, infinite if it takes more than `most` steps.

    Args:
        seconds: of a step; `loss`: of steps (an array) and ranks.
    """
    steps = np.unique(np.round(np.logspace(0, np.log10(most), 4000)))
    below = np.asarray(loss(steps, ranks)) <= goal
    return float(steps[below.argmax()]) * seconds if below.any() else np.inf


def loss_within(budget, seconds, loss, ranks):
    """The loss after `budget` seconds, infinite if no step ends in them."""
    steps = budget // seconds
    return float(loss(np.array([steps]), ranks)[0]) if steps >= 1 else np.inf


def choose(cost, candidates):
    """The candidate of least cost; of equal ones the first."""
    return min(candidates, key=cost)


# ---------------------------------------------------------------------------------------------
# Logs
# ---------------------------------------------------------------------------------------------


def read_log(path):
    """Seconds of a step (the median without the first fifth) and the losses of all steps."""
    lines = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    lines = [line for line in lines if "loss" in line]
    if not lines:
        raise ValueError(f"{path} has no step; it is to be a log of cleave-run --log")
    settled = lines[len(lines) // 5:]
    return statistics.median(line["ms"] for line in settled) / 1e3, [line["loss"] for line in lines]


def tool(name):
    build = pathlib.Path(os.environ.get("CLEAVE_BUILD_DIR", ROOT / "build"))
    return str(build / "bin" / name)


def compile_run(work, ranks, options):
    """Compiles a step of a small GPT over `ranks` ranks, each with as many samples, and writes
    tokens of this repository's text; returns the command that trains it, without a log."""
    work.mkdir(parents=True, exist_ok=True)
    text = "".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    np.save(work / "tokens.npy", np.frombuffer(text.encode(), np.uint8).astype(np.uint16))
    name = work / f"dp-{ranks}"
    subprocess.run([sys.executable, "-m", "cleave.models", "gpt", f"--hidden={options.hidden}", "--heads=4",
                    "--layers=2", f"--seq={options.sequence}", "--vocab=256", f"--batch={ranks * options.samples}",
                    f"--weights={work / 'start.safetensors'}", f"-o={name}.mlir"], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run([tool("cleave-compile"), f"{name}.mlir", f"--mesh=dp={ranks}", f"--threads={ranks}",
                    f"-o={name}.so"], check=True)
    return [tool("cleave-run"), f"{name}.so", f"--weights={work / 'start.safetensors'}",
            f"--data={work / 'tokens.npy'}", "--lr=3e-3", "--warmup=5", f"--steps={options.steps}",
            f"--threads={ranks}", "--progress=none"]


def make_logs(work, all_ranks, options):
    """Trains over each number of ranks, several times, by turns: what else the machine does can only
    slow a run down. Returns, by ranks, the least seconds of a step, and the losses."""
    commands = {m: compile_run(work, m, options) for m in all_ranks}
    found = {}
    for repeat in range(options.repeat):
        for m, command in commands.items():
            log = work / f"dp-{m}-{repeat}.jsonl"
            subprocess.run([*command, f"--log={log}"], check=True, stdout=subprocess.DEVNULL)
            seconds, losses = read_log(log)
            found[m] = min(seconds, found.get(m, (seconds,))[0]), losses
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 6, 8], help="runs that are modelled")
    parser.add_argument("--held-out", type=int, default=4, help="a run that is predicted")
    parser.add_argument("--samples", type=int, default=4, help="of each rank")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each number of ranks")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("out/hemingway"))
    parser.add_argument("--smoke", action="store_true", help="only try it, small and short")
    if parser.parse_known_args(arguments)[0].smoke:
        parser.set_defaults(ranks=[1, 2], held_out=4, steps=12, repeat=1, hidden=16, sequence=16)
    options = parser.parse_args(arguments)
    logs = make_logs(options.work, [*options.ranks, options.held_out], options)
    return report(logs, options)


def report(logs, options):
    """Models the logs of `options.ranks`; prints what they say of the one that is held out."""
    known = {m: logs[m] for m in options.ranks}
    system = System(list(known), [m * options.samples for m in known], [s for s, _ in known.values()])
    lowest = min(min(losses) for _, losses in known.values())
    convergence = Convergence({m: losses for m, (_, losses) in known.items()}, 0.9 * lowest)
    print("f(m) = {:.2e} + {:.2e} size/m + {:.2e} log(m) + {:.2e} m".format(*system.weights))
    for m, (seconds, _) in sorted(logs.items()):
        size = m * options.samples
        print(f"{m:3} ranks: {1e3 * seconds:8.2f} ms a step, {size * options.sequence / seconds:9.0f} tokens/s; "
              f"model {1e3 * system(m, size):8.2f} ms, {system(m, size) / seconds - 1:+.1%}"
              + (" (held out)" if m not in known else ""))
    steps = np.arange(1, len(logs[options.held_out][1]) + 1)
    held = logs[options.held_out][1]
    own = convergence(steps, options.held_out)
    tail = len(steps) // 2
    print(f"loss of the run held out: off by {np.mean(np.abs(own / held - 1)[tail:]):.1%} in its second half")
    goal, budget = 1.1 * lowest, 0.5 * len(steps) * logs[options.held_out][0]

    def seconds(m):
        return system(m, m * options.samples)

    candidates = sorted(logs)
    first = choose(lambda m: time_to(goal, seconds(m), convergence, m, 4 * len(steps)), candidates)
    best = choose(lambda m: loss_within(budget, seconds(m), convergence, m), candidates)
    print(f"first at a loss of {goal:.3f}: {first} ranks; least loss after {budget:.1f} s: {best} ranks")
    every = max(1, len(steps) // 40)
    chart(options.work / "hemingway.svg", f"The loss with {options.held_out} ranks, which no model has seen",
          "seconds", "loss", {
              "measured": [(logs[options.held_out][0] * i, held[i - 1]) for i in steps[::every]],
              "predicted": [(seconds(options.held_out) * i, own[i - 1]) for i in steps[::every]]},
          points=("measured",))
    return system, convergence, logs


if __name__ == "__main__":
    main()
