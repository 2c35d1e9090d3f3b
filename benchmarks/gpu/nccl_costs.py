# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The costs of NCCL and the driver for a process, measured by their binary interfaces. Prints a line of JSON
for each figure. Parts of two processes, each with --rank, which meet in the folder --meet:

  memory    bytes of the device that each communicator takes: created, after its first all-reduce,
            and after its first message
  host      microseconds of the host for an all-reduce: until the call has returned, and until NCCL
            says that it is under way, by communicators whose calls block and do not
  abort     the ends of two communicators in which the other rank does not take part, one after
            another
  abort-grouped  the same in one group
  watchdog  launches after a collective that does not end: which one the host waits in, and whether
            an abort by another thread frees it

and of one process:

  launches  1,100 launches after a kernel that is at work: which one the host waits in
  lazy      what waits for a kernel that is at work: loading a module and its kernel, the first
            launch of it, and the first product of cuBLASLt"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import sys
import threading
import time

from cuda_device import Device, check
from library_versions import open_library

CODE = """
extern "C" __global__ void spin(unsigned long long turns, unsigned *out) {
  unsigned x = *out;
  for (unsigned long long i = 0; i < turns; ++i)
    x = x * 1664525u + 1013904223u;
  *out = x;
}
extern "C" __global__ void nothing(unsigned *out) {
  if (*out == 77)
    *out = 1;
}
"""
LATER = 'extern "C" __global__ void later(unsigned *out) { *out = 3; }'
IN_PROGRESS, F32, SUM, NOT_READY = 7, 7, 0, 600
#: A call of the host has waited that takes longer than this share of the time of the kernel.
WAITED_SHARE = 0.2
#: Seconds for which the other rank is waited for.
PATIENCE = 60


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Config(ctypes.Structure):
    """The fields of version 2.14."""

    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int)]


class Meeting:
    """Files by which ranks wait for each other."""

    def __init__(self, folder, rank, ranks):
        self.folder, self.rank, self.ranks = pathlib.Path(folder), rank, ranks

    def put(self, name, data=b""):
        part = self.folder / f"{name}.{self.rank}.part"
        part.write_bytes(data)
        part.rename(self.folder / f"{name}.{self.rank}")

    def get(self, name, rank):
        due = time.time() + PATIENCE
        while time.time() < due:
            try:
                return (self.folder / f"{name}.{rank}").read_bytes()
            except FileNotFoundError:
                time.sleep(0.002)
        sys.exit(f"rank {rank} does not come to {name}")

    def all(self, name):
        self.put(name)
        for rank in range(self.ranks):
            self.get(name, rank)


class Nccl:
    """NCCL, for one rank of a meeting."""

    def __init__(self, device, meeting):
        self.device, self.meeting, self.made = device, meeting, 0
        self.library = open_library("libnccl.so.2")
        if self.library is None:
            sys.exit("there is no NCCL")
        self.library.ncclGetErrorString.restype = ctypes.c_char_p
        self.word = device.allocate(1 << 20)
        check(device.cuda.cuMemsetD8Async(self.word, ctypes.c_ubyte(0), ctypes.c_size_t(1 << 20),
                                          device.stream), "a memset")

    def check(self, status, what):
        if status not in (0, IN_PROGRESS):
            text = self.library.ncclGetErrorString(status).decode()
            sys.exit(f"NCCL: {what}: {text} ({status})")

    def settle(self, own, what):
        """Until the last call is under way."""
        status, due = ctypes.c_int(IN_PROGRESS), time.time() + PATIENCE
        while status.value == IN_PROGRESS:
            self.check(self.library.ncclCommGetAsyncError(own, ctypes.byref(status)), what)
            self.check(status.value, what)
            if time.time() > due:
                sys.exit(f"NCCL: {what} has not ended after {PATIENCE} s")

    def connect(self, blocking=0):
        name, own, id_ = f"id-{self.made}", ctypes.c_void_p(), Id()
        self.made += 1
        if self.meeting.rank == 0:
            self.check(self.library.ncclGetUniqueId(ctypes.byref(id_)), "an identity")
            self.meeting.put(name, bytes(id_))
        else:
            ctypes.memmove(ctypes.byref(id_), self.meeting.get(name, 0), 128)
        config = Config(ctypes.sizeof(Config), 0xcafebeef, 21400, blocking)
        self.check(self.library.ncclCommInitRankConfig(
            ctypes.byref(own), self.meeting.ranks, id_, self.meeting.rank, ctypes.byref(config)),
            "connecting")
        self.settle(own, "connecting")
        return own

    def enqueue(self, own, stream, count=1):
        """An all-reduce."""
        self.check(self.library.ncclGroupStart(), "a group")
        status = self.library.ncclAllReduce(self.word, self.word, ctypes.c_size_t(count), F32, SUM,
                                            own, stream)
        self.check(self.library.ncclGroupEnd() or status, "an all-reduce")

    def reduce(self, own, stream, count=1):
        self.enqueue(own, stream, count)
        self.settle(own, "an all-reduce")

    def message(self, own, stream):
        """From rank 0 to rank 1."""
        call = self.library.ncclRecv if self.meeting.rank else self.library.ncclSend
        self.check(call(self.word, ctypes.c_size_t(1), F32, 1 - self.meeting.rank, own, stream),
                   "a message")
        self.settle(own, "a message")

    def tracked(self, own):
        """The bytes that NCCL itself counts, from 2.29.7 on: [to be suspended, suspended,
        persistent, all]; or None."""
        ask, found = getattr(self.library, "ncclCommMemStats", None), []
        for what in range(4):
            value = ctypes.c_uint64()
            if ask is None or ask(own, what, ctypes.byref(value)):
                return None
            found.append(value.value)
        return found


def say(**facts):
    print(json.dumps(facts), flush=True)


def spinning(device, seconds):
    """A function that lets a stream compute for about so long, and a kernel that does nothing."""
    spin, nothing = device.load(CODE, "spin", "nothing")
    word = device.allocate(4)
    check(device.cuda.cuMemsetD8Async(word, ctypes.c_ubyte(0), ctypes.c_size_t(4), device.stream),
          "a memset")

    def turn(stream, turns):
        device.launch(spin, stream, ctypes.c_ulonglong(turns), word)

    turn(device.stream, 1)
    device.launch(nothing, device.stream, word)
    device.wait()
    trial = 1 << 18
    took = device.seconds(lambda: turn(device.stream, trial))
    turns = int(trial * seconds / max(took, 1e-6))
    return lambda stream: turn(stream, turns), lambda stream: device.launch(nothing, stream, word)


def milliseconds(work):
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


def is_busy(device, stream):
    return device.cuda.cuStreamQuery(stream) == NOT_READY


# Parts of two processes ---------------------------------------------------------------


def memory(device, nccl, options):
    """The bytes of all ranks, by their number: they share the card."""
    meeting, before = nccl.meeting, [0]

    def taken(step):
        device.wait()
        meeting.all(f"{step}-done")
        now = device.free_bytes()
        meeting.all(f"{step}-seen")
        took, before[0] = before[0] - now, now
        return took / meeting.ranks

    taken("begin")
    for number in range(options.communicators):
        own = nccl.connect()
        created = taken(f"created-{number}")
        nccl.reduce(own, device.stream)
        reduced = taken(f"reduced-{number}")
        nccl.message(own, device.stream)
        say(communicator=number, bytes_created=created, bytes_first_collective=reduced,
            bytes_first_message=taken(f"sent-{number}"), tracked=nccl.tracked(own))


def host(device, nccl, options):
    for name, blocking in (("do not block", 0), ("block", 1)):
        own = nccl.connect(blocking)
        for count in (1, 1 << 18):
            called, ready = [], []
            for number in range(options.calls + 10):
                if number % 20 == 0:
                    device.wait()
                began = time.perf_counter()
                nccl.enqueue(own, device.stream, count)
                between = time.perf_counter()
                nccl.settle(own, "an all-reduce")
                if number >= 10:
                    called.append(1e6 * (between - began))
                    ready.append(1e6 * (time.perf_counter() - began))
            device.wait()
            say(calls=name, bytes=4 * count, us_called=statistics.median(called),
                us_under_way=statistics.median(ready), us_most=max(ready))


def pair(device, nccl):
    """Two communicators that have exchanged, and their streams."""
    found = []
    for _ in range(2):
        own, stream = nccl.connect(), device.new_stream()
        nccl.reduce(own, stream)
        device.wait(stream)
        found.append((own, stream))
    nccl.meeting.all("connected")
    return found


def abort(device, nccl, options, grouped=False):
    own = pair(device, nccl)
    if nccl.meeting.rank:  # The other rank ends it, or the one that has begun both.
        nccl.meeting.get("ended", 0)
        return
    for communicator, stream in own:
        nccl.reduce(communicator, stream)
    time.sleep(0.5)
    stuck = all(is_busy(device, stream) for _, stream in own)

    def end():
        if grouped:
            nccl.check(nccl.library.ncclGroupStart(), "a group")
        for communicator, _ in own:
            nccl.check(nccl.library.ncclCommAbort(communicator), "an abort")
        if grouped:
            nccl.check(nccl.library.ncclGroupEnd(), "a group")

    took = milliseconds(end)
    streams = milliseconds(lambda: [device.wait(stream) for _, stream in own])
    say(grouped=grouped, stuck=stuck, ms_aborted=took, ms_streams_ended=took + streams)
    nccl.meeting.put("ended")


def watchdog(device, nccl, options):
    _, nothing = spinning(device, 0.001)
    (own, stream), _ = pair(device, nccl)
    if nccl.meeting.rank:
        nccl.meeting.get("ended", 0)
        return
    nccl.reduce(own, stream)
    done, context = [], ctypes.c_void_p()
    check(device.cuda.cuCtxGetCurrent(ctypes.byref(context)), "a context")

    def launch():
        check(device.cuda.cuCtxSetCurrent(context), "a context")
        for number in range(options.launches):
            nothing(stream)
            done.append(number)

    thread = threading.Thread(target=launch, daemon=True)
    thread.start()
    thread.join(options.stuck)
    waits = thread.is_alive()
    at = len(done) if waits else None
    took = milliseconds(lambda: nccl.check(nccl.library.ncclCommAbort(own), "an abort"))
    thread.join(10)
    say(launches=options.launches, host_waits_in=at, ms_aborted=took,
        freed=waits and not thread.is_alive())
    nccl.meeting.put("ended")


# Parts of one process -----------------------------------------------------------------


def launches(device, options):
    spin, nothing = spinning(device, options.spin)
    spin(device.stream)
    times = [milliseconds(lambda: nothing(device.stream)) for _ in range(options.launches)]
    busy = is_busy(device, device.stream)
    device.wait()
    waited = [number for number, ms in enumerate(times) if ms > 1e3 * WAITED_SHARE * options.spin]
    say(launches=options.launches, host_waits_in=waited[0] if waited else None,
        us_each=1e3 * statistics.median(times), ms_most=max(times), still_busy=busy)


def lazy(device, options):
    import products

    spin, _ = spinning(device, options.spin)
    other, later = device.new_stream(), device.compile(LATER)
    word, module, found = device.allocate(4), ctypes.c_void_p(), []
    lt = open_library("libcublasLt.so.13")
    product = lt and products.Product(device, lt, 256, 256, 256, (1, 0))
    candidate = product and product.candidates(1)[0]
    device.wait()
    steps = [("load", lambda: check(device.cuda.cuModuleLoadData(ctypes.byref(module), later),
                                    "a module")),
             ("find", lambda: found.append(device.kernel(module, "later"))),
             ("launch", lambda: device.launch(found[0], device.stream, word)),
             ("run", device.wait)]
    if product:
        steps += [("product", lambda: product.run(candidate)), ("run product", device.wait)]
    for name, step in steps:
        spin(other)
        took = milliseconds(step)
        busy = is_busy(device, other)
        device.wait(other)
        say(step=name, modules=os.environ.get("CUDA_MODULE_LOADING", "the driver's"), ms=took,
            waited=not busy)


TWO = {"memory": memory, "host": host, "abort": abort, "watchdog": watchdog,
       "abort-grouped": lambda *all: abort(*all, grouped=True)}
ONE = {"launches": launches, "lazy": lazy}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("part", choices=[*TWO, *ONE])
    add("--rank", type=int, default=0)
    add("--ranks", type=int, default=2)
    add("--meet", metavar="FOLDER")
    add("--communicators", type=int, default=3, help="memory: how many (default: %(default)s)")
    add("--calls", type=int, default=200, help="host: how many of each (default: %(default)s)")
    add("--launches", type=int, default=1100, help="(default: %(default)s)")
    add("--stuck", type=float, default=3, metavar="SECONDS",
        help="watchdog: a launch that takes longer waits (default: %(default)s)")
    add("--spin", type=float, default=0.3, metavar="SECONDS",
        help="of the kernel that is at work (default: %(default)s)")
    options = parser.parse_args()
    device = Device()
    if options.part in ONE:
        ONE[options.part](device, options)
    else:
        nccl = Nccl(device, Meeting(options.meet, options.rank, options.ranks))
        TWO[options.part](device, nccl, options)
    # Work that is still under way is not waited for.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
