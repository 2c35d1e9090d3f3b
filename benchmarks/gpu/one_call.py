# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""All parts of run_bundle.py in one call on a GPU that is at hand for a few minutes, what is not in
another part, and the archive of the results."""

import json
import math
import os
import re
import shutil
import sys
import tarfile
import time
import traceback

import device_watch
import equality
import shared_card
import step_times
from session import environment

#: Seconds of each part of 530; what one does not need the later ones have.
BUDGETS = {"versions": 5, "equality": 55, "nccl": 75, "cleave": 120, "torch": 130, "products": 90,
           "ncu": 45}
#: Of a whole call: the rest is for the archive.
SECONDS = 530
#: Kernels that ncu looks at, by parts of their names.
NCU_KERNELS = 6


class Stages:
    """The time of each part: a part ends when those before it and it have had theirs."""

    def __init__(self, run):
        self.run = run

    def begin(self, name):
        names = list(BUDGETS)
        due = sum(BUDGETS[one] for one in names[: names.index(name) + 1])
        self.run.deadline = due * self.run.options.limit / SECONDS
        self.run.note(f"-- {name}")


# Products -----------------------------------------------------------------------------


def shapes_of(case):
    """The distinct products of a GPT: [name, m, n, k, transposed a, transposed b], column-major, so
    that m are features and n tokens of a micro-batch."""
    tokens, d = case["batch"] * case["seq"] // case["parts"], case["hidden"]
    found = []
    for name, rows, columns in (("qkv", 3 * d, d), ("out", d, d), ("up", 4 * d, d),
                                ("down", d, 4 * d), ("head", case["vocab"], d)):
        found += [[f"{case['name']} {name}", rows, tokens, columns, 1, 0],
                  [f"{case['name']} {name}, of inputs", columns, tokens, rows, 0, 0],
                  [f"{case['name']} {name}, of weights", columns, rows, tokens, 0, 1]]
    return found


def products(run, cases, environment):
    shapes = [shape for case in cases for shape in shapes_of(case)]
    if not shapes or not run.enough("products"):
        return
    seconds = run.left()
    said, why = run.execute([sys.executable, run.here / "products.py", json.dumps(shapes),
                             f"--seconds={0.8 * seconds:.0f}",
                             f"--sustain={run.options.sustain}"], "products", environment, seconds)
    if said is None:  # Measurements before it ended count.
        said = (run.folder / "products.out").read_text()
        run.fail(products=None, failed=why)
    rows = []
    for line in said.splitlines():
        facts = json.loads(line)
        if "from" in facts:
            facts["clocks"] = run.clocks.between(facts.pop("from"), facts.pop("to"))
        run.say(**facts)
        if "us" in facts:
            clocks = facts.get("clocks") or {}
            rows.append([facts["product"], facts["candidates"], facts["first_us"], facts["us"],
                         facts["tflops"], facts.get("sustained_tflops"), clocks.get("sm_mhz"),
                         clocks.get("watts")])
    run.table("products of cuBLASLt on random numbers, L2 overwritten",
              ["product", "candidates", "first us", "best us", "TFLOP/s", "sustained", "MHz",
               "watts"], rows)


# ncu ----------------------------------------------------------------------------------


def find_ncu():
    folders = [os.environ.get("PATH", "")]
    for toolkit in filter(None, [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]):
        folders.append(os.path.join(toolkit, "bin"))
    return shutil.which("ncu", path=os.pathsep.join(folders))


def profile(run, cases, environment):
    """Of a few kernels of a step of the first case, by Nsight Compute with the clocks as they are."""
    program = find_ncu()
    if not program:
        run.say(ncu=None, why="ncu is neither in PATH nor in $CUDA_HOME or /usr/local/cuda: "
                              "nothing is profiled")
        return
    if not cases or not run.enough("ncu"):
        return
    case = cases[0]
    said, why = run.execute(
        [program, "--clock-control", "none", "--target-processes", "all", "--csv",
         "--launch-skip", 200, "--launch-count", NCU_KERNELS, "--section", "SpeedOfLight",
         "--section", "Occupancy", run.program(), run.artifact(case["artifact"]), "--steps=3",
         "--random-init", "--data", run.tokens(case), "--label-shift=0"], "ncu", environment,
        run.left())
    rows = [] if said is None else re.findall(r'^"\d+",.*$', said, re.M)
    (run.fail if said is None else run.say)(ncu=program, lines=len(rows), why=why)


# --------------------------------------------------------------------------------------


def name_of(machine):
    """The folder of results: the date, and the hardware."""
    words = re.sub(r"[^a-z0-9]+", "-", machine.split(",")[0].lower()).strip("-") or "none"
    return f"{time.strftime('%Y-%m-%d', time.gmtime())}-{words}"


def archive(folder, out, name):
    """Everything of `folder` in `out`/all.tgz, below `name`."""
    path = out / "all.tgz"
    with tarfile.open(path, "w:gz") as packed:
        packed.add(folder, arcname=name)
    return path


def everything(run, cases):
    """Each part in turn, within its time; an error of one does not end the others."""
    stages = Stages(run)
    plain = [case for case in cases["bench"] if not case["flags"]]
    stages.begin("versions")
    with device_watch.Clocks(run.folder / "clocks.csv") as run.clocks:
        for name, part in (
                ("equality", lambda: equality.test(run, cases["test"])),
                ("nccl", lambda: shared_card.nccl(run, cases["nccl"], environment())),
                ("cleave", lambda: step_times.bench(run, plain, stages)),
                ("products", lambda: products(run, plain, environment())),
                ("ncu", lambda: profile(run, plain, environment()))):
            stages.begin(name)
            try:
                part()
            except Exception:  # pylint: disable=broad-except
                run.fail(part=name, failed=traceback.format_exc()[-1000:])
        run.deadline = math.inf
        run.say(samples=len(run.clocks.rows), of_the_clocks=bool(run.clocks.sample))
