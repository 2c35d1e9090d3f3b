# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What compilation costs by the number of layers: kernels are those of one
layer, and memory grows by the same for each further layer."""

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
        text = run_tool([tool("cleave-compile"), str(modules[n]), "--clip", "1",
                         "--emit=executable"])
        counts[n] = text.count("exec.kernel @")
        assert text.count("exec.launch @") > n
    assert counts[LAYERS[0]] == counts[LAYERS[1]] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says")
def test_memory_is_linear_in_layers(modules):
    peaks = []
    for n in LAYERS:
        peaks.append(int(run_tool([sys.executable, "-c", PEAK, tool("cleave-compile"),
                                   str(modules[n]), "--clip", "1", "-o",
                                   str(modules[n].with_suffix(".so"))])))
    first, second = peaks[1] - peaks[0], peaks[2] - peaks[1]
    assert second < 1.25 * first, f"KiB at {LAYERS} layers: {peaks}"
