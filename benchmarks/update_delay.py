"""Trains a small GPT with delayed updates beside the run without delay, on the text of this project.

For each delay the benchmark prints a JSON line: the loss at the end (the mean of the last steps)
and its ratio to the undelayed run's, the memory of a rank, and the time of a step. All runs begin
with the same weights, see the same data, and have the same learning rates.

With `--rate`, ranks are processes in a network of their own whose loopback is slowed to that rate
(`tc`, which needs root), and the time of a step there is printed too.
"""

import argparse
import json
import pathlib
import statistics

import harness
from compression import Run, smooth, write_model, write_text
from devices import log


class DelayedRun(Run):
    """One compiled step, whose updates lag by `delay` steps."""

    def __init__(self, options, delay, model, folder):
        self.options, self.folder, self.name = options, folder, str(delay)
        base = folder / f"update-delay-{delay}"
        self.artifact, self.log = f"{base}.so", f"{base}.jsonl"
        report = f"{base}.json"
        self.call([options.build / "bin" / "cleave-compile", model, "--mesh", f"dp={options.ranks}",
                   "--threads", 1, "--update-delay", delay, "-o", self.artifact,
                   "--report", report])
        self.arena = json.loads(pathlib.Path(report).read_text())["memory"]["arena"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=harness.ROOT / "build")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--window", type=int, default=50, help="steps that a loss is a mean of")
    parser.add_argument("--rate", help="of the slowed network, such as 1gbit")
    parser.add_argument("--timed", type=int, default=20, help="steps on the slowed network")
    parser.add_argument("--delay", type=int, action="append", help="measure this delay only")
    options = harness.parse(parser, layers=1, hidden=16, seq=16, batch=4, steps=20, window=5,
                            delay=[1])
    folder = harness.make_folder()
    model = folder / "compression.mlir"
    write_model(options, model)
    write_text(folder / "compression.bin")
    undelayed = None
    for delay in [0, *(options.delay or [1, 2, 4])]:
        run = DelayedRun(options, delay, model, folder)
        log(f"delay {delay}: {options.steps} steps")
        lines = run.train()
        loss = smooth(lines, options.window)[-1]
        undelayed = undelayed or loss
        facts = {"delay": delay, "loss": round(loss, 4), "loss_ratio": round(loss / undelayed, 4),
                 "arena_bytes": run.arena,
                 "ms": round(statistics.median(line["ms"] for line in lines), 2)}
        if options.rate:
            facts["slow_ms"] = round(run.throttled(), 2)
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
