# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Clocks, watts and temperature of the first GPU, sampled while other processes run on it."""

import csv
import ctypes
import statistics
import threading
import time

#: Columns of the file of samples; seconds are since the beginning, throttling is NVML's bits.
COLUMNS = ("seconds", "sm_mhz", "memory_mhz", "watts", "celsius", "throttled")


def by_nvml():
    """A function that returns (sm_mhz, memory_mhz, watts, celsius, throttled), each None where the
    driver does not say it; None if there is no driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    device = ctypes.c_void_p()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
        return None

    def ask(name, *arguments, kind=ctypes.c_uint):
        value = kind()
        try:
            failed = getattr(nvml, name)(device, *arguments, ctypes.byref(value))
        except AttributeError:
            return None
        return None if failed else value.value

    def sample():
        watts = ask("nvmlDeviceGetPowerUsage")
        return (ask("nvmlDeviceGetClockInfo", 1), ask("nvmlDeviceGetClockInfo", 2),
                None if watts is None else watts / 1e3, ask("nvmlDeviceGetTemperature", 0),
                ask("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong))

    return sample


class Clocks:
    """Within `with`, samples ten times a second, and writes the samples to a file at the end."""

    def __init__(self, path, sample=None, interval=0.1):
        self.path, self.interval = path, interval
        self.sample = sample or by_nvml()
        self.began, self.rows, self.ended = time.time(), [], threading.Event()

    def __enter__(self):
        if self.sample:
            self.thread = threading.Thread(target=self._poll, daemon=True)
            self.thread.start()
        return self

    def _poll(self):
        due = time.time()
        while not self.ended.is_set():
            self.rows.append((time.time() - self.began, *self.sample()))
            due = max(due + self.interval, time.time())
            self.ended.wait(max(0.0, due - time.time()))

    def __exit__(self, *_):
        self.ended.set()
        if not self.sample:
            return
        self.thread.join()
        with open(self.path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows([f"{row[0]:.2f}", *row[1:]] for row in self.rows)

    def between(self, begin, end):
        """What was sampled from `begin` to `end` (of time.time()), where the device was at work:
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
