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


#: The models of the page's table: what is given beside the size of GPT-2 124M, and to its step.
MODELS = {
    "124M, T 1024, B 64": ["--layers=12", "--batch=64"],
    "350M, T 2048, B 16": ["--hidden=1024", "--layers=24", "--heads=16", "--seq=2048",
                           "--batch=16"],
    "1.3B, T 2048, B 8": ["--hidden=2048", "--layers=24", "--heads=32", "--seq=2048",
                          "--batch=8"],
}


def rows_of_steps():
    """The cells of the page's table of steps right of the device, by model and device."""
    text = PAGE.read_text().split("### Of a step")[1]
    found, model = {}, None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 9 and cells[2] in ("H200", "H100", "A100"):
            model = cells[0] or model
            tokens = cells[1] or found[model, "H200"][0]
            found[model, cells[2]] = [tokens, *cells[3:]]
    return found


@pytest.mark.parametrize("model", MODELS)
def test_the_page_has_these_figures(model, tmp_path):
    """Milliseconds of each row, tokens and launches."""
    path = tmp_path / "gpt.mlir"
    assert write_model(["gpt", *MODELS[model], "-o", str(path)]) == 0
    assert {name for name, _ in rows_of_steps()} == set(MODELS)
    for device in ("H200", "H100", "A100"):
        found, _ = predict(path, device.lower(), tmp_path)
        tokens, *times, rate, launches = rows_of_steps()[model, device]
        assert int(tokens) == found["tokens"]
        assert int(launches) == found["launches"], (device, launches)
        products, attention = (sum(kind["seconds"] for kind in found["kinds"]
                                   if kind["kind"].startswith(start))
                               for start in ("products", "attention"))
        whole = found["seconds"]
        expected = [products, attention, whole - products - attention, whole]
        assert [float(time) for time in times] == pytest.approx(
            [1e3 * seconds for seconds in expected], rel=2e-3, abs=0.051), device
        assert rate.endswith(" k") and float(rate[:-2]) == pytest.approx(
            found["tokens"] / whole / 1e3, rel=2e-3, abs=0.51)


def test_the_page_has_the_time_with_recomputation(gpt, tmp_path):
    found, _ = predict(gpt, "h200", tmp_path, "--recompute=free,regions")
    (time, rate), = re.findall(r"`--recompute free,regions`, 124M on an H200 takes ([\d.]+) ms, "
                               r"(\d+) k tokens/s", PAGE.read_text())
    assert float(time) == pytest.approx(1e3 * found["seconds"], rel=2e-3)
    assert float(rate) == pytest.approx(found["tokens"] / found["seconds"] / 1e3, rel=2e-3)


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
