"""Breaks down the time of a compiled JAX step with JAX's profiler."""

import pathlib
import re
import tempfile
import time

import jax

# Named scopes of the model, by which instructions are classified.
ATTENTION, OPTIMIZER = "attention_matmul", "adamw_update"
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
COLLECTIVES += ("collective-permute",)


def instructions(text):
    """Returns the kind of work of each instruction of an HLO module, by its name."""
    # 1. Find the computations that contain a matrix multiplication.
    computation, multiplies, found = "", set(), []
    for line in text.splitlines():
        if header := re.match(r"(?:ENTRY )?%?([\w.-]+) .*\{$", line):
            computation = header[1]
        elif part := re.match(r"\s+(?:ROOT )?%?([\w.-]+) = .*?\s([\w-]+)\(", line):
            found.append((part[1], part[2], line))
            if part[2] == "dot":
                multiplies.add(computation)
    # 2. Classify each instruction.
    kinds = {}
    for name, operation, line in found:
        called = re.search(r"calls=%?([\w.-]+)", line)
        if operation.startswith(COLLECTIVES):
            kinds[name] = "communication"
        elif OPTIMIZER in line:
            kinds[name] = "optimizer"
        elif ATTENTION in line:
            kinds[name] = "attention"
        elif operation == "dot" or (called and called[1] in multiplies):
            kinds[name] = "contractions"
        else:
            kinds[name] = "row_wise"
    return kinds


def add_times(events, kinds, times):
    """Adds the exclusive times of one thread's events to `times`, in milliseconds by kind."""
    around = []
    for event in sorted(events, key=lambda e: (e.start_ns, -e.duration_ns)):
        while around and around[-1][0] <= event.start_ns:
            around.pop()
        outer = around[-1][1] if around else None
        kind = kinds.get(event.name, outer)
        for what, sign in ((kind, 1), (outer, -1)):
            if what:
                times[what] += sign * event.duration_ns / 1e6
        around.append((event.start_ns + event.duration_ns, kind))


def breakdown(step, text, devices):
    """Returns the milliseconds of one `step()` by kind of work, the mean over devices.

    `text` is the HLO of the step. The time of a collective includes waiting for the other
    devices; time in which no thread runs an instruction is idle.
    """
    kinds = instructions(text)
    times = dict.fromkeys(
        ("contractions", "attention", "row_wise", "optimizer", "communication"), 0.0
    )
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            start = time.perf_counter()
            step()
            total = (time.perf_counter() - start) * 1e3
        for path in pathlib.Path(folder).rglob("*.xplane.pb"):
            data = jax.profiler.ProfileData.from_file(str(path))
            for plane in data.planes:
                for line in plane.lines:
                    add_times(line.events, kinds, times)
    times = {kind: value / devices for kind, value in times.items()}
    times["idle"] = total - sum(times.values())
    return times
