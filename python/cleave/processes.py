# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The processes that `mpirun`, `torchrun` or `srun` has started, as the ranks of a step."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import math
import os
import secrets
import sys
import threading
import time
import traceback
from typing import Any, Mapping

import torch

from . import messages

#: What `ranks` of `cleave.compile` may be.
WHERE = ("auto", "threads", "processes")


def connect(ranks: str, axes: Mapping[str, int]):
    """The processes that are the ranks of a mesh with `axes`; None if its ranks are
    threads of this process.

    Raises:
        ProcessError: The processes do not find each other.
        ValueError: `ranks` is unknown, or the launch has another number of processes than
            the mesh has devices.
    """
    from . import _cleave

    if ranks not in WHERE:
        raise ValueError(f"ranks is {ranks!r}; it must be 'auto', 'threads' or 'processes'")
    count = _cleave.launched_processes()
    if ranks == "threads" or (ranks == "auto" and count == 1):
        return None
    if count == 1:
        raise ValueError("ranks is 'processes', and nothing has started several: "
                         f"start the script with mpirun -n {math.prod(axes.values())} or "
                         f"torchrun --nproc-per-node {math.prod(axes.values())}")
    first = _cleave.processes() is None
    processes = _cleave.connect_processes(_secret() if first else "")
    if first:
        _watch(processes)
    if processes.size == 1 and ranks == "auto":
        return None  # The launcher did not say so.
    devices = math.prod(axes.values())
    if processes.size != devices:
        raise ValueError(
            f"the mesh has {devices} {'device' if devices == 1 else 'devices'}, but this launch "
            f"has {processes.size} processes; start it with mpirun -n {devices} or torchrun "
            f"--nproc-per-node {devices}, or give ranks=\"threads\" to let each process train "
            "by itself")
    return processes


def _secret() -> str:
    """What the processes that torchrun has started know and no others do: the first one leaves
    it in the launcher's store. "" where there is none."""
    if "CLEAVE_SECRET" in os.environ or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return ""
    from . import _cleave

    try:
        from torch.distributed import TCPStore

        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]),
                         is_master=False, wait_for_workers=False,
                         timeout=datetime.timedelta(seconds=_cleave.patience()))
        key = f"cleave/secret/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        if os.environ["RANK"] == "0":
            store.set(key, secrets.token_hex(32))
        return store.get(key).decode()
    except Exception as error:
        raise _cleave.ProcessError(
            f"the store of torchrun does not give the secret of the launch ({error}); set "
            "CLEAVE_SECRET to the same text in all processes") from error


def own_threads(threads: int) -> int:
    """The share of this process of `threads` cores that it may run on: the same in all."""
    from . import _cleave

    return _cleave.processes().smallest(max(1, threads // _cleave.processes_here()))


def agree(processes, options: Mapping[str, Any], seed: int, traced) -> None:
    """Compares what is compiled with what the other processes compile. Compiling in another
    thread compares nothing, since all processes would have to wait there: opening the
    program compares its result."""
    if processes is None or threading.current_thread() is not _watch.thread:
        return
    from . import __version__

    _compare(processes, {
        **options, "seed": seed, "version of Cleave": __version__,
        "version of torch": torch.__version__,
        "the traced model (hash)": hashlib.sha256(traced.named_mlir.encode()).hexdigest()[:16]})


def agree_on_values(processes, traced) -> None:
    """Compares the values of parameters and buffers with those of the other processes."""
    if processes is None:
        return
    from . import _cleave

    state = hashlib.blake2b(digest_size=8)
    for entry in (*traced.parameters, *traced.buffers):
        if not entry.tensor.is_meta:
            value = entry.tensor.detach().cpu().resolve_neg().contiguous().reshape(-1)
            state.update(entry.name.encode() + b"\0")
            state.update(value.view(torch.uint8).numpy())
    try:
        _compare(processes, {"the initial parameters (hash)": state.hexdigest()})
    except _cleave.ProcessError as error:
        raise _cleave.ProcessError(
            f"{error}; seed alike before the model is made (torch.manual_seed), or load the same "
            "weights in every process") from None


def _compare(processes, facts: Mapping[str, Any]) -> None:
    processes.agree([(name, value if isinstance(value, str) else json.dumps(value))
                     for name, value in facts.items()])


def _watch(processes) -> None:
    """What concerns the whole interpreter: an exception that nobody handles ends all
    processes, and the first one alone gives remarks."""
    _watch.thread = threading.current_thread()
    before = sys.excepthook

    def hook(kind, error, trace):
        own = traceback.format_exception_only(kind, error)[-1].strip()
        failed = processes.error()
        if failed and (own[:200] in failed or failed[:200] in own):
            print(f"rank {processes.rank} ends: {failed}", file=sys.stderr, flush=True)
        else:
            before(kind, error, trace)
        processes.fail(own)
        # Others report why they end before the launcher ends them.
        for _ in range(5):
            time.sleep(0.1)
            processes.error()

    sys.excepthook = hook
    if processes.rank > 0:
        messages.quiet = True
        logging.getLogger("cleave").addFilter(lambda record: record.levelno >= logging.ERROR)


_watch.thread = None
