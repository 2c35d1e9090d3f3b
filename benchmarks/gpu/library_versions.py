# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Prints the versions of NVIDIA's libraries as a line of JSON; null for one that cannot be opened.

It is a process of its own, since what is opened stays loaded. Libraries are looked for as Cleave
does: in the folders of $CLEAVE_CUDA_LIBRARIES, and then where the system searches."""

import ctypes
import json
import os


def open_library(name):
    folders = os.environ.get("CLEAVE_CUDA_LIBRARIES", "").split(":")
    for path in [os.path.join(folder, name) for folder in folders if folder] + [name]:
        # One that is there and cannot be opened is not replaced by another.
        if path == name or os.path.exists(path):
            try:
                return ctypes.CDLL(path)
            except OSError:
                return None
    return None


def numbers(version, *units):
    """Of a version in one number: how often each unit is in it, and the rest."""
    found = []
    for unit in units:
        found.append(version // unit)
        version %= unit
    return ".".join(map(str, [*found, version]))


def driver(library):
    version = ctypes.c_int()
    return None if library.cuDriverGetVersion(ctypes.byref(version)) else \
        f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def cublas(library):
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return numbers(library.cublasLtGetVersion(), 10000, 100)


def cudnn(library):
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return numbers(library.cudnnGetVersion(), 10000, 100)


def nccl(library):
    version = ctypes.c_int()
    return None if library.ncclGetVersion(ctypes.byref(version)) else \
        numbers(version.value, 10000, 100)


def nvrtc(library):
    major, minor = ctypes.c_int(), ctypes.c_int()
    return None if library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) else \
        f"{major.value}.{minor.value}"


LIBRARIES = {"driver": ("libcuda.so.1", driver), "cublasLt": ("libcublasLt.so.13", cublas),
             "cudnn": ("libcudnn.so.9", cudnn), "nccl": ("libnccl.so.2", nccl),
             "nvrtc": ("libnvrtc.so.13", nvrtc)}


def versions():
    found = {}
    for name, (file, ask) in LIBRARIES.items():
        library = open_library(file)
        try:
            found[name] = library and ask(library)
        except AttributeError:  # It has no such function.
            found[name] = None
    return found


if __name__ == "__main__":
    print(json.dumps(versions()))
