"""The protocol of a worker: one command per input line, and one JSON line per answer.

`step` runs one training step and answers {"ms", "loss"}; `profile` answers the milliseconds of
one step by kind of work; `quit` answers {"vm_hwm_mib"}, the peak memory, and ends the process.
"""

import json
import sys
import time


def peak_mib():
    """Returns the peak resident memory of this process (VmHWM), in MiB."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def own_memory():
    """Returns the answer to `quit` of a worker of one process."""
    return {"vm_hwm_mib": peak_mib()}


def serve(step, profile, facts, memory=own_memory):
    """Prints `facts`, then answers commands until `quit`.

    `step()` returns the loss, `profile()` the milliseconds by kind of work, and `memory()` the
    answer to `quit`, which includes "vm_hwm_mib".
    """

    def answer(value):
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    answer({"ready": True, **facts})
    for line in sys.stdin:
        command = line.strip()
        if command == "step":
            start = time.perf_counter()
            loss = step()
            answer({"ms": (time.perf_counter() - start) * 1e3, "loss": loss})
        elif command == "profile":
            answer(profile())
        elif command == "quit":
            answer(memory())
            return
        else:
            answer({"error": f"unknown command '{command}'"})
