# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The memory in use on a GPU, watched while other processes run on it."""

import ctypes
import subprocess
import threading


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                ("used", ctypes.c_ulonglong)]


def by_nvml():
    """A function that returns the bytes in use on the first GPU, by the driver's library; None if
    there is none. It costs far less than a process of nvidia-smi, which would disturb what is
    timed."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    device = ctypes.c_void_p()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
        return None

    def used():
        memory = _Memory()
        failed = nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
        return None if failed else memory.used

    return used if used() is not None else None


def by_command():
    """The same by nvidia-smi, to a MiB."""
    def used():
        try:
            said = subprocess.run(
                ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                capture_output=True, text=True, timeout=20).stdout
            return int(said.split()[0]) << 20
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
            return None

    return used if used() is not None else None


class MemoryWatch:
    """Within `with`, polls the bytes in use every `interval` seconds; then `peak` is the most that
    was seen, less what was in use before, or None if nothing can be asked."""

    def __init__(self, used, interval=0.05):
        self.used, self.interval, self.peak = used, interval, None
        self.ended = threading.Event()

    def __enter__(self):
        self.before = self.used() if self.used else None
        if self.before is not None:
            self.peak = 0
            self.thread = threading.Thread(target=self._poll, daemon=True)
            self.thread.start()
        return self

    def _poll(self):
        while not self.ended.is_set():
            now = self.used()
            if now is not None:
                self.peak = max(self.peak, now - self.before)
            self.ended.wait(self.interval)

    def __exit__(self, *_):
        self.ended.set()
        if self.before is not None:
            self.thread.join()
