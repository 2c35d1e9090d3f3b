# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""An artifact whose kernels are the printed CUDA ones, compiled for the host and run with
emulated blocks (test/unit/Target/Emulation.h). All other commands are the CPU's."""

import ctypes
import pathlib
import re
import shutil
import subprocess

#: NVIDIA's headers, of the toolkit; None where it is not installed.
HEADERS = next((str(path) for path in [pathlib.Path("/usr/local/cuda/include")]
                + [pathlib.Path(nvcc).resolve().parents[1] / "include"
                   for nvcc in [shutil.which("nvcc")] if nvcc]
                if (path / "cuda_bf16.h").exists()), None)
EMULATION = pathlib.Path(__file__).resolve().parents[3] / "unit" / "Target"
COMPILER = next((found for name in ("clang++-22", "clang++") if (found := shutil.which(name))),
                None)

KERNEL = re.compile(r'// grid (\d+), block (\d+)([^\n]*)\nextern "C" __global__ void [^\n]*\n'
                    r"(cleave_(?:kernel|finish)_\w+)\(([^)]*)\) \{")


def read_symbols(artifact, kernels):
    """The program of an artifact, its ABI version, and the signatures of `kernels`."""
    library = ctypes.CDLL(str(artifact))
    size = ctypes.c_uint64.in_dll(library, "cleave_program_size").value
    program = bytes((ctypes.c_char * size).in_dll(library, "cleave_program"))
    abi = ctypes.c_uint32.in_dll(library, "cleave_abi_version").value
    signatures = {name: tuple((ctypes.c_uint32 * 2).in_dll(library, f"cleave_signature_{name}"))
                  for name in kernels}
    return program, abi, signatures


def compile_library(source, out):
    subprocess.run([COMPILER, "-std=c++20", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-w",
                    "-DCLEAVE_CUDA_TYPES", "-I", HEADERS, "-I", str(EMULATION), str(source),
                    "-o", str(out)], check=True)


def adapter(name, grid, block, parameters):
    """A function with the ABI of the CPU's kernels that launches a printed one."""
    values = []
    for i, parameter in enumerate(parameters):
        kind, word = parameter.replace("__restrict__ ", "").rsplit("*", 1)
        values.append("with->scratch" if word == "scratch" else f"({kind}*)with->args[{i}]")
    return f"""extern "C" __attribute__((visibility("default")))
void run_{name}(void *const *args, int64_t begin, int64_t, void *scratch) __asm__("{name}");
void run_{name}(void *const *args, int64_t begin, int64_t, void *scratch) {{
  struct With {{ void *const *args; char *scratch; }} call{{args, (char *)scratch}};
  if (begin != 0)
    emulation::fail("a part of a grid");
  emulation::emulate({grid}, {block}, [](void *data) {{
    [[maybe_unused]] auto *with = (With *)data;
    {name}({", ".join(values)});
  }}, &call);
}}
"""


def build(text, artifact, out):
    """Writes the artifact `out`: `artifact` (compiled for one thread) with the kernels of
    `text`. Returns how many kernels it has."""
    kernels = {name: (int(grid), int(block),
                      [p.strip() for p in parameters.split(",") if p.strip()])
               for grid, block, _, name, parameters in KERNEL.findall(text)}
    assert len(kernels) == text.count('extern "C" __global__')
    program, abi, signatures = read_symbols(artifact, kernels)
    text = re.sub(r"#include <cuda_\w+\.h>\n", "", text)
    text = re.sub(r" *extern __shared__[^\n]*\n", "", text)
    # The symbols are those of the adapters.
    text = text.replace('extern "C" __global__', "__global__")
    source = out.with_suffix(".cpp")
    data = ", ".join(str(byte) for byte in program)
    source.write_text(
        '#include "Emulation.h"\n' + text + "".join(
            adapter(name, *launch) for name, launch in kernels.items())
        + f'extern "C" {{\nextern const unsigned char cleave_program[] = {{{data}, 0}};\n'
        + f"extern const uint64_t cleave_program_size = {len(program)};\n"
        + f"extern const uint32_t cleave_abi_version = {abi};\n"
        + "".join(f"extern const uint32_t cleave_signature_{name}[] = {{{a}, {b}}};\n"
                  for name, (a, b) in signatures.items()) + "}\n")
    compile_library(source, out)
    return len(kernels)


def build_functions(text, out):
    """Compiles the kernels of `text` into the library `out`. Returns a function of each by its
    name that takes buffers for the arguments (a bytearray each)."""
    text = re.sub(r"#include <cuda_\w+\.h>\n", "", text)
    text = text.replace('extern "C" __global__', "__global__")
    kernels = [(name, int(grid), int(block), parameters.split(","))
               for grid, block, _, name, parameters in KERNEL.findall(
                   text.replace("__global__", 'extern "C" __global__'))]
    source = out.with_suffix(".cpp")
    source.write_text('#include "Emulation.h"\n' + text + "".join(
        adapter(name, grid, block, [p.strip() for p in parameters])
        for name, grid, block, parameters in kernels))
    compile_library(source, out)
    library = ctypes.CDLL(str(out))

    def caller(name):
        def call(*buffers):
            arrays = [(ctypes.c_char * len(b)).from_buffer(b) for b in buffers]
            pointers = (ctypes.c_void_p * len(arrays))(*map(ctypes.addressof, arrays))
            getattr(library, name)(pointers, ctypes.c_int64(0), ctypes.c_int64(1), None)
        return call

    return {name.removeprefix("cleave_kernel_"): caller(name) for name, *_ in kernels}
