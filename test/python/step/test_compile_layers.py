# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The cost of compilation by the number of layers: kernels are those of one
layer, and memory grows by the same for each further layer. Its time is linear
in the uses of one value."""

import sys

import pytest

from cleave.models import __main__ as models
from cleave.testing.tools import run_tool, tool

#: Equal steps, so that what each adds can be compared.
LAYERS = (4, 24, 44)
SIZE = "--hidden 64 --heads 2 --seq 32 --vocab 100"

#: Prints the peak memory of a command in KiB. A process of its own, because a
#: child's peak counts what its parent held when it was made.
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The file of a model of each number of layers."""
    folder = tmp_path_factory.mktemp("layers")
    files = {n: folder / f"gpt{n}.mlir" for n in LAYERS}
    for n, file in files.items():
        assert models.main(["gpt", *SIZE.split(), f"--layers={n}", "-o", str(file)]) == 0
    return files


def test_equal_layers_share_kernels(modules):
    counts = {}
    for n in LAYERS[:2]:
        text = run_tool([tool("cleave-compile"), str(modules[n]), "--max-grad-norm", "1",
                         "--emit=executable"])
        counts[n] = text.count("exec.kernel @")
        assert text.count("exec.launch @") > n
    assert counts[LAYERS[0]] == counts[LAYERS[1]] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says")
def test_memory_is_linear_in_layers(modules):
    peaks = []
    for n in LAYERS:
        peaks.append(int(run_tool([sys.executable, "-c", PEAK, tool("cleave-compile"),
                                   str(modules[n]), "--max-grad-norm", "1", "-o",
                                   str(modules[n].with_suffix(".so"))])))
    first, second = peaks[1] - peaks[0], peaks[2] - peaks[1]
    assert second < 1.25 * first, f"KiB at {LAYERS} layers: {peaks}"


def uses(kind, count):
    """A module in which so many ops read one value."""
    x = "tensor<8x64xf32>"
    value, args = {"add": ("add %v{}, %x", f"({x}, {x})"), "mul": ("mul %v{}, %v0", f"({x}, {x})"),
                   "bias": ("add %v{}, %b", f"({x}, tensor<64xf32>)"),
                   "linear": ("linear %v{}, %w", f"({x}, tensor<64x64xf32>)")}[kind]
    lines = [f"    %v{i + 1} = graph.{value.format(i)} : {args} -> {x}" for i in range(count)]
    return "\n".join([
        "module {",
        '  func.func @loss(%w: tensor<64x64xf32> {graph.name = "w", graph.role = "parameter"},',
        '      %b: tensor<64xf32> {graph.name = "b", graph.role = "parameter"},',
        f'      %x: {x} {{graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64}})',
        '      -> (tensor<f32> {graph.name = "loss"}) {',
        f"    %v0 = graph.add %x, %b : ({x}, tensor<64xf32>) -> {x}", *lines,
        f"    %m = graph.reduce sum %v{count} {{dims = array<i64: 0, 1>}} : ({x}) -> tensor<f32>",
        "    return %m : tensor<f32>", "  }", "}"])


#: Prints the CPU time of a command itself, in seconds.
SECONDS = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)
"""


@pytest.mark.parametrize("kind", ["add", "mul", "bias", "linear"])
def test_time_is_linear_in_the_uses_of_a_value(kind, tmp_path):
    """4 times the ops take 4 times as long, not 16."""
    seconds = []
    for count in (500, 2000):
        file = tmp_path / f"{kind}{count}.mlir"
        file.write_text(uses(kind, count))
        seconds.append(min(float(run_tool([sys.executable, "-c", SECONDS, tool("cleave-compile"),
                                           str(file), "--threads=1", "--optimizer=sgd",
                                           "--plan-only", "--report", str(tmp_path / "r.json")]))
                           for _ in range(2)))
    assert seconds[1] < 8 * seconds[0], seconds
