# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The estimate of a step on a GPU: its sums, and the figures that the documentation has of it."""

import json
import re
import subprocess

import pytest

from cleave.models.__main__ import main as write_model
from cleave.testing.tools import REPOSITORY, run_tool, tool

PAGE = REPOSITORY / "docs" / "Performance.md"


def predict(path, device, folder, *flags):
    report = folder / "report.json"
    text = run_tool([tool("cleave-compile"), str(path), "--target=cuda", "--precision=bf16",
                     "--plan-only", "--explain=memory", f"--predict={device}",
                     f"--report={report}", *flags])
    return json.loads(report.read_text())["prediction"], text


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "gpt.mlir"
    assert write_model(["gpt", "--layers=12", "--batch=64", "-o", str(path)]) == 0
    return path


def test_sums(gpt, tmp_path):
    found, text = predict(gpt, "h200", tmp_path)
    kinds = {kind["kind"]: kind for kind in found["kinds"]}
    assert found["estimate"] and "nothing was run" in text
    assert found["tokens"] == 64 * 1024
    assert found["launches"] == sum(kind["launches"] for kind in kinds.values())
    assert abs(found["seconds"] - sum(kind["seconds"] for kind in kinds.values())) < 1e-9
    # Six operations for each weight of a product and each token.
    weights = 12 * 12 * 768**2 + 50257 * 768
    assert abs(kinds["products of 16 bits"]["operations"] / (6 * weights * 64 * 1024) - 1) < 0.01
    # Twice seven products of a causal half; and what is in no product and no attention.
    scores = 12 * 12 * 64 * 1024**2 / 2
    assert abs(kinds["attention by cuDNN"]["operations"] / (2 * 7 * 64 * scores) - 1) < 0.01
    assert found["bytes_outside"] == sum(kind["bytes"] for name, kind in kinds.items()
                                         if not name.startswith(("products", "attention")))


@pytest.mark.parametrize("device", ["h200", "h100", "a100"])
def test_the_page_has_these_figures(device, gpt, tmp_path):
    found, _ = predict(gpt, device, tmp_path)
    table = PAGE.read_text().split("| 124M, T 1024, B 64 ")[1].split("| 350M")[0]
    row = next(line for line in table.splitlines() if f"| {device.upper()} |" in line)
    step = float(re.findall(r"\| ([\d.]+) ", row)[-3])
    assert abs(1e3 * found["seconds"] / step - 1) < 0.02


@pytest.mark.parametrize("flags, beside", [(["--residual=f32", "--recompute=none"], 16),
                                           ([], 16), (["--recompute=free"], 8)])
def test_the_page_has_the_bytes_of_a_layer(flags, beside, tmp_path):
    """A layer's share of what a token moves: of models of two and three layers, the weights' left out."""
    def moved(layers, batch):
        path = tmp_path / f"gpt{layers}-{batch}.mlir"
        assert write_model(["gpt", f"--layers={layers}", f"--batch={batch}", "-o", str(path)]) == 0
        return predict(path, "h200", tmp_path, *flags)[0]["bytes_outside"]

    of_batch = [moved(3, batch) - moved(2, batch) for batch in (8, 16)]
    found = (of_batch[1] - of_batch[0]) / (8 * 1024 * 768) + beside
    text = PAGE.read_text()
    sums = [[int(x) for x in re.findall(r"\d+", line)]
            for line in text.splitlines() if line.startswith("| sum | ") and line.count("|") == 7]
    assert len(sums) == 2
    both = [forward + backward for forward, backward in zip(*sums)]
    assert both[:2] == [206, 138] and both[3] == 110
    if "--recompute=free" in flags:
        assert f"moves {found:.0f} d in 16 bits" in text
    else:
        assert abs(both[2 if "--residual=f32" in flags else 4] - found) < 1
        assert found <= 0.7 * both[1 if "--residual=f32" in flags else 3]


def test_refusals(gpt):
    for flags, message in [(["--predict=h200"], "--predict is of --target cuda"),
                           (["--target=cuda", "--predict=tpu"], "not 'tpu'")]:
        result = subprocess.run([tool("cleave-compile"), gpt, "--plan-only", *flags],
                                capture_output=True, text=True)
        assert result.returncode == 2 and message in result.stderr
