# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Nothing is decided by a report: with every key of every report renamed, random models with
random options have the same IR, programs and kernels, the same policy of recomputation within a
limit, the same answer of --fit and the same prediction. 2 models by default, 60 with
``CLEAVE_TEST_ALL=1``.
"""

import json

import cleave
from cleave import _cleave
from cleave.testing.tools import run_tool, tool
from proofs import ALL
from training_support import compile_case, family

COUNT = 60 if ALL else 2


def test_renamed_keys_change_no_plan():
    found = json.loads(run_tool([tool("cleave-fuzz"), "--report-keys", f"--count={COUNT}",
                                 "--seed=6"]))
    assert found["failures"] == 0
    assert found["models"] >= 2
    assert found["questions"].keys() == {"plan", "limit", "refused", "over", "micro-batch",
                                         "devices", "predict", "measure"}
    # Reports were there to be renamed.
    assert found["keys"] > 500 * found["models"]


def test_python_decides_by_no_report(monkeypatch):
    """Modules are those of the stages, which a step knows without its report."""
    monkeypatch.setattr(_cleave.Compiled, "report", lambda compiled: "{}")
    step = compile_case(family("gpt2", n_layer=3), cleave.SGD(lr=0.1), grad_horizon=1,
                        mesh={"pp": 2})
    assert not step.report()
    assert [line for line in step.explain("full").splitlines() if line.startswith("module ")] == [
        "module 1 of 2: trained by the head after module 1",
        "module 2 of 2: trained by the model's head"]
