"""Shared code of the benchmarks: options, cases for Cleave, and workers.

A worker is a process that runs training steps on request, by the protocol of
workers/protocol.py, so that the steps of several systems can be interleaved.
"""

import ctypes
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
SCRIPTS = HERE / "workers"

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def add_options(parser):
    """Adds the options that all benchmarks of training steps share."""
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--case", action="append", help="run this model only")


def add_floor_options(parser):
    """Adds the options of benchmarks that measure a floor."""
    parser.add_argument("--explore", type=int, default=3,
                        help="measurements of all variants of the floor's contractions")


def parse(parser, **small):
    """Returns the parsed options. With `--smoke`, options that are not given take the values
    `small`, for a run that only tests the benchmark itself."""
    parser.add_argument(
        "--smoke", action="store_true", help="only test the benchmark, with the smallest sizes"
    )
    if parser.parse_known_args()[0].smoke:
        parser.set_defaults(**small)
    return parser.parse_args()


#: The options of a benchmark of training steps with `--smoke`.
SMALL = {"warmup": 1, "steps": 1, "case": ["gpt2-tiny"]}


def measure_cpu(steps, warmup, count):
    """Runs each of `steps`, by name, once in each of `warmup` and then of `count` rounds; returns
    the medians of the CPU milliseconds of the latter, and what the last runs returned."""
    times, results = {name: [] for name in steps}, {}
    for round_ in range(warmup + count):
        for name, step in steps.items():
            start = time.process_time()
            results[name] = float(step())
            if round_ >= warmup:
                times[name].append((time.process_time() - start) * 1e3)
    return {name: statistics.median(own) for name, own in times.items()}, results


def make_folder():
    """Creates and returns the folder to which cases are written."""
    folder = ROOT / "out" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def environment(**more):
    """Returns the environment of a benchmark's process; packages in PYTHONPATH precede those
    of this tree."""
    paths = [os.environ.get("PYTHONPATH", ""), str(ROOT / "python")]
    return dict(os.environ, PYTHONPATH=":".join(filter(None, paths)), **more)


def end_with_parent():
    """Has the kernel kill this new process when its parent ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Worker:
    """One process that runs training steps on request."""

    def __init__(self, name, command, threads, env=None):
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            preexec_fn=end_with_parent,
            env=environment(OMP_NUM_THREADS=str(threads), **(env or {})),
        )
        self.times, self.losses = [], []
        self.facts = self.read()

    def read(self):
        """Returns the next JSON line of its output. Raises SystemExit if it has ended."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        status = self.process.wait()
        self.errors.seek(0)
        sys.stderr.writelines(self.errors.readlines()[-20:])
        raise SystemExit(
            f"error: worker '{self.name}' ended with status {status}"
        )

    def request(self, command):
        """Sends a command of the protocol; returns the answer."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.read()

    def step(self, measured=True):
        """Runs one training step, and records its time if `measured`; returns the time in
        milliseconds."""
        answer = self.request("step")
        self.losses.append(answer["loss"])
        if measured:
            self.times.append(answer["ms"])
        return answer["ms"]

    def median(self):
        """Returns the median time of the measured steps, in milliseconds."""
        return statistics.median(self.times)

    def quit(self):
        """Ends the process; returns its answer to `quit`, or {}."""
        said, _ = self.process.communicate("quit\n")
        lines = [line for line in said.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {}


class Floor:
    """The process that measures the floor of an artifact's step: the time of its contractions
    and of attention, each by the fastest variant of the library."""

    def __init__(self, name, build, artifact, threads):
        self.worker = Worker(name, [build / "bin" / "cleave-floor", artifact, threads], threads)
        self.answers = []

    def explore(self, times):
        """Measures all variants, from which the fastest ones are chosen."""
        for _ in range(times):
            self.worker.request("explore")

    def step(self, measured=True):
        """Runs once all that a step contains."""
        answer = self.worker.request("step")
        if measured:
            self.answers.append(answer)

    def median(self):
        """Returns the median times in milliseconds: `ms`, `contractions`, `attention`."""
        return {key: statistics.median(answer[key] for answer in self.answers)
                for key in self.answers[0]}

    def quit(self):
        self.worker.quit()


def trace_case(model, dropout, folder):
    """Traces one case in a process of its own; returns the path of its files, without
    extension."""
    base = folder / f"{model}-{dropout}"
    subprocess.run(
        [sys.executable, SCRIPTS / "prepare.py", "--model", model]
        + ["--dropout", str(dropout), "--out", str(base)],
        check=True,
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    return base


def compile_case(base, build, threads, artifact, flags=()):
    """Compiles a traced case; `threads` is the number of threads of one rank."""
    subprocess.run(
        [build / "bin" / "cleave-compile", f"{base}.mlir"]
        + ["--weight-decay", "0.1", "--threads", str(threads), *flags]
        + ["-o", artifact],
        check=True,
    )


def cleave_command(base, artifact, threads):
    """Returns the command of the worker that trains a case by an artifact; `threads` is the
    number of threads of all ranks together."""
    command = [sys.executable, SCRIPTS / "cleave_step.py", artifact]
    command += ["--weights", f"{base}.safetensors", "--ids", f"{base}.npy"]
    return command + ["--threads", threads]


def describe(breakdown):
    """Returns a breakdown of a step's milliseconds as text."""
    return ", ".join(f"{k} {v:.0f}" for k, v in breakdown.items() if v >= 0.5)
