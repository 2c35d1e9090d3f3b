# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Memory, clocks, watts and temperature of the first GPU, polled while other processes run on it.

NVML is asked by its binary interface: a process of nvidia-smi would disturb what is timed."""

import csv
import ctypes
import statistics
import subprocess
import threading
import time

#: Columns of the file of samples; seconds are since the beginning, throttling is NVML's bits.
COLUMNS = ("seconds", "sm_mhz", "memory_mhz", "watts", "celsius", "throttled")


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                ("used", ctypes.c_ulonglong)]


class Nvml:
    """The first GPU, as NVML tells it; None stands for what the driver does not say."""

    def __init__(self, library):
        self.library, self.device = library, ctypes.c_void_p()
        self.works = not library.nvmlInit_v2() and not library.nvmlDeviceGetHandleByIndex_v2(
            0, ctypes.byref(self.device))

    @classmethod
    def open(cls):
        """None where there is no driver."""
        try:
            found = cls(ctypes.CDLL("libnvidia-ml.so.1"))
        except OSError:
            return None
        return found if found.works else None

    def ask(self, name, *arguments, kind=ctypes.c_uint):
        value = kind()
        try:
            failed = getattr(self.library, name)(self.device, *arguments, ctypes.byref(value))
        except AttributeError:
            return None
        return None if failed else getattr(value, "value", value)

    def name(self):
        text = ctypes.create_string_buffer(96)
        failed = self.library.nvmlDeviceGetName(self.device, text, ctypes.c_uint(len(text)))
        return None if failed else text.value.decode(errors="replace")

    def used(self):
        """Bytes in use."""
        memory = self.ask("nvmlDeviceGetMemoryInfo", kind=_Memory)
        return memory and memory.used

    def sample(self):
        """The columns after the seconds."""
        watts = self.ask("nvmlDeviceGetPowerUsage")
        return (self.ask("nvmlDeviceGetClockInfo", 1), self.ask("nvmlDeviceGetClockInfo", 2),
                None if watts is None else watts / 1e3,
                self.ask("nvmlDeviceGetTemperature", 0),
                self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong))


def used_by_command():
    """Bytes in use by nvidia-smi, to a MiB."""
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20).stdout
        return int(said.split()[0]) << 20
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return None


def memory():
    """A function that returns the bytes in use; None if nothing tells them."""
    nvml = Nvml.open()
    for used in ([nvml.used] if nvml else []) + [used_by_command]:
        if used() is not None:
            return used
    return None


class Watch:
    """Within `with`, calls `poll` every `interval` seconds from another thread."""

    def __init__(self, poll, interval):
        self.poll, self.interval, self.ended = poll, interval, threading.Event()

    def __enter__(self):
        if self.poll:
            self.thread = threading.Thread(target=self._run, daemon=True)
            self.thread.start()
        return self

    def _run(self):
        due = time.time()
        while not self.ended.is_set():
            self.poll()
            due = max(due + self.interval, time.time())
            self.ended.wait(max(0.0, due - time.time()))

    def __exit__(self, *_):
        self.ended.set()
        if self.poll:
            self.thread.join()


class MemoryWatch(Watch):
    """Its `peak` is the most that `used` returned, less what was in use before, or None if nothing
    can be asked."""

    def __init__(self, used, interval=0.05):
        self.used, self.peak = used, None
        super().__init__(self._look, interval)

    def __enter__(self):
        self.before = self.used() if self.used else None
        if self.before is None:
            self.poll = None
        else:
            self.peak = 0
        return super().__enter__()

    def _look(self):
        now = self.used()
        if now is not None:
            self.peak = max(self.peak, now - self.before)


class Clocks(Watch):
    """Samples ten times a second, and writes the samples to a file at the end."""

    def __init__(self, path, sample=None, interval=0.1):
        nvml = None if sample else Nvml.open()
        self.path, self.sample = path, sample or (nvml and nvml.sample)
        self.began, self.rows = time.time(), []
        super().__init__(self.sample and self._look, interval)

    def _look(self):
        self.rows.append((time.time() - self.began, *self.sample()))

    def __exit__(self, *_):
        super().__exit__()
        if not self.sample:
            return
        with open(self.path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows([f"{row[0]:.2f}", *row[1:]] for row in self.rows)

    def between(self, begin, end):
        """The samples from `begin` to `end` (of time.time()), where the device was at work:
        above half of the watts that it took at most. None without samples."""
        rows = [row for row in self.rows
                if begin <= row[0] + self.began <= end and row[3] is not None]
        if not rows:
            return None
        most = max(row[3] for row in rows)
        busy = [row for row in rows if row[3] >= most / 2]

        def median(i):
            values = [row[i] for row in busy if row[i] is not None]
            return statistics.median(values) if values else None

        throttled = 0
        for row in busy:
            throttled |= row[5] or 0
        return {"sm_mhz": median(1), "memory_mhz": median(2), "watts": median(3),
                "watts_most": most, "celsius": median(4), "throttled": throttled,
                "samples": len(busy)}
