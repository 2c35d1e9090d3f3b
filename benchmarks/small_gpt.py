"""Trainings of a small GPT on the text of this project, of which benchmarks of lossy techniques
compare the losses."""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys

import torch

import harness


def add_sizes(parser):
    """Adds the options of the model, and of the number of steps."""
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1000)


#: The options of `add_sizes` with `--smoke`.
SMALL = {"layers": 1, "hidden": 16, "seq": 16, "batch": 4}


def make_parser(text):
    """The options of a benchmark that `text` describes, whose trainings are those of `Run`."""
    parser = argparse.ArgumentParser(description=text,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=harness.ROOT / "build")
    parser.add_argument("--ranks", type=int, default=2)
    add_sizes(parser)
    parser.add_argument("--lr", type=float, default=3e-3, help="the largest learning rate")
    parser.add_argument("--window", type=int, default=50, help="steps that a loss is a mean of")
    parser.add_argument("--rate", help="of the slowed network, such as 1gbit")
    parser.add_argument("--timed", type=int, default=20, help="steps on the slowed network")
    return parser


def parse(parser, **small):
    """The parsed options of `make_parser`; `small` are those of the benchmark with `--smoke`."""
    return harness.parse(parser, **SMALL, steps=20, window=5, **small)


def text():
    """The documentation and the sources of this project, as bytes below 128."""
    files = [*sorted(harness.ROOT.glob("docs/**/*.md")), *sorted(harness.ROOT.glob("lib/**/*.cpp"))]
    return bytes(byte for file in files for byte in file.read_bytes() if byte < 128)


def write_inputs(options, name):
    """Writes the model and the text to files of this name; returns the model's path."""
    folder = harness.make_folder()
    model = folder / f"{name}.mlir"
    sizes = ["--layers", options.layers, "--hidden", options.hidden, "--heads", 4, "--vocab", 128,
             "--seq", options.seq, "--batch", options.batch, "--no-logits"]
    subprocess.run([sys.executable, "-m", "cleave.models", "gpt", *map(str, sizes), "-o", model],
                   check=True, env=harness.environment(), stderr=subprocess.DEVNULL)
    model.with_suffix(".bin").write_bytes(text())
    return model


class Batches:
    """Sequences of the first nine tenths of the text; of the last one for evaluation."""

    def __init__(self, options):
        data = torch.frombuffer(bytearray(text()), dtype=torch.uint8).long()
        cut = len(data) * 9 // 10
        self.options, self.parts = options, (data[:cut], data[cut:])

    def draw(self, seed, part=0):
        data, length = self.parts[part], self.options.seq
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(0, len(data) - length, (self.options.batch,), generator=generator)
        return torch.stack([data[start:start + length] for start in starts.tolist()])


class Run:
    """A compiled step of `model`, with `flags` of cleave-compile, and the logs of its runs."""

    def __init__(self, options, model, name, flags):
        self.options, self.name, self.text = options, name, model.with_suffix(".bin")
        suffix = "".join(c if c.isalnum() else "-" for c in name)
        base = f"{model.with_suffix('')}-{suffix}"
        self.artifact, self.log = f"{base}.so", f"{base}.jsonl"
        report = f"{base}.json"
        self.call([options.build / "bin" / "cleave-compile", model, "--threads", 1, *flags,
                   "-o", self.artifact, "--report", report])
        self.arena = json.loads(pathlib.Path(report).read_text())["memory"]["arena"]

    def call(self, command, **more):
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, **more)

    def command(self, steps):
        return [self.options.build / "bin" / "cleave-run", self.artifact, "--random-init",
                "--data", self.text, "--token-dtype", "u8",
                "--steps", max(self.options.steps, steps), "--stop-at", steps,
                "--lr", self.options.lr, "--lr-schedule", "cosine", "--warmup", 50, "--log", self.log]

    def read(self):
        return [json.loads(line) for line in pathlib.Path(self.log).read_text().splitlines()]

    def train(self):
        """All steps, with threads as ranks."""
        self.call([*self.command(self.options.steps), "--threads", self.options.ranks])
        return self.read()

    def throttled(self, rate=""):
        """The median time of a step of ranks that are processes on a slow network; at full speed
        if `rate` is None."""
        self._run_processes(self.options.timed, rate)
        return statistics.median(line["ms"] for line in self.read()[3:])

    def throttled_cpu(self):
        """The CPU time that a step takes on the slow network, in all threads of a rank:
        the mean of all steps but the first three."""
        first, all_steps = (self._run_processes(steps, "") for steps in (3, self.options.timed))
        return (all_steps - first) * 1e3 / (self.options.timed - 3) / self.options.ranks

    def _run_processes(self, steps, rate):
        """Returns the CPU time of all ranks in seconds."""
        script = ["ip link set lo up"]
        if rate is not None:
            rate = rate or self.options.rate
            script.append(f"tc qdisc add dev lo root tbf rate {rate} burst 512kb latency 50ms")
        words = " ".join(map(str, [*self.command(steps), "--threads", 1]))
        script += [f"RANK={rank} WORLD_SIZE={self.options.ranks} CLEAVE_PORT=29411 {words} &"
                   for rank in range(self.options.ranks)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.call(["unshare", "-n", "bash", "-ec", "\n".join([*script, "wait"])],
                  env=dict(os.environ, OMP_NUM_THREADS="1"))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def smooth(lines, window):
    """Of each step, the mean of the losses of the last `window` ones."""
    losses = [line["loss"] for line in lines]
    return [statistics.fmean(losses[max(0, i + 1 - window):i + 1]) for i in range(len(losses))]


def median_ms(lines):
    return round(statistics.median(line["ms"] for line in lines), 2)
