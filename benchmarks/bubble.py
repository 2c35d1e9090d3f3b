"""Measures the accuracy of the predicted pipeline bubble, given costs measured in another run.

A model of GPT-2's shape is trained with pp=2 on two cores, with one single-threaded rank on each
core. Each of several schedules is run twice. The costs of parts and transfers in the first run, in
which both ranks are as busy as in the second, predict the timeline of the second. The benchmark
prints a JSON line for each schedule: the percentage of a step in which each device is idle,
predicted and measured, and the difference in percentage points. Pictures and traces remain in the
folder that is printed.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import harness
from devices import CORES, log, pin_to_cores


def write_model(options, path):
    sizes = ["--layers", options.layers, "--hidden", options.hidden, "--heads", options.heads,
             "--seq", options.seq, "--vocab", options.vocab, "--batch", options.micro_batches]
    subprocess.run([sys.executable, "-m", "cleave.models", "gpt", *map(str, sizes), "-o", path],
                   check=True, env=harness.environment(), stderr=subprocess.DEVNULL)


def write_tokens(options, path):
    """Writes pseudo-random tokens; the time of a step does not depend on them."""
    count = 4 * options.micro_batches * (options.seq + 1)
    ids = ((i * 2654435761 >> 7) % options.vocab for i in range(count))
    path.write_bytes(b"".join(token.to_bytes(4, "little") for token in ids))


class Pipeline:
    """The compiled artifact of one schedule, and the commands to run and compare it."""

    def __init__(self, options, schedule, model, folder):
        self.options, self.folder = options, folder
        self.base = folder / f"bubble-{schedule}"
        self.compiler = options.build / "bin" / "cleave-compile"
        self.flags = [model, "--mesh", "pp=2", "--schedule", schedule, "--threads", 1,
                      "--micro-batches", options.micro_batches]
        self.artifact = f"{self.base}.so"
        self.call(self.compiler, *self.flags, "-o", self.artifact)

    def call(self, *command):
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)

    def train(self, number):
        """Runs `--steps` steps after a warm-up step; returns the path of their trace."""
        trace = f"{self.base}-{number}.json"
        steps = self.options.steps + 1
        self.call(self.options.build / "bin" / "cleave-run", self.artifact, "--random-init",
                  "--data", self.folder / "bubble.bin", "--token-dtype", "u32", "--steps", steps,
                  "--trace", trace, "--trace-steps", steps, "--threads", CORES)
        return trace

    def compare(self, costs, timeline):
        """Returns the report's facts of the timeline predicted from the trace `costs`, and of
        the timeline measured in the trace `timeline`."""
        report = f"{self.base}-report.json"
        self.call(self.compiler, *self.flags, "--emit=schedule", "-o", f"{self.base}.svg",
                  "--measured-costs", costs, "--measured-timeline", timeline,
                  "--report", report)
        facts = json.loads(pathlib.Path(report).read_text())["schedule"]
        return facts["predicted"], facts["measured"]


def describe(schedule, predicted, measured):
    """Returns the JSON line of a schedule: milliseconds, and idle shares in percent."""
    def percent(values):
        return [round(100 * value, 1) for value in values]

    most = [100 * facts["largest_idle"] for facts in (predicted, measured)]
    points = [100 * abs(a - b) for a, b in zip(predicted["idle"], measured["idle"])]
    return {
        "schedule": schedule,
        "predicted_ms": round(1e3 * predicted["makespan"]),
        "measured_ms": round(1e3 * measured["makespan"]),
        "predicted_idle": percent(predicted["idle"]),
        "measured_idle": percent(measured["idle"]),
        "difference_points": [round(value, 1) for value in points],
        "largest_idle": [round(value, 1) for value in most],
        "largest_idle_difference_points": round(abs(most[0] - most[1]), 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=harness.ROOT / "build")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--micro-batches", type=int, default=8, help="of one sample each")
    parser.add_argument("--steps", type=int, default=5, help="measured; one more warms up")
    parser.add_argument("--schedules", default="gpipe,1f1b,zb-h1")
    options = harness.parse(parser, layers=2, hidden=32, heads=4, seq=16, vocab=64,
                            micro_batches=4, steps=1)
    options.build = options.build.resolve()
    pin_to_cores()
    folder = harness.make_folder()
    write_model(options, folder / "bubble.mlir")
    write_tokens(options, folder / "bubble.bin")
    pipelines = {name: Pipeline(options, name, folder / "bubble.mlir", folder)
                 for name in options.schedules.split(",")}
    for name, pipeline in pipelines.items():
        first, second = pipeline.train(1), pipeline.train(2)
        print(json.dumps(describe(name, *pipeline.compare(first, second))), flush=True)
    log(f"pictures and traces: {folder}/bubble-*")


if __name__ == "__main__":
    main()
