"""Compares the step time of GPT-2 on two devices with PyTorch and JAX, on two cores.

A device is a single-threaded rank: a thread of Cleave, a process of PyTorch, or a virtual device of
JAX. Workers are measured as in run.py: each is a separate process, steps are interleaved, and
medians are reported. A peer (a worker of another framework) is first run with each of its settings,
and the fastest one is measured. All workers start from the same weights and must compute equal
losses, up to rounding. Results are printed as JSON lines.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys

import harness
from harness import Worker

CORES = 2
SINGLE_RANK = "cleave, one rank"
RECIPES = {
    SINGLE_RANK: [],
    "cleave tp=2": ["--mesh", "tp=2", "--plan", "megatron"],
    "cleave tp=2, sp": ["--mesh", "tp=2", "--plan", "megatron-sp"],
    "cleave dp=2": ["--mesh", "dp=2"],
    "cleave dp=2, zero1": ["--mesh", "dp=2", "--plan", "zero1"],
}

# The settings of the peers; which one is fastest depends on the machine.
PEERS = {
    "DDP": {
        "eager": ["torch", "--kind", "ddp"],
        "compiled": ["torch", "--kind", "ddp", "--compile"],
    },
    "DTensor tp=2": {
        "eager": ["torch", "--kind", "tp"],
        "compiled": ["torch", "--kind", "tp", "--compile"],
        "sequence-parallel, compiled": ["torch", "--kind", "tp-sp", "--compile"],
    },
}
for kind in ("dp", "tp"):
    PEERS[f"JAX {kind}=2"] = {
        "threads shared": ["jax", "--kind", kind],
        "one thread each": ["jax", "--kind", kind, "--matmul", "one-thread"],
        "Eigen": ["jax", "--kind", kind, "--matmul", "eigen"],
    }

# The workers that are measured together (memory is too small for all at once), and the pairs
# whose ratios of medians are reported.
GROUPS = {
    "tp": (
        [SINGLE_RANK, "cleave tp=2", "cleave tp=2, sp", "DTensor tp=2", "JAX tp=2"],
        [
            ("cleave tp=2", SINGLE_RANK),
            ("cleave tp=2, sp", SINGLE_RANK),
            ("cleave tp=2", "DTensor tp=2"),
            ("cleave tp=2", "JAX tp=2"),
        ],
    ),
    "dp": (
        [SINGLE_RANK, "cleave dp=2", "DDP", "JAX dp=2"],
        [
            ("cleave dp=2", SINGLE_RANK),
            ("cleave dp=2", "DDP"),
            ("cleave dp=2", "JAX dp=2"),
        ],
    ),
    "zero1": (
        [SINGLE_RANK, "cleave dp=2", "cleave dp=2, zero1"],
        [("cleave dp=2, zero1", SINGLE_RANK), ("cleave dp=2, zero1", "cleave dp=2")],
    ),
}

# The largest relative difference of losses of workers, which round differently.
LOSS_TOLERANCE = 1e-3


def log(text):
    print(text, file=sys.stderr, flush=True)


def pin_to_cores():
    """Pins this process and its children to two cores. Raises SystemExit if there are fewer."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < CORES:
        raise SystemExit(f"error: this needs {CORES} cores; there is {len(cores)}")
    os.sched_setaffinity(0, cores[:CORES])


def has_jax():
    """Returns whether JAX is installed; logs how to install it otherwise."""
    if importlib.util.find_spec("jax"):
        return True
    log(
        f"JAX is left out; to include it: {sys.executable} -m pip install "
        f"-r {harness.HERE / 'requirements.txt'}"
    )
    return False


def start_cleave(name, base, options):
    """Compiles the case with the flags of `name` in RECIPES; returns its worker."""
    flags = RECIPES[name]
    artifact = f"{base}-{re.sub('[^a-z0-9]+', '-', name)}.so"
    harness.compile_case(
        base, options.build, 1 if flags else CORES, artifact, flags
    )
    command = harness.cleave_command(base, artifact, CORES)
    return Worker(name, command, CORES)


def peer_command(model, base, script, *flags):
    command = [sys.executable, harness.SCRIPTS / f"{script}_devices.py", *flags]
    if script == "torch":
        return command + ["--model", model]
    heads = json.loads(base.with_name(base.name + ".json").read_text())["heads"]
    command += ["--weights", f"{base}.safetensors", "--ids", f"{base}.npy"]
    return command + ["--heads", heads]


def start_peer(name, model, base):
    """Returns the peer with the fastest of its settings, or None if none works."""
    tried = {}
    for setting, (script, *flags) in PEERS[name].items():
        try:
            peer = Worker(name, peer_command(model, base, script, *flags), 1)
            peer.step(measured=False)
            tried[setting] = peer
        except SystemExit as error:
            log(f"{name}, {setting}, is left out: {error}")
    if not tried:
        return None
    # The first step includes compilation; the fastest of the others is compared.
    rounds = [
        {setting: peer.step(measured=False) for setting, peer in tried.items()}
        for _ in range(3)
    ]
    best_ms = {setting: min(r[setting] for r in rounds) for setting in tried}
    chosen = min(best_ms, key=best_ms.get)
    for setting, peer in tried.items():
        if setting != chosen:
            peer.quit()
    tried[chosen].facts.update(setting=chosen, tried_ms=best_ms)
    return tried[chosen]


def loss_spread(workers):
    """Returns the largest relative difference between the workers' losses of one step."""
    steps = zip(*(c.losses for c in workers))
    return max((max(losses) - min(losses)) / max(losses) for losses in steps)


def result_of(worker):
    """Ends the worker; returns its measurements."""
    facts = worker.facts
    result = {
        "median_ms": worker.median(),
        "min_ms": min(worker.times),
        "breakdown_ms": worker.request("profile"),
        "losses": [worker.losses[0], worker.losses[-1]],
        **{key: facts[key] for key in ("setting", "tried_ms") if key in facts},
        **worker.quit(),
    }
    if "arena" in facts:
        result["arena_mib_per_rank"] = facts["arena"] / 2**20
        result["library_mib"] = facts["library_workspace"] / 2**20
    return result


def run_group(group, model, base, options, jax):
    names, pairs = GROUPS[group]
    workers = [
        start_peer(name, model, base)
        for name in names
        if name in PEERS and (jax or not name.startswith("JAX"))
    ]
    workers = [start_cleave(n, base, options) for n in names if n in RECIPES] + [
        peer for peer in workers if peer
    ]
    for round_ in range(options.warmup + options.steps):
        for worker in workers:
            worker.step(measured=round_ >= options.warmup)
    spread = loss_spread(workers)
    results = {c.name: result_of(c) for c in workers}
    summary = {
        "case": model,
        "group": group,
        "cores": CORES,
        "ratios": {
            f"{a} / {b}": results[a]["median_ms"] / results[b]["median_ms"]
            for a, b in pairs
            if a in results and b in results
        },
        "loss_spread": spread,
        "results": results,
    }
    print(json.dumps(summary), flush=True)
    return summary


def show(summary):
    """Prints a summary to standard error."""
    log(f"{summary['case']}, {summary['group']}:")
    for name, r in summary["results"].items():
        setting = f"; {r['setting']}" if "setting" in r else ""
        arena = r.get("arena_mib_per_rank")
        arena = f", arena {arena:.0f}" if arena else ""
        log(
            f"  {name:19} {r['median_ms']:7.0f} ms   {r['vm_hwm_mib']:6.0f} MiB, "
            f"a rank {r['vm_hwm_mib_per_rank']:.0f}{arena}"
            f"   ({harness.describe(r['breakdown_ms'])}{setting})"
        )
    for name, ratio in summary["ratios"].items():
        log(f"  {name}: {ratio:.2f}")


def measure_communicator(build):
    """Prints the times of collectives between threads, relative to a copy of as many bytes."""
    program = build / "bin" / "cleave-communicator-bench"
    if not program.exists():
        log(
            "The communicator is left out; to include it: "
            f"ninja -C {build} {program.name}"
        )
        return
    said = subprocess.run(
        [program, str(CORES), "64"], check=True, capture_output=True, text=True
    ).stdout
    rows = re.findall(r"^(\S.*?) +([\d.]+) ms +([\d.]+) x copy$", said, re.M)
    ratios = {name: float(ratio) for name, _, ratio in rows if name != "copy"}
    print(json.dumps({"communicator_mib": 64, "over_copy": ratios}), flush=True)
    parts = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    log(f"collectives of 64 MiB / copy: {parts}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    harness.add_options(parser)
    parser.add_argument(
        "--group", action="append", choices=GROUPS, help="measure these only"
    )
    options = harness.parse(parser, **harness.SMALL)
    options.build = options.build.resolve()
    pin_to_cores()
    folder = harness.make_folder()
    jax = has_jax()
    wrong = []
    for model in options.case or ["gpt2-124m"]:
        if not model.startswith("gpt2-"):
            raise SystemExit(f"error: '{model}' is not a GPT-2; the peers train only GPT-2")
        base = harness.trace_case(model, 0.0, folder)
        for group in options.group or GROUPS:
            summary = run_group(group, model, base, options, jax)
            show(summary)
            if not summary["loss_spread"] < LOSS_TOLERANCE:
                wrong.append(f"{model}, {group}: {summary['loss_spread']:.1e}")
    measure_communicator(options.build)
    if wrong:
        raise SystemExit(f"error: losses differ between workers: {wrong}")


if __name__ == "__main__":
    main()
