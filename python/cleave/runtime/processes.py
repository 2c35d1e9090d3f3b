# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The processes that `mpirun`, `torchrun` or `srun` has started, as the ranks of a step."""

from __future__ import annotations

import atexit
import datetime
import hashlib
import json
import logging
import math
import os
import secrets
import signal
import sys
import threading
import time
import traceback
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Callable, Mapping, TypeVar

import torch

from .. import messages

if TYPE_CHECKING:
    from .. import _cleave
    from ..trace.model import TracedModel

T = TypeVar("T")

#: The values of `ranks` of `cleave.Launch` may be.
WHERE = ("auto", "threads", "processes")


def connect(ranks: str, axes: Mapping[str, int],
            patience: int | None = None) -> _cleave.Processes | None:
    """The processes that are the ranks of a mesh with `axes`; None if its ranks are
    threads of this process.

    Raises:
        ProcessError: The processes do not find each other.
        ValueError: `ranks` is unknown, or the launch has another number of processes than
            the mesh has devices.
    """
    from .. import _cleave

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
    if first and patience is not None:
        _cleave.set_patience(patience)
    processes = _cleave.connect_processes(_secret() if first else "")
    if first:
        _watch(processes)
    elif patience not in (None, _cleave.patience()):
        raise ValueError(f"patience is {patience}, but the processes of this launch have waited "
                         f"for each other with {_cleave.patience()} s since the first step was "
                         "compiled: give the same to all")
    if processes.size == 1 and ranks == "auto":
        return None  # The launcher did not say so.
    devices = math.prod(axes.values())
    if processes.size != devices:
        raise ValueError(
            f"the mesh has {devices} {'device' if devices == 1 else 'devices'}, but this launch "
            f"has {processes.size} processes; start it with mpirun -n {devices} or torchrun "
            f"--nproc-per-node {devices}, or give launch=\"threads\" to let each process train "
            "by itself")
    return processes


def _secret() -> str:
    """A secret of the processes that torchrun has started: the first one leaves
    it in the launcher's store. "" where there is none."""
    if "CLEAVE_SECRET" in os.environ or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return ""
    from .. import _cleave

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
    from .. import _cleave

    processes = _cleave.processes()
    if processes is None:
        raise RuntimeError("the processes are not connected")
    return processes.smallest(max(1, threads // _cleave.processes_here()))


def agree(processes: _cleave.Processes | None, options: Mapping[str, Any], seed: int,
          traced: TracedModel) -> None:
    """Compares what is compiled with what the other processes compile. Compiling in another
    thread compares nothing, since all processes would have to wait there: opening the
    program compares its result."""
    if processes is None or threading.current_thread() is not _first_thread:
        return
    from ..version import __version__

    _compare(processes, {
        **options, "seed": seed, "version of Cleave": __version__,
        "version of torch": torch.__version__,
        "the traced model (hash)": hashlib.sha256(traced.named_mlir.encode()).hexdigest()[:16]})


def agree_on_values(processes: _cleave.Processes | None, traced: TracedModel) -> None:
    """Compares the values of parameters and buffers with those of the other processes."""
    if processes is None:
        return
    from .. import _cleave

    state = hashlib.blake2b(digest_size=8)
    for entry in (*traced.parameters, *traced.buffers):
        if not entry.tensor.is_meta:
            value = entry.tensor.detach().cpu().resolve_neg().contiguous().reshape(-1)
            state.update(entry.name.encode() + b"\0")
            state.update(value.view(torch.uint8).numpy().data)
    try:
        _compare(processes, {"the initial parameters (hash)": state.hexdigest()})
    except _cleave.ProcessError as error:
        raise _cleave.ProcessError(
            f"{error}; seed alike before the model is made (torch.manual_seed), or load the same "
            "weights in every process") from None


def lead(processes: _cleave.Processes | None, what: str, work: Callable[[], T]) -> T:
    """The result of `work()` on the first process, which alone calls it, in all of them: plain
    data. If it raises there, all raise. The processes compare `what` before. With None,
    `work()`."""
    if processes is None:
        return work()
    processes.meet(what)
    value: T = _share(processes, work if processes.rank == 0 else None, what)
    return value


def together(processes: _cleave.Processes | None, what: str, work: Callable[[], T]) -> T:
    """The result of `work()` in this process; all call it, and if it raises in one of them, all
    raise. The processes compare `what` before. With None, `work()`."""
    if processes is None:
        return work()
    processes.meet(what)
    own: list[T] = []
    _share(processes, lambda: own.append(work()), what, each=True)
    return own[0]


def _share(processes: _cleave.Processes, work: Callable[[], object] | None, what: str,
           each: bool = False) -> Any:
    """The result of `work()` on the first process, unless `each` of them keeps its own; None: this
    one calls nothing."""
    raised: Exception | KeyboardInterrupt | None = None
    own = None
    processes.set_busy(work is not None)
    try:
        own = work() if work is not None else None
    except (Exception, KeyboardInterrupt) as error:
        raised = error
    finally:
        processes.set_busy(False)
    facts = ({"error": type(raised).__name__, "text": str(raised)} if raised is not None
             else {} if each else {"value": own})
    found = [json.loads(text) for text in processes.texts(json.dumps(facts))]
    if raised is not None:
        raise raised
    failed = next((rank for rank, one in enumerate(found) if "error" in one), None)
    if failed is not None:
        name, text = found[failed]["error"], found[failed]["text"]
        raise _like(name, f"rank {failed} cannot {what}: {text}")
    return None if each else found[0]["value"]


def _like(name: str, text: str) -> BaseException:
    """The exception of another process, of its kind where a text is all that this needs."""
    import builtins

    import cleave

    from ..feed import FeedError

    kind = {"FeedError": FeedError}.get(name) or getattr(builtins, name, None) or getattr(
        cleave, name, None)
    try:
        error = kind(text) if kind is not None else None
    except TypeError:
        error = None
    return error if isinstance(error, BaseException) else RuntimeError(f"{text} ({name})")


def _compare(processes: _cleave.Processes, facts: Mapping[str, Any]) -> None:
    processes.agree([(name, value if isinstance(value, str) else json.dumps(value))
                     for name, value in facts.items()])


#: The thread that has connected the processes.
_first_thread: threading.Thread | None = None


def _watch(processes: _cleave.Processes) -> None:
    """Sets up the whole interpreter: an exception that nobody handles ends all
    processes, and the first one alone gives remarks."""
    global _first_thread
    _first_thread = threading.current_thread()
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException,
             trace: TracebackType | None) -> None:
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
    _interrupt(processes)
    if processes.rank > 0:
        messages.quiet = True
        logging.getLogger("cleave").addFilter(lambda record: record.levelno >= logging.ERROR)


#: Seconds in which a process that does something else when another one fails may end by itself:
#: an exception is raised in its main thread, for what `finally` and `with` have to do.
GRACE = 10


def _interrupt(processes: _cleave.Processes) -> None:
    """Raises in the main thread, which made the processes, when they have failed and it does not
    notice: by a signal, which ends calls of the system too, and which nothing else uses."""
    from .. import _cleave

    said: list[str] = []
    main, ended = threading.main_thread(), threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if said:
            raise _cleave.ProcessError(said[0])

    def watch() -> None:
        while not processes.is_unnoticed(GRACE):
            if ended.wait(0.2):
                return
        said.append(processes.error())
        if main.ident is not None:
            signal.pthread_kill(main.ident, signal.SIGURG)

    def end() -> None:
        ended.set()
        thread.join()

    thread = threading.Thread(target=watch, name="cleave-launch", daemon=True)
    if threading.current_thread() is main and signal.getsignal(signal.SIGURG) == signal.SIG_DFL:
        signal.signal(signal.SIGURG, stop)
        thread.start()
        # A thread that holds what the module has made would keep it after its end.
        atexit.register(end)
