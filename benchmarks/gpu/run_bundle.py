# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs a bundle (bundle.py) on a machine with a GPU: `test` compares losses with those of the
processor; `bench` times steps beside PyTorch's. Prints JSON lines; the status is 1 if a test fails.
Needs nothing but Python, except that `bench` and NVIDIA's libraries are of the torch there."""

import argparse
import glob
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
#: Dense 16-bit FLOP/s of H100 and H200, by which utilisation is given.
PEAK = 989e12


def environment():
    """With the libraries of the bundle, and those of NVIDIA of this Python."""
    folders = [os.environ.get("CLEAVE_CUDA_LIBRARIES", "")]
    for path in sys.path:
        folders += sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib")))
    libraries = [str(HERE / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
            "CLEAVE_CUDA_PLUGIN": str(HERE / "lib" / "libcleave_cuda.so"),
            "CLEAVE_CUDA_LIBRARIES": ":".join(filter(None, folders))}


def say(**facts):
    print(json.dumps(facts), flush=True)


def versions():
    query = "name,driver_version,memory.total"
    try:
        smi = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
                             capture_output=True, text=True, timeout=60).stdout.strip()
    except OSError:
        smi = "no nvidia-smi"
    say(machine=smi, python=sys.version.split()[0])


def train(artifact, steps, ranks=1, extra=()):
    """The lines of the log, or what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        command = [str(HERE / "bin" / "cleave-run"), str(artifact), "--random-init", "--data",
                   str(HERE / "tokens.bin"), f"--steps={steps}", "--lr=1e-3", "--log", str(log),
                   f"--ranks-per-device={ranks}", *extra]
        result = subprocess.run(command, env=environment(), capture_output=True, text=True,
                                timeout=500)
        if result.returncode:
            return None, (result.stderr.strip() or result.stdout.strip())[-500:]
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [line for line in lines if "loss" in line], ""


def test(cases):
    failed = 0
    for case in cases:
        began = time.time()
        lines, why = train(HERE / "cases" / f"{case['name']}.so", case["steps"], case["ranks"])
        if lines is None:
            failed += 1
            say(case=case["name"], passed=False, why=why)
            continue
        difference = max(abs(a - line["loss"]) / abs(a)
                         for a, line in zip(case["losses"], lines))
        passed = len(lines) == len(case["losses"]) and difference <= case["bound"]
        failed += not passed
        say(case=case["name"], passed=passed, ranks=case["ranks"], difference=difference,
            bound=case["bound"], last=lines[-1]["loss"], seconds=round(time.time() - began, 1))
    say(tests=len(cases), failed=failed)
    return failed == 0


def utilisation(case, seconds):
    """Of the peak, by 6 N + 12 L d T operations for a token."""
    weights = 12 * case["layers"] * case["hidden"] ** 2 + case["vocab"] * case["hidden"]
    each = 6 * weights + 12 * case["layers"] * case["hidden"] * case["seq"]
    return each * case["batch"] * case["seq"] / seconds / PEAK


def bench(cases, steps):
    for case in cases:
        artifact = HERE / "cases" / f"{case['name']}.so"
        lines, why = train(artifact, steps)
        if lines is None:
            say(model=case["name"], failed=why)
            continue
        ours = statistics.median(line["ms"] for line in lines[len(lines) // 3:]) / 1e3
        measured = [line["breakdown"] for line in lines if any(line["breakdown"].values())]
        say(model=case["name"], by="cleave", ms=1e3 * ours, mfu=utilisation(case, ours),
            tokens_per_s=case["batch"] * case["seq"] / ours, arena=case["arena"],
            outside=case["outside"], breakdown=measured[-1] if measured else None,
            loss=lines[-1]["loss"])
        best = None
        for mode in ("eager", "compile", "max-autotune"):
            result = subprocess.run(
                [sys.executable, str(HERE / "torch_gpt.py"), json.dumps(case), mode, str(steps)],
                capture_output=True, text=True, timeout=600)
            if result.returncode:
                say(model=case["name"], by=f"torch {mode}", failed=result.stderr[-300:])
                continue
            facts = json.loads(result.stdout.strip().splitlines()[-1])
            say(model=case["name"], by=f"torch {mode}", mfu=utilisation(case, facts["ms"] / 1e3),
                **facts)
            best = min(best or facts["ms"], facts["ms"])
        if best:
            say(model=case["name"], ratio=1e3 * ours / best)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["test", "bench"])
    parser.add_argument("--steps", type=int, default=30, help="steps that are timed")
    parser.add_argument("--only", default="", help="names of cases begin with this")
    options = parser.parse_args()
    cases = [case for case in json.loads((HERE / "cases.json").read_text())[options.part]
             if case["name"].startswith(options.only)]
    versions()
    passed = test(cases) if options.part == "test" else bench(cases, options.steps)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
