# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""All parts of run_bundle.py in one call on a GPU that is at hand for a few minutes, what is not in
another part, and the archive of the results."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time

import kernel_rates

#: Seconds of each part of 530; what one does not need the later ones have.
BUDGETS = {"versions": 5, "equality": 60, "nccl": 60, "cleave": 120, "torch": 130, "products": 90,
           "ncu": 50}
#: Of a whole call: the rest is for the archive.
SECONDS = 530
#: What a rank of NCCL needs where two processes share a card.
NCCL = {"CLEAVE_NCCL": "on", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1",
        "NCCL_NET": "Socket", "NCCL_MAX_CTAS": "2", "NCCL_NVLS_ENABLE": "0"}
#: A rank that is gone is said to be within so many seconds.
MOST_SILENCE = 20
#: Kernels that ncu looks at, by parts of their names.
NCU_KERNELS = 6


class Stages:
    """The time of each part: a part ends when those before it and it have had theirs."""

    def __init__(self, run):
        self.run, self.due = run, 0.0

    def begin(self, name):
        self.due += BUDGETS[name] * self.run.options.limit / SECONDS
        self.run.deadline = self.due
        self.run.note(f"-- {name}")


# NCCL ---------------------------------------------------------------------------------


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


def start_ranks(run, case, environment, folder, steps, *flags):
    """A process of cleave-run for each rank, on one card."""
    port, processes = free_port(), []
    for rank in range(case["ranks"]):
        own = {**environment, **NCCL, "NCCL_HOSTID": f"cleave-{rank}", "RANK": str(rank),
               "WORLD_SIZE": str(case["ranks"]), "LOCAL_RANK": str(rank),
               "LOCAL_WORLD_SIZE": str(case["ranks"]), "CLEAVE_PORT": port}
        with open(folder / f"nccl-{case['name']}.{rank}.txt", "w") as said:
            processes.append(subprocess.Popen(
                [run.program(), run.artifact(case["artifact"]), f"--steps={steps}",
                 "--random-init", "--data", run.tokens(), "--lr=1e-3", "--label-shift=0",
                 f"--ranks-per-device={case['ranks']}",
                 *(flags if rank == 0 else [flag for flag in flags if "trace" not in str(flag)])],
                stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=own,
                start_new_session=True))
    return processes


def end(processes, seconds):
    """Their codes, None for one that is ended here."""
    due, codes = time.time() + seconds, []
    for process in processes:
        try:
            codes.append(process.wait(timeout=max(0.1, due - time.time())))
        except subprocess.TimeoutExpired:
            codes.append(None)
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return codes


def nccl(run, cases, environment):
    """Losses of two processes on one card, which exchange by NCCL, beside the processor's; host
    microseconds of its collectives; and what is said when one of them is killed."""
    rows, collectives = [], []
    for case in cases:
        if not run.enough(f"nccl {case['name']}"):
            continue
        log, trace = run.folder / f"nccl-{case['name']}.log", run.folder / "nccl.trace.json"
        trace = trace.with_name(f"nccl-{case['name']}.trace.json")
        before = run.used and run.used()
        processes = start_ranks(run, case, environment, run.folder, case["steps"], "--log", log,
                                "--trace", trace, "--trace-steps=4")
        codes = end(processes, min(120, run.left()))
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        losses = [line["loss"] for line in lines if "loss" in line]
        difference = max((abs(a - b) / abs(a) for a, b in zip(case["losses"], losses)),
                         default=None)
        passed = codes == [0] * case["ranks"] and len(losses) == len(case["losses"]) \
            and difference <= case["bound"]
        why = "" if passed else (run.folder / f"nccl-{case['name']}.0.txt").read_text()[-300:]
        (run.say if passed else run.fail)(nccl=case["name"], passed=passed, codes=codes, why=why,
                                          difference=difference, bound=case["bound"],
                                          used_before=before)
        rows.append([case["name"], "passed" if passed else "FAILED", difference, case["bound"]])
        if trace.exists():
            for row in kernel_rates.collectives(trace):
                run.say(nccl=case["name"], **row)
                collectives.append([f"{case['name']} {row['label']}", row["count"], row["us_each"]])
    run.table("NCCL by two processes on one card, beside the processor", ["case", "", "difference",
                                                                        "bound"], rows)
    run.table("collectives of these, on the host's clock", ["label", "count", "us"], collectives)
    if cases and run.enough("nccl: a rank is killed"):
        killed(run, cases[-1], environment)


def killed(run, case, environment):
    """Whether the other rank says so in time."""
    log = run.folder / "nccl-killed.log"
    processes = start_ranks(run, {**case, "name": "killed"}, environment, run.folder, 1_000_000,
                            "--log", log)
    due = time.time() + min(60, run.left())
    while time.time() < due and not (log.exists() and log.stat().st_size) and all(
            process.poll() is None for process in processes):
        time.sleep(0.1)
    began = time.time()
    if processes[1].poll() is None:
        os.killpg(processes[1].pid, signal.SIGKILL)
    codes = end(processes, MOST_SILENCE)
    said = (run.folder / "nccl-killed.0.txt").read_text().strip().splitlines()
    passed = log.exists() and codes[0] not in (0, None)
    (run.say if passed else run.fail)(nccl="a rank is killed", passed=passed, codes=codes,
                                      seconds=round(time.time() - began, 1),
                                      says=said[-1] if said else None)


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
    if not run.enough("products"):
        return
    seconds = run.left()
    said, why = run.execute([sys.executable, run.here / "products.py", json.dumps(shapes),
                             f"--seconds={0.8 * seconds:.0f}",
                             f"--sustain={run.options.sustain}"], "products", environment, seconds)
    if said is None:  # What was measured before it ended counts.
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


def profile(run, case, environment):
    """Of a few kernels of a step, by Nsight Compute with the clocks as they are."""
    program = find_ncu()
    if not program:
        run.say(ncu=None, why="ncu is neither in PATH nor in $CUDA_HOME or /usr/local/cuda: "
                              "nothing is profiled")
        return
    if not run.enough("ncu"):
        return
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
