# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""NVIDIA's compiler of kernels as the compiler uses it (lib/Target/CUDA/CompileCuda.cpp), and
what it says about each kernel."""

import ctypes
import dataclasses
import functools
import glob
import json
import os
import re
import subprocess
import sys


def _folders():
    """The folders of NVIDIA's libraries, in the order in which the compiler looks."""
    for folder in os.environ.get("CLEAVE_CUDA_LIBRARIES", "").split(":"):
        if folder:
            yield folder
    yield os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "lib64")
    yield from sorted(glob.glob(os.path.join(
        sys.prefix, "lib", "python3*", "site-packages", "nvidia", "*", "lib")))


def _open(name):
    for folder in _folders():
        if os.path.exists(os.path.join(folder, name)):
            return ctypes.CDLL(os.path.join(folder, name))
    return None


@functools.cache
def library():
    """NVRTC 13, or None where it is not installed."""
    _open("libnvrtc-builtins.so.13.0")
    return _open("libnvrtc.so.13")


def include_folders():
    """The folders of headers beside those of libraries."""
    return [path for folder in _folders()
            if os.path.isdir(path := os.path.join(os.path.dirname(folder), "include"))]


def has_headers():
    return any(os.path.exists(os.path.join(folder, "cuda_bf16.h"))
               for folder in include_folders())


def reason():
    """Why nothing can be compiled; empty where it can."""
    if not library():
        return "libnvrtc.so.13 is not installed (the package nvidia-cuda-nvrtc)"
    return "" if has_headers() else "cuda_bf16.h is not installed (nvidia-cuda-runtime)"


#: Those of the compiler; what changes code must be the same.
OPTIONS = ["--std=c++17", "--fmad=false", "--device-int128", "-default-device"]


def compile_text(text, architecture, *options):
    """Returns the PTX and the log of ptxas, or raises a RuntimeError with the messages. In a process
    of its own: among the libraries of tests NVRTC has crashed."""
    result = subprocess.run([sys.executable, __file__], capture_output=True, text=True,
                            input=json.dumps([text, architecture, *options]))
    if result.returncode:
        raise RuntimeError(result.stderr)
    return json.loads(result.stdout)


def compile_here(text, architecture, *options):
    nvrtc, program = library(), ctypes.c_void_p()
    words = [f"--gpu-architecture={architecture}", *OPTIONS, *options,
             *(f"--include-path={folder}" for folder in include_folders())]

    def check(code):
        if code:
            nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(nvrtc.nvrtcGetErrorString(code).decode() + "\n" + read("ProgramLog"))

    def read(what):
        size = ctypes.c_size_t()
        if getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)):
            return ""
        buffer = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
        return buffer.value.decode(errors="replace")

    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None,
                                   None))
    try:
        check(nvrtc.nvrtcCompileProgram(program, len(words),
                                        (ctypes.c_char_p * len(words))(*map(str.encode, words))))
        return read("PTX"), read("ProgramLog")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@dataclasses.dataclass
class Resources:
    """The report of ptxas on a kernel."""
    registers: int
    spilled: int


def resources(log):
    """By kernel, from the log of --ptxas-options=-v."""
    found = {}
    for name, text in re.findall(r"Compiling entry function '(\w+)'(.*?Used \d+ registers)", log,
                                 re.S):
        spills = sum(map(int, re.findall(r"(\d+) bytes spill", text)))
        found[name] = Resources(int(re.search(r"Used (\d+)", text)[1]), spills)
    return found


def entries(ptx):
    """The PTX of each kernel."""
    return {name: body for name, body in re.findall(
        r"\.entry (\w+)\((.*?)\n\}\n", ptx, re.S)}


def accesses(body):
    """How often a kernel's PTX has a global access of each width in bytes, by "ld" and "st"."""
    found = {"ld": {}, "st": {}}
    for kind, count, bits in re.findall(
            r"\b(ld|st)\.(?:\w+\.)*?global(?:\.\w+)*?(?:\.v(\d))?\.[a-z](\d+)\s", body):
        width = int(count or 1) * int(bits) // 8
        found[kind][width] = found[kind].get(width, 0) + 1
    return found


if __name__ == "__main__":
    print(json.dumps(compile_here(*json.load(sys.stdin))))
