# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Runs the examples, each in a process of its own, and collects their pictures in pictures/."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent

#: The examples, and the pictures that they draw.
PICTURES = {
    "four_d": "ranks", "launch_training": "launch", "pdadmm": "pdadmm", "crossover": "crossover", "hemingway": "hemingway",
    "parameter_server": "parameter_server", "bounded_staleness": "bounded_staleness",
    "backup_workers": "backup_workers", "interlocking_resnet": "interlocking_resnet",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PICTURES, default=list(PICTURES))
    parser.add_argument("--work", type=pathlib.Path, default=HERE.parent / "out" / "gallery")
    parser.add_argument("--pictures", type=pathlib.Path, default=HERE / "pictures")
    parser.add_argument("--smoke", action="store_true", help="only try them, small and short")
    options = parser.parse_args()
    options.pictures.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(HERE.parent / "python"), *filter(None, [environment.get("PYTHONPATH")])])
    for name in options.only:
        print(f"== {name}", flush=True)
        command = [sys.executable, str(HERE / f"{name}.py"), "--work", str(options.work / name)]
        done = subprocess.run(command + ["--smoke"] * options.smoke, env=environment)
        if done.returncode:
            raise SystemExit(f"error: {name}.py ended with {done.returncode}")
        shutil.copy(options.work / name / f"{PICTURES[name]}.svg", options.pictures)


if __name__ == "__main__":
    main()
