# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A run of run_bundle.py: its time, the programs that it executes, and where results go."""

import glob
import gzip
import json
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

import device_watch
import library_versions

HERE = pathlib.Path(__file__).resolve().parent
#: Nothing is begun with fewer seconds left, and nothing takes longer than the other.
LEAST_SECONDS, MOST_SECONDS = 15, 400


class Run:
    """One run of this script: its options, the time that is left, and where results go."""

    def __init__(self, options, folder, programs):
        self.options, self.folder, self.began = options, folder, time.time()
        self.programs, self.here = programs, HERE
        self.clocks, self.deadline = None, math.inf
        self.window = (self.began, self.began)
        self.failed = 0
        self.skipped = []
        self.used = device_watch.memory()
        self.lines = open(folder / "results.jsonl", "w")
        (folder / "tables.txt").unlink(missing_ok=True)

    def left(self):
        """Seconds."""
        return min(self.options.limit, self.deadline) - (time.time() - self.began)

    def program(self):
        return HERE / "bin" / "cleave-run"

    def tokens(self, case=None):
        return spread_tokens(self, case) if case else HERE / "tokens.bin"

    def last_clocks(self):
        """Clocks and watts while the last process ran; None where nothing samples them."""
        return self.clocks and self.clocks.between(*self.window)

    def say(self, **facts):
        """A line of JSON, also in the folder of results."""
        line = json.dumps(facts)
        print(line, flush=True)
        print(line, file=self.lines, flush=True)

    def table(self, title, heads, rows):
        """Printed, and kept in the folder of results."""
        text = aligned(title, heads, rows)
        print(text, flush=True)
        with open(self.folder / "tables.txt", "a") as file:
            print(text, file=file)

    def note(self, text):
        """Progress."""
        print(f"[{time.time() - self.began:5.0f} s] {text}", file=sys.stderr, flush=True)

    def enough(self, what):
        """Whether there is time for `what`; if not, it is said to be skipped."""
        if self.left() >= LEAST_SECONDS:
            self.note(f"{what} ...")
            return True
        self.skipped.append(what)
        self.say(skipped=what, why=f"--limit {self.options.limit:g} s")  # Of all, or its part.
        return False

    def fail(self, **facts):
        self.failed += 1
        self.say(**facts)

    def execute(self, command, name, env=None, seconds=MOST_SECONDS):
        """Runs `command`; its output stays in files `name`.out and .err of the folder. Returns
        (standard output, "") or (None, what went wrong). With it end all processes that it has
        begun, as the workers of torch.compile."""
        seconds = max(1, min(seconds, self.left()))
        begin = time.time()
        out, err = (self.folder / f"{name}.{kind}" for kind in ("out", "err"))
        with open(out, "w") as stdout, open(err, "w") as stderr:
            process = subprocess.Popen([str(word) for word in command], stdout=stdout,
                                       stderr=stderr, stdin=subprocess.DEVNULL,
                                       env=env, start_new_session=True)
            try:
                status = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
        self.window = (begin, time.time())
        said = out.read_text(errors="replace")
        if status == 0:
            return said, ""
        why = (err.read_text(errors="replace").strip() or said.strip())[-500:]
        return None, f"over {seconds:.0f} s: {why}" if status is None else why or f"status {status}"

    def torch(self, name, part, *flags, seconds=MOST_SECONDS):
        """The line of JSON that a part of torch_gpt.py prints, or None and what went wrong."""
        said, why = self.execute([sys.executable, HERE / "torch_gpt.py", part, *flags], name,
                                 seconds=seconds)
        return (None, why) if said is None else (json.loads(said.strip().splitlines()[-1]), "")

    def artifact(self, name):
        """The path of a program, which the bundle has compressed."""
        path = self.programs / f"{name}.so"
        if not path.exists():
            with gzip.open(HERE / "cases" / f"{name}.so.gz") as packed, open(path, "wb") as file:
                shutil.copyfileobj(packed, file)
        return path

    def train(self, name, artifact, steps, *flags, env=(), seconds=MOST_SECONDS, under=()):
        """The lines of the log of cleave-run, or None and what went wrong; `under` is a command
        that it is run by."""
        log = self.folder / f"{name}.log"
        log.unlink(missing_ok=True)
        said, why = self.execute([*under, HERE / "bin" / "cleave-run", self.artifact(artifact),
                                  f"--steps={steps}", "--log", log, "--label-shift=0", *flags], name,
                                 environment(env), seconds)
        if said is None:
            return None, why
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [line for line in lines if "loss" in line], ""


def spread_tokens(run, case):
    """A file of the tokens of one step, which are all over the vocabulary: sums of rows of the
    embedding take longer where few tokens are many."""
    path = run.folder / f"{case['name']}.bin"
    if not path.exists():
        draw, count = random.Random(0), case["batch"] * case["seq"]
        path.write_bytes(struct.pack(f"<{count}H", *draw.choices(range(case["vocab"]), k=count)))
    return path


def environment(more=()):
    """That of cleave-run: with the libraries of the bundle, and those of NVIDIA of this Python."""
    folders = [os.environ.get("CLEAVE_CUDA_LIBRARIES", "")]
    for path in sys.path:
        folders += sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib")))
    libraries = [str(HERE / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
            "CLEAVE_CUDA_PLUGIN": str(HERE / "lib" / "libcleave_cuda.so"),
            "CLEAVE_CUDA_LIBRARIES": ":".join(filter(None, folders)), **dict(more)}


#: The message on a machine without a GPU.
NO_GPU = "no GPU"


def machine():
    """The GPU, by nvidia-smi, or its name alone by NVML."""
    query = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=60)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        pass
    nvml = device_watch.Nvml.open()
    return nvml and nvml.name() or NO_GPU


def versions():
    """Of NVIDIA's libraries, as cleave-run finds them."""
    try:
        said = subprocess.run([sys.executable, HERE / "library_versions.py"], capture_output=True,
                              text=True, timeout=120, env=environment()).stdout
        return json.loads(said)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return dict.fromkeys(library_versions.LIBRARIES)


def aligned(title, heads, rows):
    """Columns as text; the first is left-aligned, numbers have few digits, and None is a dash."""
    def text(value):
        if value is None:
            return "-"
        if isinstance(value, float):
            return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" \
                if abs(value) < 10 else f"{value:.1f}"
        return str(value)

    lines = [list(heads)] + [[text(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join([f"\n{title}"] + [
        "  " + "  ".join(cell.rjust(width) if i else cell.ljust(width)
                         for i, (cell, width) in enumerate(zip(line, widths))).rstrip()
        for line in lines])


def ratio(a, b):
    return a / b if a is not None and b else None
