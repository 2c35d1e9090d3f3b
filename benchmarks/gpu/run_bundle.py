# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs a bundle (bundle.py) on a machine with a GPU.

  test   trains small models, and compares their losses with those of the processor
  bench  times training of GPT-2 beside PyTorch, and compares memory and rates of kernels
  loss   trains GPT-2 from the same weights on the same tokens by Cleave and by PyTorch, in bf16,
         and compares both with PyTorch in f32
  sanitize  runs a small model under the checkers of compute-sanitizer, where it is installed
  all    in one call of at most nine minutes: versions, test, NCCL by two processes on one card,
         bench of three models with one mode of PyTorch, products of cuBLASLt, and ncu, with
         clocks and watts; leaves results.jsonl, tables.txt and all.tgz, which has everything

Prints results as lines of JSON, then tables; progress goes to standard error. The status is 1 if
something failed or a comparison did not pass, and 0 also where time did not suffice for all."""

import argparse
import glob
import gzip
import json
import math
import os
import pathlib
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import device_memory
import kernel_rates
import device_clocks
import library_versions
import one_call

HERE = pathlib.Path(__file__).resolve().parent
#: Dense 16-bit FLOP/s of H100 and H200, by which utilisation is given.
PEAK = 989e12
#: Seconds of each part, unless --limit is given: half an hour for all.
LIMITS = {"test": 540, "bench": 540, "loss": 540, "sanitize": 180, "all": one_call.SECONDS}
#: Checkers of compute-sanitizer: of memory accesses, of shared memory, and of barriers.
CHECKERS = ("memcheck", "racecheck", "synccheck")
#: The status with which compute-sanitizer ends where a checker has found something.
FOUND = 86
#: Nothing is begun with fewer seconds left, and nothing takes longer than the other.
LEAST_SECONDS, MOST_SECONDS = 15, 400
#: Cleave's rms difference of the loss from f32 may be so many times PyTorch's.
LOSS_BOUND = 1.5
GIB = 2**30

EPILOG = """what is printed, beside the machine:
  test   each case: the largest relative difference of a loss, and its bound.
  bench  rates of the machine, by torch: copies of 2 GiB (bytes read and written), and a bf16
         product of 8192^3. Of each model and each of Cleave and the modes of PyTorch: the median
         ms of a step, MFU (of 989 TFLOP/s, by 6 N + 12 L d T operations for a token, N without
         the positions), tokens/s, the peak of memory, and ratios, Cleave's by PyTorch's: below 1,
         Cleave is faster, or smaller. Steps that are measured command by command, the traced
         ones, 1, 2 and every 50th, are not timed. PyTorch has the same residual stream, in f32
         or in 16 bits, the same tokens, and as many micro-batches, unless --torch-parts is given.
         Memory: `planned` is what the compiler states, the arena and what is outside of it;
         `used` is what the device reports, less what was in use before, so that it has the
         context and the code of kernels too; of PyTorch also what it allocated and reserved.
         Kernels: from a trace, for commands that move more than 64 MB each, GB/s by the bytes
         that the compiler counts, and the share of the rate of copies.
  loss   losses of steps 1, 10, 50 and 100, and how far they are from those of f32. It passes if
         Cleave's rms difference is at most 1.5 times that of PyTorch's bf16 autocast, with the
         residual stream in f32 and in 16 bits.
  sanitize  each case and checker: whether it found something, and the largest relative difference
         of a loss. One line says so where compute-sanitizer is not installed, which is no failure.

examples:
  python3 run_bundle.py test
  python3 run_bundle.py bench --only gpt2-124m --modes compile --out results
  python3 run_bundle.py bench --only gpt2-1.3b --limit 300
  python3 run_bundle.py loss
  python3 run_bundle.py sanitize

Needed: Python 3.9 or later and a driver; bench and loss need a torch of CUDA 13 and safetensors,
and all of them take NVIDIA's libraries from that torch."""


class Run:
    """One run of this script: its options, the time that is left, and where results go."""

    def __init__(self, options, folder, programs):
        self.options, self.folder, self.began = options, folder, time.time()
        self.programs, self.here = programs, HERE
        self.clocks, self.deadline = None, math.inf
        self.window = (self.began, self.began)
        self.failed = 0
        self.skipped = []
        self.used = device_memory.by_nvml() or device_memory.by_command()
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


def environment(more=()):
    """That of cleave-run: with the libraries of the bundle, and those of NVIDIA of this Python."""
    folders = [os.environ.get("CLEAVE_CUDA_LIBRARIES", "")]
    for path in sys.path:
        folders += sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib")))
    libraries = [str(HERE / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
            "CLEAVE_CUDA_PLUGIN": str(HERE / "lib" / "libcleave_cuda.so"),
            "CLEAVE_CUDA_LIBRARIES": ":".join(filter(None, folders)), **dict(more)}


def machine():
    query = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    try:
        return subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return "no nvidia-smi"


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


# test ---------------------------------------------------------------------------------


def compare_case(run, case, name, flags=(), **how):
    """Trains a small model; returns whether its losses are those of the processor, and facts."""
    began = time.time()
    lines, why = run.train(
        name, case["artifact"], case["steps"], "--random-init", "--data", HERE / "tokens.bin",
        "--lr=1e-3", f"--ranks-per-device={case['ranks']}", *flags,
        env=case["environment"].items(), **how)
    facts = dict(case=case["name"], ranks=case["ranks"], environment=case["environment"],
                 seconds=round(time.time() - began, 1), difference=None, bound=case["bound"])
    if lines is None:
        return False, {**facts, "why": why}
    difference = max((abs(a - line["loss"]) / abs(a)
                      for a, line in zip(case["losses"], lines)), default=math.inf)
    passed = len(lines) == len(case["losses"]) and difference <= case["bound"]
    return passed, {**facts, "difference": difference,
                    "last": lines[-1]["loss"] if lines else None}


def test(run, cases):
    rows = []
    for case in cases:
        if not run.enough(case["name"]):
            continue
        passed, facts = compare_case(run, case, case["name"])
        (run.say if passed else run.fail)(passed=passed, **facts)
        rows.append([case["name"], "passed" if passed else "FAILED", facts["difference"],
                     case["bound"]])
    run.say(tests=len(rows), failed=run.failed, skipped=len(run.skipped))
    run.table("losses beside the processor's", ["case", "", "difference", "bound"], rows)


# sanitize -----------------------------------------------------------------------------


def find_sanitizer():
    """compute-sanitizer, or None: of PATH, of the toolkit, of this Python's packages."""
    folders = [os.environ.get("PATH", "")]
    for toolkit in filter(None, [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]):
        folders += [os.path.join(toolkit, "bin"), os.path.join(toolkit, "compute-sanitizer")]
    for path in sys.path:
        folders += sorted(glob.glob(os.path.join(path, "nvidia", "*", "bin")))
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


def sanitize(run, cases):
    program = find_sanitizer()
    if not program:
        run.say(sanitizer=None, why="compute-sanitizer is neither in PATH nor in $CUDA_HOME, /usr/"
                                    "local/cuda or this Python's packages: nothing is checked")
        return
    rows = []
    for case in cases:
        for checker in run.options.checkers.split(","):
            name = f"{case['name']}-{checker}"
            if not run.enough(name):
                continue
            found = run.folder / f"{name}.txt"
            passed, facts = compare_case(run, case, name, under=[
                program, "--tool", checker, "--target-processes", "all", "--error-exitcode",
                FOUND, "--log-file", found])
            said = found.read_text(errors="replace").strip().splitlines() if found.exists() else []
            (run.say if passed else run.fail)(sanitizer=checker, passed=passed, **facts,
                                              says=said[-1] if said else None)
            rows.append([name, "passed" if passed else "FAILED", facts["difference"],
                         facts["seconds"]])
    run.table("under compute-sanitizer", ["case", "", "difference", "seconds"], rows)


# bench --------------------------------------------------------------------------------


def utilisation(case, seconds):
    """Of the peak, by 6 N + 12 L d T operations for a token."""
    weights = 12 * case["layers"] * case["hidden"] ** 2 + case["vocab"] * case["hidden"]
    each = 6 * weights + 12 * case["layers"] * case["hidden"] * case["seq"]
    return each * case["batch"] * case["seq"] / seconds / PEAK


def speed(case, ms):
    return dict(ms=ms, mfu=utilisation(case, ms / 1e3),
                tokens_per_s=case["batch"] * case["seq"] / ms * 1e3)


def spread_tokens(run, case):
    """A file of the tokens of one step, which are all over the vocabulary: sums of rows of the
    embedding take longer where few tokens are many."""
    path = run.folder / f"{case['name']}.bin"
    if not path.exists():
        draw, count = random.Random(0), case["batch"] * case["seq"]
        path.write_bytes(struct.pack(f"<{count}H", *draw.choices(range(case["vocab"]), k=count)))
    return path


def bench_cleave(run, case, rates):
    """Times Cleave, says what was found, and returns it; None if it failed."""
    name, traced = case["name"], run.options.trace_steps
    trace = run.folder / f"{name}.trace.json"
    # The first traced steps, and the two that record graphs.
    skipped = max(traced, 2) + 2
    with device_memory.MemoryWatch(run.used) as watch:
        lines, why = run.train(
            f"{name}-cleave", case["artifact"],
            run.options.steps + skipped, "--random-init", "--data", spread_tokens(run, case),
            "--lr=3e-4", *(["--trace", trace, f"--trace-steps={traced}"] if traced else []))
    if lines is None:
        run.fail(model=name, by="cleave", failed=why)
        return None
    # Every 50th step is measured command by command, as the first ones are.
    timed = [line["ms"] for line in lines if line["step"] > skipped and line["step"] % 50 != 1] \
        or [lines[-1]["ms"]]
    planned = case["arena"] + sum(case["outside"].values())
    facts = dict(**speed(case, statistics.median(timed)), steps=len(timed),
                 measured_ms=lines[max(traced, 2) - 1]["ms"],
                 breakdown=lines[max(traced, 2) - 1]["breakdown"], loss=lines[-1]["loss"],
                 arena=case["arena"], outside=case["outside"], planned=planned, used=watch.peak,
                 used_by_planned=ratio(watch.peak, planned),
                 unexplained=None if watch.peak is None else watch.peak - planned,
                 clocks=run.last_clocks())
    prediction = case.get("prediction") or {}
    if prediction.get("seconds"):
        facts["predicted_ms"] = {prediction["device"]: 1e3 * prediction["seconds"]}
    run.say(model=name, by="cleave", residual=case["residual"], **facts)
    if traced:
        facts |= kernels(run, case, trace, rates)
    return facts


def kernels(run, case, trace, rates):
    """Says the rates of the kernels of a trace."""
    copy = rates.get("copy_gb_per_s")
    prediction = case.get("prediction") or {}
    measured = kernel_rates.last_step(trace)
    commands = prediction.get("commands")
    if not commands:
        kinds = kernel_rates.by_class(measured, prediction.get("kinds", []))
        labels = []
    else:
        joined, rest = kernel_rates.join(measured, commands)
        kinds = kernel_rates.by_kind(joined)
        labels = kernel_rates.by_label(joined, copy and copy * 1e9, run.options.least_mb * 1e6)
        run.say(model=case["name"], **rest)
        commands_of(run, case, joined, trace)
    for row in kinds:
        run.say(model=case["name"], **row)
    for row in labels:
        run.say(model=case["name"], **row)
    return dict(kinds=kinds, labels=labels)


def commands_of(run, case, joined, trace):
    """Tables of each product, attention, kernel and collective."""
    for name in ("products", "attention", "kernels"):
        rows = kernel_rates.by_command(joined, name)
        for row in rows:
            run.say(model=case["name"], **row)
        run.table(f"{case['name']}: {name}", ["label", "count", "us", "ms", "TFLOP/s", "GB/s"],
                  [[row["label"], row["count"], row["us_each"], row["ms"], row["tflops"],
                    row["gb_per_s"]] for row in rows[:40]])
    for row in kernel_rates.collectives(trace):
        run.say(model=case["name"], **row)


def bench_torch(run, case, mode):
    parts = run.options.torch_parts or case["parts"]
    name = f"{case['name']}-{mode}"
    sizes = {key: case[key] for key in ("hidden", "layers", "heads", "seq", "vocab", "batch")}
    with device_memory.MemoryWatch(run.used) as watch:
        facts, why = run.torch(name, "bench", json.dumps({**sizes, "parts": parts}),
                               f"--mode={mode}", f"--steps={run.options.steps}",
                               f"--residual={case['residual']}", "--tokens",
                               spread_tokens(run, case))
    by = dict(model=case["name"], by=f"torch {mode}", residual=case["residual"], parts=parts)
    if facts is None:
        run.fail(**by, failed=why)
        return None
    facts = {**facts, **speed(case, facts["ms"]), "used": watch.peak,
             "clocks": run.last_clocks()}
    run.say(**by, **facts)
    return facts


def bench(run, cases, stages=None):
    """With `stages`, Cleave's models come first, and each has its time."""
    rates = {}
    if run.enough("rates of this machine"):
        found, why = run.torch("rates", "rates", seconds=120)
        rates = found or {}
        run.say(rates=found) if found else run.fail(rates=None, failed=why)
    modes = [mode for mode in run.options.modes.split(",") if mode]
    ours, theirs = {}, {case["beside"]: {} for case in cases}
    # What matters most comes first, should time run out: Cleave and the first mode of all models.
    work = []
    for index, mode in enumerate([None, *modes] if not modes else modes):
        for case in cases:
            work += [(None, case)] if index == 0 else []
            work += [(mode, case)] if mode and case["beside"] == case["name"] else []
    if stages:
        work.sort(key=lambda one: one[0] is not None)
    began = None
    for mode, case in work:
        name = case["name"]
        if stages and mode and not began:
            began = stages.begin("torch") or True
        if mode is None and run.enough(f"{name}: cleave"):
            ours[name] = bench_cleave(run, case, rates)
        if mode and run.enough(f"{name}: torch {mode}"):
            theirs[name][mode] = bench_torch(run, case, mode)
    for case in cases:
        compare(run, case["name"], ours.get(case["name"]), theirs[case["beside"]])
    tables(run, cases, rates, ours, theirs)


def compare(run, name, own, others):
    """Says the ratios to each mode that ran, and to the fastest."""
    others = {mode: facts for mode, facts in others.items() if facts}
    if not own or not others:
        return
    best = min(others, key=lambda mode: others[mode]["ms"])
    least = min(others, key=lambda mode: others[mode]["allocated"] or math.inf)
    run.say(model=name, time_ratios={mode: own["ms"] / facts["ms"]
                                     for mode, facts in others.items()},
            best=f"torch {best}", time_ratio=own["ms"] / others[best]["ms"],
            memory_ratios={mode: memory_ratios(own, facts) for mode, facts in others.items()},
            smallest=f"torch {least}",
            memory_ratio=ratio(own["planned"], others[least]["allocated"]))


def memory_ratios(own, facts):
    return {"planned_by_allocated": ratio(own["planned"], facts["allocated"]),
            "planned_by_reserved": ratio(own["planned"], facts["reserved"]),
            "used_by_used": ratio(own["used"], facts["used"])}


def tables(run, cases, rates, ours, theirs):
    def gib(value):
        return None if value is None else value / GIB

    if rates:
        run.table("this machine", ["", "reached"],
                  [["copies, GB/s", rates["copy_gb_per_s"]],
                   ["bf16 product, TFLOP/s", rates["product_tflops"]]])
    times, memory = [], []
    for case in cases:
        own = ours.get(case["name"])
        found = [("cleave", own)] + [(f"torch {mode}", facts)
                                     for mode, facts in theirs[case["beside"]].items()]
        for by, facts in found:
            label = f"{case['name']} {by}"
            if not facts:
                times.append([label, *[None] * 4])
                continue
            times.append([label, facts["ms"], 100 * facts["mfu"], facts["tokens_per_s"],
                          ratio(own["ms"], facts["ms"]) if own else None])
            if by == "cleave":
                memory.append([label, gib(facts["planned"]), None, gib(facts["used"]),
                               gib(facts["unexplained"]), None, None])
                continue
            both = memory_ratios(own, facts) if own else {}
            memory.append([label, gib(facts["allocated"]), gib(facts["reserved"]),
                           gib(facts["used"]), None, both.get("planned_by_allocated"),
                           both.get("used_by_used")])
    run.table("steps; x: Cleave's ms by its ms", ["model", "ms", "MFU %", "tokens/s", "x"], times)
    run.table("memory in GiB; x: Cleave's by PyTorch's, planned by allocated and used by used",
              ["model", "planned/allocated", "reserved", "used", "unexplained", "x", "x used"],
              memory)
    for case in cases:
        own = ours.get(case["name"]) or {}
        if own.get("kinds"):
            run.table(f"{case['name']}: ms of commands, measured one by one, and predicted",
                      ["kind", "commands", "ms", "predicted", "ratio", "GB/s", "TFLOP/s"],
                      [[row["kind"], row["commands"], row["ms"], row["predicted_ms"],
                        row["ratio"], row.get("gb_per_s"), row.get("tflops") or None]
                       for row in own["kinds"]])
        if own.get("labels"):
            least = run.options.least_mb
            run.table(f"{case['name']}: commands that move more than {least:g} MB each",
                      ["label", "count", "us", "MB", "GB/s", "of copies"],
                      [[row["label"], row["count"], row["us_each"], row["mb_each"],
                        row["gb_per_s"], row["share_of_copy"]] for row in own["labels"]])


# all ----------------------------------------------------------------------------------


def everything(run, cases):
    """Each part in turn, within its time."""
    stages = one_call.Stages(run)
    stages.begin("versions")
    with device_clocks.Clocks(run.folder / "clocks.csv") as run.clocks:
        stages.begin("equality")
        test(run, cases["test"])
        stages.begin("nccl")
        one_call.nccl(run, cases["nccl"], environment())
        stages.begin("cleave")
        bench(run, [case for case in cases["bench"] if not case["flags"]], stages)
        stages.begin("products")
        one_call.products(run, [case for case in cases["bench"] if not case["flags"]],
                          environment())
        stages.begin("ncu")
        one_call.profile(run, cases["bench"][0], environment())
        run.deadline = math.inf
        run.say(samples=len(run.clocks.rows), of_the_clocks=bool(run.clocks.sample))


# loss ---------------------------------------------------------------------------------


def write_chain(path, count, vocab, seed=0):
    """`count` tokens of a random chain: each has eight that may follow it, some more often than
    others, so that there is something to learn and no period."""
    draw = random.Random(seed)
    known = min(2000, vocab)
    follow = [draw.sample(range(known), 8) for _ in range(known)]
    token, tokens = 0, []
    for _ in range(count):
        token = follow[token][min(int(draw.expovariate(0.7)), 7)]
        tokens.append(token)
    path.write_bytes(struct.pack(f"<{count}H", *tokens))


def distance(losses, exact):
    """The root mean square and the largest difference of the losses of all steps."""
    apart = [abs(a - b) for a, b in zip(losses, exact)]
    return math.sqrt(sum(d * d for d in apart) / len(apart)), max(apart)


def loss(run, cases):
    # Weights are large, and not kept with the results.
    with tempfile.TemporaryDirectory() as folder:
        compare_losses(run, cases, pathlib.Path(folder) / "weights.safetensors")


def compare_losses(run, cases, weights):
    case, steps = cases[0], run.options.steps
    warmup = min(10, steps // 3)
    tokens = run.folder / "chain.bin"
    # All tokens are in each step, whatever their order.
    write_chain(tokens, case["batch"] * case["seq"], case["vocab"])
    run.note("weights ...")
    made, why = run.torch("weights", "weights", json.dumps(case), "--weights", weights)
    if made is None:
        run.fail(loss=None, failed=why)
        return
    mode = run.options.modes.split(",")[0] or "compile"

    def torch(name, precision, residual, mode):
        # What cannot be compiled, as where there is no compiler of C, runs eagerly.
        for how in dict.fromkeys([mode, "eager"]):
            found, why = run.torch(
                f"loss-{name}-{how}".replace(" ", "-"), "loss", json.dumps(case), f"--mode={how}",
                f"--precision={precision}", f"--residual={residual}", f"--steps={steps}",
                f"--warmup={warmup}", "--rate=3e-4", "--weights", weights, "--tokens", tokens)
            if found:
                return found["losses"], ""
            run.say(loss=name, mode=how, why=why)
        return None, why

    def cleave(own):
        lines, why = run.train(
            f"loss-cleave-{own['residual']}", own["artifact"], steps,
            "--weights", weights, "--data", tokens, "--lr=3e-4", f"--warmup={warmup}",
            "--lr-schedule=constant")
        return ([line["loss"] for line in lines], "") if lines else (None, why)

    def cleave_name(own):
        return f"cleave bf16, residual {own['residual']}"

    # Cleave's default, and what autocast does, come first.
    cases = sorted(cases, key=lambda own: own["residual"] != "16bit")
    work = [("torch f32", lambda: torch("torch f32", "f32", "f32", "eager")),
            (cleave_name(cases[0]), lambda: cleave(cases[0])),
            ("torch bf16, residual f32", lambda: torch("torch bf16 f32", "bf16", "f32", mode)),
            ("torch bf16, residual 16bit", lambda: torch("torch bf16 16bit", "bf16", "16bit",
                                                         mode))]
    work += [(cleave_name(own), lambda own=own: cleave(own)) for own in cases[1:]]
    found = {}
    for name, function in work:
        if not run.enough(name):
            continue
        losses, why = function()
        if losses is None or len(losses) != steps:
            run.fail(loss=name, failed=why or f"{len(losses or [])} losses")
            continue
        found[name] = losses
    exact = found.get("torch f32")
    rows = []
    shown = sorted({1, min(10, steps), min(50, steps), steps})
    for name, losses in found.items():
        rms, most = distance(losses, exact) if exact else (None, None)
        at = [losses[step - 1] for step in shown]
        run.say(loss=name, steps=shown, losses=at, rms=rms, largest=most)
        rows.append([name, *[f"{value:.4f}" for value in at], rms, most])
    # Of each type of the residual stream.
    for own in cases:
        ours = found.get(cleave_name(own))
        theirs = found.get(f"torch bf16, residual {own['residual']}")
        if not (exact and ours and theirs):
            run.fail(residual=own["residual"], passed=False,
                     why="not all that is compared has run")
            continue
        a, b = (distance(losses, exact)[0] for losses in (ours, theirs))
        passed = a <= LOSS_BOUND * b
        (run.say if passed else run.fail)(residual=own["residual"], passed=passed, cleave_rms=a,
                                          torch_rms=b, ratio=ratio(a, b), bound=LOSS_BOUND)
    run.table("losses; rms and largest difference from f32",
              ["", *[f"step {step}" for step in shown], "rms", "largest"], rows)


# --------------------------------------------------------------------------------------


def choose(cases, only):
    """Cases by names, or by what names begin with; all if none are given."""
    if not only:
        return cases
    words = only.split(",")
    names = {case["name"] for case in cases}
    return [case for case in cases
            if any(case["name"] == word or word not in names and case["name"].startswith(word)
                   for word in words)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("part", choices=list(LIMITS))
    add("--only", default="", metavar="NAMES", help="of cases, with commas, or what names "
        "begin with")
    add("--list", action="store_true", help="print the names of cases, and run nothing")
    add("--limit", type=float, metavar="SECONDS",
        help="for all; what is left then is skipped, and said to be (default: " + ", ".join(
            f"{seconds} for {part}" for part, seconds in LIMITS.items()) + ")")
    add("--steps", type=int, help="bench: steps that are timed (default: 30); loss: steps of each "
        "training (default: 100)")
    add("--modes", default="compile,max-autotune", help="of PyTorch, with commas: eager, compile, "
        "or modes of torch.compile; loss takes the first (default: %(default)s)")
    add("--torch-parts", type=int, metavar="N",
        help="bench: micro-batches of PyTorch (default: as many as Cleave's)")
    add("--trace-steps", type=int, default=4, metavar="N", help="bench: steps that are traced "
        "first, of which the last gives the rates of kernels; 0: none (default: %(default)s)")
    add("--least-mb", type=float, default=64, metavar="MB", help="bench: the rates of commands "
        "that move more are printed (default: %(default)g)")
    add("--sustain", type=float, default=2, metavar="SECONDS", help="all: of each of the five "
        "largest products (default: %(default)g)")
    add("--checkers", default=",".join(CHECKERS), metavar="NAMES",
        help="sanitize: tools of compute-sanitizer, with commas (default: %(default)s)")
    add("--out", metavar="FOLDER", help="keep results (results.jsonl, tables.txt), logs and "
        "traces there")
    options = parser.parse_args()
    known = json.loads((HERE / "cases.json").read_text())
    if options.part == "all":
        options.modes = options.modes.split(",")[0]
        cases = {part: choose(known[part], options.only) for part in ("test", "nccl", "bench")}
        cases = cases if any(cases.values()) else {}
    else:
        cases = choose(known[options.part], options.only)
    if options.list:
        parts = cases.values() if options.part == "all" else [cases]
        print("\n".join(case["name"] for part in parts for case in part))
        return
    if not cases:
        parser.error(f"no case of {options.part} is named '{options.only}': see --list")
    if options.limit is None:
        options.limit = LIMITS[options.part]
    if options.steps is None:
        options.steps = 100 if options.part == "loss" else 30
    if options.steps < 1 or options.trace_steps < 0:
        parser.error("--steps must be at least 1, and --trace-steps at least 0")
    out = pathlib.Path(options.out or ("results" if options.part == "all" else
                                       tempfile.mkdtemp()))
    out.mkdir(parents=True, exist_ok=True)
    # One call leaves few files.
    folder = pathlib.Path(tempfile.mkdtemp()) if options.part == "all" else out
    # Programs are large, and not kept with the results.
    programs = pathlib.Path(tempfile.mkdtemp())
    try:
        run = Run(options, folder, programs)
        run.say(part=options.part, machine=machine(), python=sys.version.split()[0],
                libraries=versions(), limit_s=options.limit)
        {"test": test, "bench": bench, "loss": loss, "sanitize": sanitize,
         "all": everything}[options.part](run, cases)
        if run.skipped:
            print("\nskipped, for --limit: " + "; ".join(run.skipped))
    finally:
        shutil.rmtree(programs, ignore_errors=True)
        if options.part == "all":
            run.lines.flush()
            for tokens in folder.glob("*.bin"):  # They can be drawn again.
                tokens.unlink()
            one_call.archive(folder, out, one_call.name_of(machine()))
            for name in ("results.jsonl", "tables.txt"):
                if (folder / name).exists():
                    shutil.copy(folder / name, out / name)
        if folder != out or not options.out and options.part != "all":
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if run.failed else 0)


if __name__ == "__main__":
    main()
