"""Trains a small GPT with compressed gradients beside the dense run, on the text of this project.

For each compressor the benchmark prints a JSON line: the loss at the end (the mean of the last
steps) and its ratio to the dense run's, the bytes that a rank sends in a step, the memory of a
rank, and the time of a step at full speed. All runs begin with the same weights and see the same
data.

With `--rate`, ranks are processes in a network of their own whose loopback is slowed to that rate
(`tc`, which needs root), and a second table has the time of a step there, and the time until the
loss (a mean over as many steps) is first that of the dense run's end, times 1 + `--margin`.

With `--stages`, ranks are stages of a pipeline instead, which send each other a share of the elements
of each row (`--compress-stages`); `--stages 0.0333 --stages 0.1` measures two shares.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import harness
from devices import log

COMPRESSORS = ["powersgd,rank=4", "topk,density=0.05", "topk,density=0.01",
               "threshold,keep=0.01,every=100", "int8", "1bit"]


def write_model(options, path):
    sizes = ["--layers", options.layers, "--hidden", options.hidden, "--heads", 4, "--vocab", 128,
             "--seq", options.seq, "--batch", options.batch, "--no-logits"]
    subprocess.run([sys.executable, "-m", "cleave.models", "gpt", *map(str, sizes), "-o", path],
                   check=True, env=harness.environment(), stderr=subprocess.DEVNULL)


def write_text(path):
    """The documentation and the sources of this project, as bytes below 128."""
    files = [*sorted(harness.ROOT.glob("docs/*.md")), *sorted(harness.ROOT.glob("lib/**/*.cpp"))]
    path.write_bytes(bytes(byte for file in files for byte in file.read_bytes() if byte < 128))


class Run:
    """One compiled step, and the logs of its runs."""

    def __init__(self, options, compress, model, folder):
        self.options, self.folder = options, folder
        self.name = compress or "dense"
        base = folder / ("compression-" + "".join(c if c.isalnum() else "-" for c in self.name))
        self.artifact, self.log = f"{base}.so", f"{base}.jsonl"
        report = f"{base}.json"
        flags = ["--mesh", f"dp={options.ranks}"]
        if options.stages:
            flags = ["--mesh", f"pp={options.ranks}", "--micro-batches", options.micro_batches]
        if compress:
            flags += ["--compress-stages" if options.stages else "--compress", compress]
        self.call([options.build / "bin" / "cleave-compile", model, "--threads", 1, *flags,
                   "-o", self.artifact, "--report", report])
        self.arena = json.loads(pathlib.Path(report).read_text())["memory"]["arena"]

    def call(self, command, **more):
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, **more)

    def command(self, steps):
        return [self.options.build / "bin" / "cleave-run", self.artifact, "--random-init",
                "--data", self.folder / "compression.bin", "--token-dtype", "u8",
                "--steps", self.options.steps, "--stop-at", steps, "--lr", 3e-3,
                "--lr-schedule", "cosine", "--warmup", 50, "--log", self.log]

    def read(self):
        return [json.loads(line) for line in pathlib.Path(self.log).read_text().splitlines()]

    def train(self):
        """All steps, with threads as ranks."""
        self.call([*self.command(self.options.steps), "--threads", self.options.ranks])
        return self.read()

    def throttled(self):
        """The median time of a step of ranks that are processes on a slow network."""
        script = ["ip link set lo up",
                  f"tc qdisc add dev lo root tbf rate {self.options.rate} burst 512kb latency 50ms"]
        words = " ".join(map(str, [*self.command(self.options.timed), "--threads", 1]))
        script += [f"RANK={rank} WORLD_SIZE={self.options.ranks} CLEAVE_PORT=29411 {words} &"
                   for rank in range(self.options.ranks)]
        self.call(["unshare", "-n", "bash", "-ec", "\n".join([*script, "wait"])],
                  env=dict(os.environ, OMP_NUM_THREADS="1"))
        return statistics.median(line["ms"] for line in self.read()[3:])


def smooth(lines, window):
    losses = [line["loss"] for line in lines]
    return [statistics.fmean(losses[max(0, i + 1 - window):i + 1]) for i in range(len(losses))]


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
    parser.add_argument("--margin", type=float, default=0.01)
    parser.add_argument("--compress", action="append", help="measure this compressor only")
    parser.add_argument("--stages", action="append", metavar="SHARE",
                        help="ranks are stages, which send this share of elements")
    parser.add_argument("--micro-batches", type=int, default=4, help="with --stages")
    options = harness.parse(parser, layers=1, hidden=16, seq=16, batch=4, steps=20, window=5,
                            compress=["powersgd,rank=1,min_rate=1"])
    folder = harness.make_folder()
    model = folder / "compression.mlir"
    write_model(options, model)
    write_text(folder / "compression.bin")
    dense = None
    for compress in [None, *(options.stages or options.compress or COMPRESSORS)]:
        run = Run(options, compress, model, folder)
        log(f"{run.name}: {options.steps} steps")
        lines = run.train()
        curve = smooth(lines, options.window)
        dense = dense or curve
        facts = {
            "compress": run.name, "loss": round(curve[-1], 4),
            "loss_ratio": round(curve[-1] / dense[-1], 4),
            "sent_bytes": sum(entry["bytes"] for entry in lines[-1]["communication"]),
            "arena_bytes": run.arena,
            "ms": round(statistics.median(line["ms"] for line in lines), 2),
        }
        if options.rate:
            target = dense[-1] * (1 + options.margin)
            reached = next((i + 1 for i, loss in enumerate(curve)
                            if i + 1 >= options.window and loss <= target), None)
            facts["slow_ms"] = round(run.throttled(), 2)
            facts["seconds_to_loss"] = reached and round(reached * facts["slow_ms"] / 1e3, 1)
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
