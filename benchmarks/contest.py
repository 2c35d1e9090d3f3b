"""What the benchmarks share: cases for Cleave, contestants, and their rounds."""

import ctypes
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
SCRIPTS = HERE / "contestants"

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def add_options(parser):
    """The options that every benchmark of steps has."""
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--case", action="append", help="run this model only")


def parse(parser, **small):
    """The options of a command line. With `--smoke` those that it does not give are
    `small`: a run that tries the benchmark itself, and whose figures mean nothing."""
    parser.add_argument(
        "--smoke", action="store_true", help="only try the benchmark, as small as it can be"
    )
    if parser.parse_known_args()[0].smoke:
        parser.set_defaults(**small)
    return parser.parse_args()


#: Of a benchmark of steps.
SMALL = {"warmup": 1, "steps": 1, "case": ["gpt2-tiny"]}


def make_folder():
    """Where cases are written."""
    folder = ROOT / "out" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def environment(**more):
    """That of a process of the benchmark; a package in PYTHONPATH comes before
    this tree's."""
    paths = [os.environ.get("PYTHONPATH", ""), str(ROOT / "python")]
    return dict(os.environ, PYTHONPATH=":".join(filter(None, paths)), **more)


def end_with_parent():
    """Lets a new process be killed when the benchmark ends, however it does."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Contestant:
    """One process that runs steps when told to."""

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
        """The next JSON line that it says."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        status = self.process.wait()
        self.errors.seek(0)
        sys.stderr.writelines(self.errors.readlines()[-20:])
        raise SystemExit(
            f"error: contestant '{self.name}' ended with status {status}"
        )

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.read()

    def step(self, measured=True):
        """One training step, whose time counts if it is `measured`; returns that
        time in milliseconds."""
        answer = self.ask("step")
        self.losses.append(answer["loss"])
        if measured:
            self.times.append(answer["ms"])
        return answer["ms"]

    def median(self):
        """Milliseconds."""
        return statistics.median(self.times)

    def quit(self):
        """Ends it; returns what it says about its memory, if anything."""
        said, _ = self.process.communicate("quit\n")
        lines = [line for line in said.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {}


def trace_case(model, dropout, folder):
    """Traces one case in a process that then ends; returns the path of what it
    wrote, without extension."""
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
    """Compiles a traced case; `threads` are those of one rank."""
    subprocess.run(
        [build / "bin" / "cleave-compile", f"{base}.mlir"]
        + ["--weight-decay", "0.1", "--threads", str(threads), *flags]
        + ["-o", artifact],
        check=True,
    )


def cleave_command(base, artifact, threads):
    """The contestant that trains the case with an artifact; `threads` are those
    of all ranks."""
    command = [sys.executable, SCRIPTS / "cleave_step.py", artifact]
    command += ["--weights", f"{base}.safetensors", "--ids", f"{base}.npy"]
    return command + ["--threads", threads]


def describe(breakdown):
    """What takes time in a step, in milliseconds, for people."""
    return ", ".join(f"{k} {v:.0f}" for k, v in breakdown.items() if v >= 0.5)
