"""The other ranks of a contestant whose ranks are processes.

The process that speaks with the benchmark is rank 0. It starts the others by its
own command line and `--rank`; they speak the same protocol, with it, and end when
it ends, however it does.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1


def end_with(leader):
    """Lets this process be killed when its parent, the process `leader`, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != leader:
        raise SystemExit("the first rank has ended")


class Follower:
    """One other rank, seen from rank 0."""

    def __init__(self, rank, *arguments):
        command = [sys.executable, *sys.argv, "--rank", str(rank)]
        command += ["--leader", str(os.getpid()), *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        """Ends this rank when the other fails: it may be waiting for it."""
        if self.process.wait():
            os._exit(1)

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def hear(self):
        """The next JSON line that it says."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"another rank ended with status {self.process.wait()}")
