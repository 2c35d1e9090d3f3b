# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""NCCL by two processes on one card: losses beside the CPU's, what is said when a process is
killed, and what NCCL and the driver cost (nccl_costs.py).

NCCL refuses ranks that share a GPU ("Duplicate GPU detected", "Multiple Ranks are using the same
GPU") unless they believe to be on different hosts, or, from 2.30 on, are told that they may. Both
ways are tried. Where it refuses both, that is said, and nothing of it is shown: no failure."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import kernel_rates
from session import HERE

#: The environment of a rank of NCCL where two processes share a card.
NCCL = {"CLEAVE_NCCL": "on", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1",
        "NCCL_NET": "Socket", "NCCL_MAX_CTAS": "2", "NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "WARN"}
#: How NCCL is brought to take two processes of one card.
WAYS = {"hosts": lambda rank: {"NCCL_HOSTID": f"cleave-{rank}"},
        "one host": lambda rank: {"NCCL_MULTI_RANK_GPU_ENABLE": "1",
                                  "CUDA_DEVICE_MAX_CONNECTIONS": "32"}}
REFUSAL = "invalid usage"
#: A rank that is gone is said to be within so many seconds.
MOST_SILENCE = 20
#: Parts of nccl_costs.py, how many processes each has, and its seconds. That one communicator's
#: abort waits for another's exchange, until the process is ended here, is a result.
COSTS = {"host": (2, 20), "launches": (1, 20), "lazy": (1, 30), "abort-grouped": (2, 15),
         "watchdog": (2, 30), "abort": (2, 10)}
MAY_HANG = ("abort",)


class Card:
    """The card of a run, with the environment of a process that uses it and the way that works."""

    def __init__(self, run, environment):
        self.run, self.environment, self.way = run, environment, None

    def start(self, name, ranks, command, variables=lambda rank: {}):
        """A process for each rank, by `command(rank)`; what it says is in a file of its own."""
        found = []
        for rank in range(ranks):
            with open(self.file(name, rank), "w") as said:
                found.append(subprocess.Popen(
                    [str(word) for word in command(rank)], stdout=said, stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL, start_new_session=True,
                    env={**self.environment, **NCCL, **WAYS[self.way](rank), **variables(rank)}))
        return found

    def file(self, name, rank):
        return self.run.folder / f"nccl-{name}.{rank}.txt"

    def said(self, name, ranks):
        return [self.file(name, rank).read_text(errors="replace").strip() for rank in range(ranks)]

    def train(self, case, name, steps, *flags):
        """Processes of cleave-run, all with the same flags: the first writes the files."""
        port = free_port()
        command = [self.run.program(), self.run.artifact(case["artifact"]), f"--steps={steps}",
                   "--random-init", "--data", self.run.tokens(), "--lr=1e-3", "--label-shift=0",
                   f"--ranks-per-device={case['ranks']}", *flags]
        return self.start(name, case["ranks"], lambda rank: command, lambda rank: {
            "RANK": str(rank), "WORLD_SIZE": str(case["ranks"]), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(case["ranks"]), "CLEAVE_PORT": port})

    def measure(self, part, ranks, seconds, *flags):
        """The findings of a part of nccl_costs.py: codes, lines, and the last words of a rank that
        failed."""
        with tempfile.TemporaryDirectory() as meeting:
            codes = end(self.start(part, ranks, lambda rank: [
                sys.executable, HERE / "nccl_costs.py", part, f"--rank={rank}",
                f"--ranks={ranks}", f"--meet={meeting}", *flags]), min(seconds, self.run.left()))
        said = self.said(part, ranks)
        lines = [json.loads(line) for line in said[0].splitlines() if line.startswith("{")]
        why = [text[-300:] for text, code in zip(said, codes) if code != 0]
        return codes, lines, "; ".join(filter(None, why))


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


def end(processes, seconds):
    """Their codes, None for one that is ended here. Of what one cannot end alone, the others are
    not waited for longer than a few seconds."""
    due, codes = time.time() + seconds, {}
    while len(codes) < len(processes) and time.time() < due:
        for number, process in enumerate(processes):
            if number not in codes and process.poll() is not None:
                codes[number] = process.returncode
                if process.returncode:
                    due = min(due, time.time() + MOST_SILENCE)
        time.sleep(0.02)
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return [codes.get(number) for number in range(len(processes))]


def nccl(run, cases, environment):
    if not cases or not run.enough("nccl"):
        return
    card = Card(run, environment)
    if not find_way(card):
        return
    train(card, cases)
    if run.enough("nccl: a rank is killed"):
        killed(card, cases[-1])
    costs(card)


def find_way(card):
    """Whether NCCL connects two processes on this card; the bytes of communicators are asked for
    by each way."""
    refused = True
    for way in WAYS:
        card.way = way
        codes, lines, why = card.measure("memory", 2, 40)
        works = codes == [0, 0] and bool(lines)
        refused &= works or REFUSAL in why
        card.run.say(nccl="two processes on one card", way=way, works=works, codes=codes, why=why)
        if works:
            for line in lines:
                card.run.say(nccl="memory", **line)
            card.run.table("bytes of the device for each communicator and rank",
                           ["communicator", "created", "first collective", "first message"],
                           [[line["communicator"], line["bytes_created"],
                             line["bytes_first_collective"], line["bytes_first_message"]]
                            for line in lines])
            return True
    say = card.run.say if refused else card.run.fail
    say(nccl=None, refused=refused, why="NCCL refuses two ranks on one card: nothing of it is "
        "shown" if refused else "two processes on one card could not be connected")
    return False


def train(card, cases):
    """Losses of two processes beside the CPU's, and the host's times of collectives."""
    run, rows, collectives = card.run, [], []
    for case in cases:
        name = case["name"]
        if not run.enough(f"nccl {name}"):
            continue
        log, trace = run.folder / f"nccl-{name}.log", run.folder / f"nccl-{name}.trace.json"
        codes = end(card.train(case, name, case["steps"], "--log", log, "--trace", trace,
                               "--trace-steps=4"), min(120, run.left()))
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        losses = [line["loss"] for line in lines if "loss" in line]
        difference = max((abs(a - b) / abs(a) for a, b in zip(case["losses"], losses)),
                         default=None)
        passed = codes == [0] * case["ranks"] and len(losses) == len(case["losses"]) \
            and difference <= case["bound"]
        why = "" if passed else "; ".join(text[-300:] for text in card.said(name, case["ranks"]))
        (run.say if passed else run.fail)(nccl=name, passed=passed, codes=codes, why=why,
                                          difference=difference, bound=case["bound"])
        rows.append([name, "passed" if passed else "FAILED", difference, case["bound"]])
        if trace.exists():
            for row in kernel_rates.collectives(trace):
                run.say(nccl=name, **row)
                collectives.append([f"{name} {row['label']}", row["count"], row["us_each"]])
    run.table("NCCL by two processes on one card, beside the processor",
              ["case", "", "difference", "bound"], rows)
    run.table("collectives of these, on the host's clock", ["label", "count", "us"], collectives)


def killed(card, case):
    """Whether the other rank says so in time."""
    run, log = card.run, card.run.folder / "nccl-killed.log"
    processes = card.train(case, "killed", 1_000_000, "--log", log)
    due = time.time() + min(60, run.left())
    while time.time() < due and not (log.exists() and log.stat().st_size) and all(
            process.poll() is None for process in processes):
        time.sleep(0.1)
    began = time.time()
    if processes[1].poll() is None:
        os.killpg(processes[1].pid, signal.SIGKILL)
    codes = end(processes, MOST_SILENCE)
    said = card.said("killed", 1)[0].splitlines()
    passed = log.exists() and codes[0] not in (0, None)
    (run.say if passed else run.fail)(nccl="a rank is killed", passed=passed, codes=codes,
                                      case=case["name"], seconds=round(time.time() - began, 1),
                                      says=said[-1] if said else None)


def costs(card):
    run, rows = card.run, []
    for part, (ranks, seconds) in COSTS.items():
        if not run.enough(f"nccl: {part}"):
            continue
        codes, lines, why = card.measure(part, ranks, seconds)
        for line in lines:
            run.say(nccl=part, **line)
            rows += [[f"{part} {key}", value] for key, value in line.items()]
        if codes != [0] * ranks or not lines:
            hangs = None in codes and part in MAY_HANG
            (run.say if hangs else run.fail)(nccl=part, hangs=hangs, codes=codes, why=why)
            rows.append([part, "does not end" if hangs else "FAILED"])
    run.table("what NCCL and the driver cost the host", ["", "found"], rows)
