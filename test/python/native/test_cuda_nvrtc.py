# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The kernels of training steps of real widths, compiled by NVIDIA's own compiler: it accepts all
of them, and keeps what they compute in registers. It needs no GPU, and says nothing of results."""

import functools
import re

import numpy as np
import pytest

import cuda_nvrtc
import kernel_traffic
from cleave.models.__main__ import main as write_model
from cleave.testing.tools import REPOSITORY, run_tool, tool
from proofs import ALL

pytestmark = pytest.mark.skipif(bool(cuda_nvrtc.reason()), reason=cuda_nvrtc.reason())

FAMILIES = ["gpt", "llama", "bert", "vit", "switch", "mixtral"]
PRECISIONS = ["f32", "bf16", "fp16"]
#: The multiprocessors of each.
PROCESSORS = {"sm_80": 108, "sm_90": 132, "sm_100": 148}
#: KiB of shared memory that a block can have.
SHARED = {"sm_80": 163, "sm_90": 227, "sm_100": 227}
ARCHITECTURES = list(PROCESSORS)
#: Of two layers, so that kernels between layers are among them.
SIZE = "--hidden=768 --heads=12 --layers=2 --seq=1024 --vocab=50257 --batch=8 --dropout=0.1".split()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A function of (family, precision, architecture) that gives the text of the kernels of a
    training step, and the module that they are printed from."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def compile_step(family, precision, architecture):
        path = folder / f"{family}.mlir"
        if not path.exists():
            assert write_model([family, *SIZE, "-o", str(path)]) == 0
        return [run_tool([tool("cleave-compile"), str(path), "--target=cuda",
                          f"--precision={precision}", f"--arch={architecture}", f"--emit={what}",
                          "-o", "-"]) for what in ("cuda", "executable")]
    return compile_step


CASES = [(family, precision, architecture) for family in FAMILIES for precision in PRECISIONS
         for architecture in ARCHITECTURES]
SAMPLE = [("gpt", "bf16", "sm_90"), ("llama", "bf16", "sm_100"), ("bert", "fp16", "sm_80"),
          ("vit", "f32", "sm_100"), ("switch", "f32", "sm_80"), ("mixtral", "bf16", "sm_90")]
cases = pytest.mark.parametrize("family, precision, architecture", CASES if ALL else SAMPLE)


def generated(text):
    """Without the kernels of other commands, which are alike in all models and take NVRTC longer
    than all others together."""
    return text[:kernel_traffic.end(text)]


@functools.cache
def compile_kernels(text, architecture):
    return cuda_nvrtc.compile_text(text, architecture, "--ptxas-options=-v")


# Compilation --------------------------------------------------------------------------


@cases
def test_all_kernels_compile(family, precision, architecture, compiled):
    text = compiled(family, precision, architecture)[0]
    if not ALL and family != "gpt":
        text = generated(text)
    ptx, log = compile_kernels(text, architecture)
    found = cuda_nvrtc.resources(log)
    assert len(found) == text.count('extern "C" __global__') == len(cuda_nvrtc.entries(ptx))
    assert not {name: used.spilled for name, used in found.items() if used.spilled}


# Widths of accesses -------------------------------------------------------------------


def vectors(kernel):
    """The elements that one thread could have side by side: 16 bytes of the narrowest type that
    is accessed along columns."""
    narrowest = min((kernel.arguments[a.of][1] for a in kernel.accesses
                     if a.of is not None and a.at is not None and moves(a)), default=4)
    count = 16 // min(narrowest, 4)
    while kernel.cols % count or kernel.valid % count:
        count //= 2
    return count


def moves(access):
    """Whether the place depends on the column."""
    return len({access.map(1, c, *[3] * access.symbols) for c in range(8)}) > 1


def may_be_wide(kernel, access):
    """Whether 16 bytes at a time are allowed, of what the module says alone: `n` neighbours of a
    row are `n` neighbours in memory, that begin at a multiple of 16 bytes, in each of many places
    of the space and of what an index may be."""
    if access.of is None or access.at is None or access.scattered:
        return False
    size, count = kernel.arguments[access.of][1], vectors(kernel)
    if count * size < 16 or kernel.alignment[access.of] % 16:
        return False
    random = np.random.default_rng(1)
    for _ in range(50):
        row = int(random.integers(kernel.rows))
        column = int(random.integers(kernel.cols // count)) * count
        symbols = [int(i) for i in random.integers(0, 100, access.symbols)]
        places = [access.map(row, column + j, *symbols) for j in range(count)]
        if places[0] * size % 16 or places != list(range(places[0], places[0] + count)):
            return False
    return True


@cases
def test_accesses_have_16_bytes(family, precision, architecture, compiled):
    """Where all accesses of the passes of a kernel may be wide, PTX has no narrower one, but for
    the values of a row; where one may be, there is a wide one. Kernels with running sums, in which
    one thread has a row, are left out, and sums in a chosen order."""
    text, module = compiled(family, precision, architecture)
    kernels = kernel_traffic.parse_module(module)
    if not ALL and family != "gpt":
        text = generated(text)
    entries = cuda_nvrtc.entries(compile_kernels(text, architecture)[0])
    checked, narrow = 0, {}
    for name, kernel in kernels.items():
        # For one use or for many: the same code.
        found = cuda_nvrtc.accesses(next(body for entry, body in entries.items() if re.fullmatch(
            rf"cleave_kernel\d*_{name}", entry)))
        if "exec.scan" in kernel.body:
            continue
        for kind in ("ld", "st"):
            own = [a for a in kernel.accesses if a.of is not None and a.write == (kind == "st")]
            inside = [a for a in own if a.at is not None and moves(a)]
            wide = [may_be_wide(kernel, a) for a in inside]
            if not any(wide):
                continue
            checked += 1
            # Values of the row; in the first stage of a sum over all elements, that of a group.
            # Sines and cosines of large numbers read a table.
            rest = len(own) - len(inside) + (
                len(re.findall(r"^    exec\.accumulate", kernel.body, re.M)) if kind == "st" else
                100 if re.search(r"math\.(sin|cos)", kernel.body) else 0)
            few = sum(n for width, n in found[kind].items() if width < 16)
            if 16 not in found[kind] or (all(wide) and few > rest):
                narrow[name, kind] = found[kind]
    assert checked > 20
    assert not narrow


# Bytes --------------------------------------------------------------------------------

#: Bytes that a kernel may move, by its operands and results.
MORE = 1.1
#: The same with partial sums that are less than sums in kernels of their own would read. Each
#: multiprocessor has one block, since with fewer some had nothing to do, and each block writes a
#: row of each sum in f32, which is read again: of 148 multiprocessors, three sums and the 1576
#: rows of ViT in 16 bits, 0.225 of the operands. More rows move less.
MOST_WITH_SUMS = 1.23
#: Where it matters whether a GPU is filled.
LARGE = 1 << 20


def sums_are_less(kernel, scratch):
    """Whether partial sums are less than half of what a kernel for each sum would read again."""
    sums = len(re.findall(r"^      exec\.accumulate", kernel.body, re.M))
    least = min((n * size for n, size in kernel.arguments if n >= kernel.rows * kernel.cols),
                default=0)
    return scratch < sums * least / 2


def excess(kernels, found, architecture):
    """Of kernels over elements, rows and columns: the shares of what they move, by their name,
    where it is more than their operands and results allow; and those that only their sums allow."""
    processors, much, sums = PROCESSORS[architecture], {}, {}
    for name, t in found.items():
        kernel, loss = kernels[name], "cross_entropy" in name
        if t.skeleton not in ("map", "row", "column") or t.moved <= LARGE:
            continue
        # Of logits in f32.
        fits = 4 * kernel.cols + 4096 <= SHARED[architecture] << 10
        if t.moved <= MORE * t.operands + (t.again if loss and not fits else 0):
            continue
        # But for the sums, it moves what it must.
        of_sums = (t.grid == processors and sums_are_less(kernel, t.scratch)
                   and t.moved - t.scratch <= 1.01 * t.operands)
        (sums if of_sums else much)[name] = round(t.moved / t.operands, 3)
    return much, sums


@cases
def test_bytes_moved(family, precision, architecture, compiled):
    """What several rows read alike is in a cache. Losses over rows that do not stay in shared
    memory read them once more, for the gradient; of fewer rows than a GPU has multiprocessors, they
    have a block for each. Reads at indices are apart: those under a condition count as if it held, as for
    the rows of ViT's only token of classes."""
    text, module = compiled(family, precision, architecture)
    kernels, found = kernel_traffic.parse_module(module), kernel_traffic.count(text, module)
    processors = PROCESSORS[architecture]
    few = {}
    for name, t in found.items():
        rows = kernels[name].rows if "cross_entropy" in name else processors
        if t.moved + t.gathered > LARGE and t.grid < min(rows, processors):
            few[name] = t.grid
    assert not few
    much, sums = excess(kernels, found, architecture)
    assert not much
    assert all(share <= MOST_WITH_SUMS for share in sums.values()), sums
    # A loss reads one number of a row at its label.
    gathers = {name: t for name, t in found.items() if t.gathered and "cross_entropy" not in name
               and t.moved + t.gathered > LARGE}
    scans = [name for name, kernel in kernels.items() if "exec.scan" in kernel.body]
    shares = {name: round((t.moved + t.gathered) / t.operands, 3) for name, t in gathers.items()}
    print(f"{family} {precision} {architecture}: more for sums: {sums}; "
          f"{len(gathers)} kernels with gathers: "
          f"{sum(t.moved + t.gathered for t in gathers.values()) / 2**20:.1f} MiB, of them "
          f"{sum(t.gathered for t in gathers.values()) / 2**20:.1f} at indices, of operands and "
          f"results {sum(t.operands for t in gathers.values()) / 2**20:.1f}, most "
          f"{max(shares.values(), default=0)}; running sums: {len(scans)}")
    over = {name: share for name, share in shares.items() if share > MORE
            and gathers[name].skeleton == "gather"}
    assert not over


def test_the_page_has_the_bytes_of_sums(compiled):
    """The most that kernels with sums move, which are those of ViT; with CLEAVE_TEST_ALL=1, how
    many of all do."""
    page = " ".join((REPOSITORY / "docs" / "Performance.md").read_text().split())
    most, count = re.search(r"up to ([\d.]+) times: (\d+) of the gradients of norms of ViT", page
                            ).groups()
    found = {}
    for case in CASES if ALL else [("vit", "bf16", "sm_100")]:
        text, module = compiled(*case)
        _, sums = excess(kernel_traffic.parse_module(module), kernel_traffic.count(text, module),
                         case[2])
        found |= {(*case, name): share for name, share in sums.items()}
    print(*found.items(), sep="\n")
    assert {family for family, *_ in found} == {"vit"}
    assert f"{max(found.values()):.3f}" == most
    assert not ALL or len(found) == int(count)
