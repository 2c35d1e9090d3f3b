# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Trains small models, and compares their losses with those of the CPU: plainly, and under
the checkers of compute-sanitizer."""

import glob
import math
import os
import shutil
import sys
import time

from session import HERE

#: Checkers of compute-sanitizer: of memory accesses, of shared memory, and of barriers.
CHECKERS = ("memcheck", "racecheck", "synccheck")
#: The status with which compute-sanitizer ends where a checker has found something.
FOUND = 86


def compare_case(run, case, name, flags=(), **how):
    """Trains a small model; returns whether its losses are those of the CPU, and facts."""
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
