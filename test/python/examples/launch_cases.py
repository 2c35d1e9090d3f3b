# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Nodes of test_launch.py, in a module that a process imports quickly."""
import json
import os
import signal
import threading
import time


class Counter:
    """Counts up, and keeps what it was given."""

    def __init__(self, start=0):
        self.total, self.notes, self.lock = start, [], threading.Lock()

    def add(self, number, times=1):
        with self.lock:
            self.total += number * times
            return self.total

    def note(self, what):
        self.notes.append(what)
        what.append("changed by the node")
        return self.notes

    def wait_for(self, total):
        """Returns once others have counted so far: calls of a node run at the same time."""
        until = time.monotonic() + 20
        while self.total < total and time.monotonic() < until:
            time.sleep(0.005)
        return self.total, os.getpid()

    def fail(self, number):
        raise KeyError(f"no {number}")

    def lock_itself(self):
        return self.lock


class Asker:
    """Calls a counter in several ways and writes what it saw."""

    def __init__(self, counters, path, stop=None):
        self.counters, self.path, self.launcher = counters, path, stop

    def run(self):
        one, other = self.counters["one"], self.counters["two"][0]
        waiting = other.later("wait_for", 111)
        seen = [one.add(2), one.add(3, times=2), other.add(1)]
        mine = ["mine"]
        one.note(mine)
        seen.append(mine)
        try:
            one.fail(3)
        except KeyError as error:
            seen.append(str(error))
        try:
            one.lock_itself()
        except Exception as error:
            seen.append(type(error).__name__)
        other.add(10)
        seen += [waiting.result(timeout=30)[0], os.getpid() == waiting.result()[1]]
        self.path.write_text(json.dumps(seen))
        if self.launcher:
            self.launcher.stop()


class Looping:
    """Calls until the program is stopped."""

    def __init__(self, counter):
        self.counter = counter

    def run(self):
        while True:
            self.counter.add(0)


class Broken:
    def __init__(self, what):
        if what == "constructor":
            raise ValueError("bad settings")
        self.what = what

    def run(self):
        if self.what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("bad data")
