"""The other ranks of a worker whose ranks are processes.

The process that the benchmark starts is rank 0. It starts the other ranks with its own command
line and `--rank`, controls them by the same protocol, and they are killed when it ends.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1


def end_with_parent(parent):
    """Has the kernel kill this process when its parent, the process `parent`, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the first rank has ended")


class OtherRank:
    """Another rank, as rank 0 controls it."""

    def __init__(self, rank, *arguments):
        command = [sys.executable, *sys.argv, "--rank", str(rank)]
        command += ["--parent", str(os.getpid()), *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        """Ends this process when the other rank fails, since this one may wait for it."""
        if self.process.wait():
            os._exit(1)

    def send(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def receive(self):
        """Returns the next JSON line of its output. Raises SystemExit if it has ended."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"another rank ended with status {self.process.wait()}")
