# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs a bundle (bundle.py) on a machine with a GPU.

  test   trains small models, and compares their losses with those of the CPU
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
import json
import pathlib
import shutil
import sys
import tempfile

import equality
import losses
import one_call
import step_times
from session import HERE, Run, machine, versions

#: Seconds of each part, unless --limit is given: half an hour for all.
LIMITS = {"test": 540, "bench": 540, "loss": 540, "sanitize": 180, "all": one_call.SECONDS}
PARTS = {"test": equality.test, "bench": step_times.bench, "loss": losses.loss,
         "sanitize": equality.sanitize, "all": one_call.everything}

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
  all    of two processes that share the card by NCCL: how they could be connected, or that NCCL
         refuses them, which is no failure; differences of losses; microseconds of collectives on
         the host's clock; seconds until a rank says that the other was killed; and the figures of
         nccl_costs.py, whose --help says what they are. `hangs` of `abort` is a result.
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
    add("--checkers", default=",".join(equality.CHECKERS), metavar="NAMES",
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
        PARTS[options.part](run, cases)
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
