# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The results of the CUDA text of every scalar op and conversion in every type, compiled for the host
with NVIDIA's own types, against PyTorch: at random values and at edges. Ops of narrow floats are
computed in f32 and rounded once."""

import ctypes
import pathlib

import numpy as np
import pytest
import torch

import cuda_host
from cleave.testing.tools import run_tool, tool
from scalar_kernels import FLOATS, INTEGERS, kernel, scalar_ops

pytestmark = pytest.mark.skipif(not cuda_host.HEADERS or not cuda_host.COMPILER,
                                reason="needs NVIDIA's headers and clang")

COUNT = 256
TYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
         "f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2, "i64": torch.int64,
         "i32": torch.int32, "i8": torch.int8, "i1": torch.bool}
#: Bits of the significand, and the largest value.
PRECISION = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "f8E4M3FN": 4, "f8E5M2": 3}
BINARY = {"addf": torch.add, "subf": torch.sub, "mulf": torch.mul, "divf": torch.div,
          "remf": torch.fmod, "maximumf": torch.maximum, "minimumf": torch.minimum,
          "maxnumf": torch.fmax, "minnumf": torch.fmin, "powf": torch.pow}
UNARY = {"negf": torch.neg, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1,
         "log": torch.log, "log2": torch.log2, "log1p": torch.log1p, "tanh": torch.tanh,
         "erf": torch.erf, "sin": torch.sin, "cos": torch.cos,
         # Not that of PyTorch, which is not rounded to the nearest everywhere.
         "sqrt": lambda x: torch.from_numpy(np.sqrt(x.clamp(min=0).numpy())).where(x >= 0, np.nan),
         "rsqrt": torch.rsqrt, "absf": torch.abs, "floor": torch.floor, "ceil": torch.ceil,
         "trunc": torch.trunc, "roundeven": torch.round,
         "round": lambda x: torch.trunc(x) + torch.where(
             (x - torch.trunc(x)).abs() >= 0.5, torch.sign(x), torch.zeros_like(x))}
COMPARE = {"eq": torch.eq, "gt": torch.gt, "ge": torch.ge, "lt": torch.lt, "le": torch.le,
           "ne": lambda a, b: (a < b) | (a > b)}


def values(kind, seed):
    """Edges and random values of a type."""
    random = np.random.default_rng(seed)
    if kind == "i1":
        return torch.tensor(random.integers(0, 2, COUNT), dtype=torch.bool)
    if kind in INTEGERS:
        info = torch.iinfo(TYPES[kind])
        near = [info.min, info.max, 0, 1, -1, info.max - 1, info.max // 2 + 1]
        # Of all lengths, and halfway between floats.
        drawn = random.integers(info.min, info.max, COUNT, dtype=np.int64, endpoint=True)
        drawn = drawn >> random.integers(0, info.bits - 1, COUNT)
        drawn[:len(near)] = near
        for i, bits in enumerate(PRECISION.values()):
            if bits + 2 < info.bits:
                drawn[16 + 2 * i] = (1 << bits) + 1
                drawn[17 + 2 * i] = (1 << bits) + 3
        return torch.tensor(drawn).to(TYPES[kind])
    drawn = random.standard_normal(COUNT) * np.exp(random.standard_normal(COUNT) * 2)
    info = torch.finfo(TYPES[kind])
    edges = [0.0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, np.nan, info.max, info.min, info.tiny,
             info.smallest_normal / 2, -info.smallest_normal / 2, info.eps]
    if kind != "f8E4M3FN":
        edges += [np.inf, -np.inf]
    drawn[:len(edges)] = edges
    # Each edge meets each other one somewhere.
    order = np.concatenate([random.permutation(len(edges)), np.arange(len(edges), COUNT)])
    drawn[COUNT // 2:COUNT // 2 + len(edges)] = random.permutation(edges)
    return torch.tensor(drawn[order] if seed else drawn).to(TYPES[kind])


def as_wide(x, kind):
    return x.double() if kind == "f64" else x.float()


def rounded(x, kind):
    """Once, from f32 or f64: too large a value is infinite, or in e4m3 the largest one."""
    if kind == "f8E4M3FN":
        x = torch.where(x.isnan(), x, x.clamp(-448, 448))
    return x.to(TYPES[kind])


def rounded_integer(n, kind):
    """An integer of any size to the nearest float, ties to even."""
    bits, size = PRECISION[kind], abs(n)
    shift = max(0, size.bit_length() - bits)
    kept, rest = size >> shift, size & ((1 << shift) - 1)
    half = 1 << shift >> 1
    if shift and (rest > half or (rest == half and kept & 1)):
        kept += 1
    value = float(kept << shift)
    limit = 448 if kind == "f8E4M3FN" else torch.finfo(TYPES[kind]).max
    if value > limit:
        value = 448.0 if kind == "f8E4M3FN" else np.inf
    return -value if n < 0 else value


def expected(name, source, result, a, b):
    op, *rest = name.split("_")
    if op == "ext" or (op == "trunc" and len(rest) == 2):
        # From f64 too in one rounding.
        return rounded(a if source == "f64" else a.float(), result)
    if op == "fptosi":
        return as_wide(a, source).trunc().to(torch.float64).to(TYPES[result])
    if op in ("sitofp", "uitofp"):
        bits = {"i64": 64, "i32": 32, "i8": 8, "i1": 1}[source]
        whole = [int(n) for n in a]
        if op == "sitofp" and source == "i1":
            whole = [-n for n in whole]
        if op == "uitofp":
            whole = [n % (1 << bits) for n in whole]
        exact = torch.tensor([rounded_integer(n, result) for n in whole], dtype=torch.float64)
        return exact.to(TYPES[result])
    x, y = as_wide(a, source), as_wide(b, source)
    if op in BINARY:
        return rounded(BINARY[op](x, y), result)
    if op in UNARY:
        return rounded(UNARY[op](x), result)
    if op == "fma":
        with np.errstate(all="ignore"):
            wide = np.longdouble(x.numpy())
            exact = torch.from_numpy((wide * y.numpy() + wide).astype(np.float64))
        return rounded(exact.to(x.dtype), result)
    if op == "cmpf":
        ordered = ~(x.isnan() | y.isnan())
        kind, relation = rest[0][0], rest[0][1:]
        if rest[0] in ("ord", "uno"):
            return ordered if rest[0] == "ord" else ~ordered
        holds = COMPARE[relation](x, y)
        return holds & ordered if kind == "o" else holds | ~ordered
    if op == "constant":
        return torch.where(x == 0.5, torch.full_like(x, np.nan), y).to(TYPES[result])
    assert op == "through"
    through = rest[0]
    if through in ("f64", "f32"):
        return x + y
    return rounded(x, through).float()


def in_range(name, source, result, a):
    """The domain of an op."""
    if name.startswith("fptosi"):
        info = torch.iinfo(TYPES[result])
        x = a.double()
        return x.isfinite() & (x.trunc() >= float(info.min)) & (x.trunc() < float(info.max))
    return torch.ones(COUNT, dtype=torch.bool)


def units(x, kind):
    """The numbers of values of a type as integers in their order."""
    size = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[x.element_size()]
    bits = x.contiguous().view(size).long()
    sign = 1 << (8 * x.element_size() - 1)
    return torch.where(bits < 0, -(bits + sign) if x.element_size() < 8 else -(bits & (sign - 1)),
                       bits)


EXACT = {"ext", "trunc", "fptosi", "sitofp", "uitofp", "addf", "subf", "mulf", "divf", "remf",
         "maximumf", "minimumf", "maxnumf", "minnumf", "negf", "absf", "floor", "ceil",
         "round", "roundeven", "sqrt", "cmpf", "constant", "through"}


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    module = "".join(kernel(*op) for op in scalar_ops())
    text = run_tool([tool("cleave-translate"), "--exec-to-cuda", "-"], module)
    return cuda_host.build_functions(text, tmp_path_factory.mktemp("cuda") / "ops.so")


@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS])
def test_values(functions, kind):
    """The ops whose operands are of one type."""
    wrong, seen = [], 0
    for name, source, result, _ in scalar_ops():
        if source != kind:
            continue
        seen += 1
        a, b = values(source, 0), values(source, 1)
        inside = in_range(name, source, result, a)
        a = torch.where(inside, a.float(), torch.ones(COUNT)).to(a.dtype) if not inside.all() else a
        out = bytearray(COUNT * torch.empty(0, dtype=TYPES[result]).element_size())
        raw = [bytearray(x.view(torch.uint8).numpy().tobytes()) for x in (a, b)]
        functions[name](*raw, out)
        found = torch.frombuffer(out, dtype=TYPES[result])
        wanted = expected(name, source, result, a, b)
        if result in INTEGERS:
            bad = found != wanted
        else:
            nan = wanted.float().isnan()
            far = (units(found, result) - units(wanted, result)).abs()
            # Libraries of functions differ in the last bits.
            most = 0 if name.split("_")[0] in EXACT else 4 if result in ("f64", "f32") else 1
            bad = (nan != found.float().isnan()) | (~nan & (far > most))
        if bad.any():
            i = int(bad.nonzero()[0])
            wrong.append(f"{name}({a[i]}, {b[i]}) = {found[i]}, not {wanted[i]}")
    assert not wrong, "\n".join(wrong)
    assert seen > 3


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_sums_over_ranks(kind, tmp_path):
    """The reduction of ranks that share a GPU: a tree, which rounds once, against NumPy's."""
    root = pathlib.Path(__file__).resolve().parents[3]
    folder = root / "lib" / "Target" / "CUDA" / "Kernels"
    text = "".join(path.read_text() for path in [
        root / "include" / "cleave" / "Executable" / "Cuda" / "KernelArguments.h",
        folder / "Reduce.cu", folder / "ReduceHalf.cu"]).replace("#include <cuda_fp16.h>", "")
    element = {"f16": "HalfElement", "f32": "PlainElement<float>"}[kind]
    (tmp_path / "sum.cpp").write_text(f"""#include "Emulation.h"
{text}
extern "C" __attribute__((visibility("default"))) void sum(ReduceArguments *a, int blocks) {{
  emulation::emulate(blocks, 256, [](void *data) {{
    reduceMembers<{element}, CombineSum>(*(ReduceArguments *)data);
  }}, a);
}}
""")
    cuda_host.compile_library(tmp_path / "sum.cpp", tmp_path / "sum.so")

    class Arguments(ctypes.Structure):
        _fields_ = [("srcs", ctypes.c_void_p * 64), ("dsts", ctypes.c_void_p * 64),
                    ("begin", ctypes.c_longlong), ("end", ctypes.c_longlong),
                    ("members", ctypes.c_int), ("writers", ctypes.c_int)]

    def tree(parts):
        """Neighbours, then neighbouring pairs; the last one of an odd number waits."""
        while len(parts) > 1:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2])] + parts[len(parts) & ~1:]
        return parts[0]

    random = np.random.default_rng(2)
    dtype = {"f16": np.float16, "f32": np.float32}[kind]
    for members in range(1, 18):
        values = [(random.standard_normal(700) * 10.0 ** random.integers(-6, 4, 700)).astype(dtype)
                  for _ in range(members)]
        out = np.zeros(700, dtype)
        call = Arguments(begin=3, end=690, members=members, writers=1)
        for k, own in enumerate(values):
            call.srcs[k] = own.ctypes.data
        call.dsts[0] = out.ctypes.data
        ctypes.CDLL(str(tmp_path / "sum.so")).sum(ctypes.byref(call), 3)
        expected = tree([own.astype(np.float32) for own in values]).astype(dtype)
        expected[:3] = expected[690:] = 0
        assert np.array_equal(out.view(np.uint16), expected.view(np.uint16)), members
