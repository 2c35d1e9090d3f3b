# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Times cuBLASLt's products of given shapes, in bf16 on random numbers, and prints a line of JSON
for each. Needs the driver and cuBLASLt alone, both by their binary interface.

    products.py SHAPES [--candidates 64] [--sustain 2] [--seconds 90]

SHAPES is JSON, a list of [name, m, n, k, transposed a, transposed b]. Each of up to `candidates`
algorithms is run once with the L2 cache overwritten before it, and the eight fastest five times.
The five largest are run for `sustain` seconds each. Of the products that a bias and a gelu follow
(name `up`), the one with both in its epilogue is timed too, beside one without them."""

import argparse
import ctypes
import json
import statistics
import sys
import time

from cuda_device import Device, check
from library_versions import open_library

BF16, F32, IN_F32 = 14, 0, 68
TRANS_A, TRANS_B, EPILOGUE, BIAS, AUX, AUX_LD = 3, 4, 7, 8, 11, 12
WORKSPACE = 32 << 20


class Algorithm(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64 * 8)]


class Result(ctypes.Structure):
    _fields_ = [("algorithm", Algorithm), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
                ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4)]


class Product:
    """d = a b, of column-major matrices, with an epilogue."""

    def __init__(self, device, lt, m, n, k, turned, epilogue=1):
        self.device, self.lt = device, lt
        self.handle = ctypes.c_void_p()
        check(lt.cublasLtCreate(ctypes.byref(self.handle)), "cuBLASLt")
        self.desc = ctypes.c_void_p()
        check(lt.cublasLtMatmulDescCreate(ctypes.byref(self.desc), IN_F32, F32), "a description")
        for attribute, value in ((TRANS_A, turned[0]), (TRANS_B, turned[1]), (EPILOGUE, epilogue)):
            self.set(attribute, ctypes.c_int(int(value)))
        shapes = [(k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n), (m, n)]
        self.layouts = [self.layout(*shape) for shape in shapes]
        sizes = [2 * rows * columns for rows, columns in shapes]
        self.memory = [device.allocate(size) for size in sizes]
        for seed, (address, size) in enumerate(zip(self.memory[:2], sizes)):
            device.fill(address, size, seed)
        self.memory.append(device.allocate(WORKSPACE))
        if epilogue != 1:
            self.memory += [device.allocate(2 * m), device.allocate(2 * m * n)]
            device.fill(self.memory[4], 2 * m, 2)
            self.set(BIAS, self.memory[4])
            self.set(AUX, self.memory[5])
            self.set(AUX_LD, ctypes.c_int64(m))

    def set(self, attribute, value):
        check(self.lt.cublasLtMatmulDescSetAttribute(
            self.desc, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))),
            f"attribute {attribute}")

    def layout(self, rows, columns):
        made = ctypes.c_void_p()
        check(self.lt.cublasLtMatrixLayoutCreate(
            ctypes.byref(made), BF16, ctypes.c_uint64(rows), ctypes.c_uint64(columns),
            ctypes.c_int64(rows)), "a layout")
        return made

    def candidates(self, most):
        preference, found = ctypes.c_void_p(), ctypes.c_int()
        check(self.lt.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "a preference")
        bytes_ = ctypes.c_uint64(WORKSPACE)
        check(self.lt.cublasLtMatmulPreferenceSetAttribute(
            preference, 1, ctypes.byref(bytes_), ctypes.c_size_t(8)), "a preference")
        results = (Result * most)()
        a, b, d = self.layouts
        check(self.lt.cublasLtMatmulAlgoGetHeuristic(
            self.handle, self.desc, a, b, d, d, preference, most, results, ctypes.byref(found)),
            "candidates")
        return [result for result in results[: found.value] if not result.state]

    def run(self, candidate):
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        a, b, d = self.layouts
        check(self.lt.cublasLtMatmul(
            self.handle, self.desc, ctypes.byref(one), self.memory[0], a, self.memory[1], b,
            ctypes.byref(zero), self.memory[2], d, self.memory[2], d,
            ctypes.byref(candidate.algorithm), self.memory[3], ctypes.c_size_t(WORKSPACE),
            self.device.stream), "a product")

    def time(self, candidate, times):
        found = []
        for _ in range(times):
            self.device.overwrite_cache()
            found.append(self.device.seconds(lambda: self.run(candidate)))
        return statistics.median(found)

    def best(self, most):
        """The seconds of the first proposal and of the fastest one, which is returned too, and how
        many there were."""
        candidates = self.candidates(most)
        if not candidates:
            raise RuntimeError("no candidates")
        self.run(candidates[0])  # Loads it.
        once = []
        for candidate in candidates:
            self.time(candidate, 1)
            once.append((self.time(candidate, 1), len(once)))
        again = [(self.time(candidates[i], 5), i) for _, i in sorted(once)[:8]]
        seconds, i = min(again)
        return self.time(candidates[0], 5), seconds, candidates[i], len(candidates)

    def sustained(self, candidate, seconds):
        """Seconds of one call, of as many as take `seconds`, one directly after another."""
        calls, began = 0, time.time()
        def some():
            for _ in range(10):
                self.run(candidate)
        total = 0.0
        while time.time() - began < seconds:
            total += self.device.seconds(some)
            calls += 10
        return total / calls

    def close(self):
        self.device.free(*self.memory)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", type=json.loads)
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--sustain", type=float, default=2, help="seconds")
    parser.add_argument("--seconds", type=float, default=90, help="nothing is begun after these")
    options = parser.parse_args()
    began = time.time()
    device, lt = Device(), open_library("libcublasLt.so.13")
    if lt is None:
        sys.exit("there is no cuBLASLt")

    def say(**facts):
        print(json.dumps(facts), flush=True)

    def timed(name, m, n, k, turned, epilogue, sustain):
        if time.time() - began > options.seconds:
            return say(product=name, skipped=True)
        product = Product(device, lt, m, n, k, turned, epilogue)
        try:
            first, seconds, candidate, count = product.best(options.candidates)
            facts = dict(product=name, m=m, n=n, k=k, epilogue=epilogue, candidates=count,
                         us=1e6 * seconds, first_us=1e6 * first,
                         tflops=2e-12 * m * n * k / seconds)
            if sustain:
                begin = time.time()
                facts |= {"sustained_tflops": 2e-12 * m * n * k / product.sustained(
                    candidate, options.sustain), "from": begin, "to": time.time()}
            say(**facts)
        finally:
            product.close()
        return None

    largest = sorted(options.shapes, key=lambda shape: -shape[1] * shape[2] * shape[3])[:5]
    for shape in options.shapes:
        name, m, n, k, *turned = shape
        timed(name, m, n, k, turned, 1, shape in largest)
    for name, m, n, k, *turned in options.shapes:
        if name.endswith("up"):  # A bias, a gelu, and what backward needs of it.
            timed(f"{name} with bias and gelu", m, n, k, turned, 4 | 32 | 128, False)


if __name__ == "__main__":
    main()
