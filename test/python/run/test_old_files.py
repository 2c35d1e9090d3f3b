# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Files that an earlier version wrote (test/old) are read, and training goes on from them as that
version went on: checkpoints, artifacts, IR, texts that options name, tables, stores."""

import json
import os
import pathlib
import shutil
import tarfile
import warnings

import pytest

import cleave
from cleave.testing.tools import build_dir
from old_files import (ARTIFACTS, CASES, CPU, FLAGS, STEPS, TEXTS, run, step, summary, train)
from run_support import metrics, pytestmark  # noqa: F401

OLD = pathlib.Path(__file__).parents[2] / "old"
VERSIONS = sorted(path.stem for path in OLD.glob("*.json"))


@pytest.fixture(scope="module", params=VERSIONS)
def files(request, tmp_path_factory):
    """The files of a version, and the numbers that it computed from them."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(OLD / f"{request.param}.tar.xz") as archive:
        # Python 3.11.2, which Debian has, knows no filters.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder, json.loads((OLD / f"{request.param}.json").read_text())


@pytest.fixture
def old(files, tmp_path, monkeypatch):
    """These, in the current folder, which the test may change."""
    shutil.copytree(files[0], tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return files[1]


def compiled(model, flags):
    run("cleave-compile", f"{model}.mlir", *flags, *CPU, "--threads=1", "-o", "new.so")
    return "./new.so"


def near(found, expected, rtol):
    """Sums of tensors: their terms cancel, so the sum of absolute values is the measure."""
    assert found.keys() == expected.keys()
    for name, (total, size) in expected.items():
        assert found[name] == pytest.approx([total, size], rel=rtol, abs=rtol * size), name


def goes_on(artifact, checkpoint, expected, rtol, *flags):
    run("cleave-run", artifact, *FLAGS, f"--resume={checkpoint}", "--save-every=6",
        "--save-dir=end", "--log=log", *flags)
    losses = [line.get("loss") for line in metrics("log")]
    assert losses == [value if value is None else pytest.approx(value, rel=rtol)
                      for value in expected["losses"]]
    if "sums" in expected:
        near(summary("end/step-6"), expected["sums"], rtol)


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_goes_on(old, name):
    """Of `cleave-run`, by a program compiled anew from the model and the flags of then."""
    case = CASES[name]
    goes_on(compiled(case.model, case.flags), f"checkpoints/{name}", old[name], case.rtol)


def test_shards_go_on_on_one_rank(old):
    goes_on(compiled("tiny", ["--optimizer=lion"]), "checkpoints/zero1", old["zero1"], 1e-4)


@pytest.mark.parametrize("name", ARTIFACTS)
def test_an_artifact_runs(old, name):
    goes_on(f"./{name}.so", f"checkpoints/{name}", old[name], CASES[name].rtol)


def test_an_artifact_of_another_format_says_so(old):
    """Its code is compiled again, from the model."""
    data = pathlib.Path("zero1.so").read_bytes()
    text = b'"version":16'
    assert data.count(text) == 1
    pathlib.Path("zero1.so").write_bytes(data.replace(text, b'"version":15'))
    with pytest.raises(AssertionError, match="zero1.so: .*compile the model again"):
        run("cleave-run", "./zero1.so", *FLAGS, "--resume=checkpoints/zero1")


def test_the_table_of_an_artifact_for_gpus_is_read(old):
    """It is kept without its code, which is all that is missing."""
    with pytest.raises(AssertionError, match="CUDA: loading the kernels"):
        run("cleave-run", "./cuda.so", *FLAGS, "--random-init",
            CLEAVE_CUDA_LIBRARIES=str(build_dir() / "fake_cuda"), CLEAVE_FAKE_DEVICES="1")


@pytest.mark.parametrize("name", STEPS)
def test_a_step_goes_on(old, name):
    """From a checkpoint of `Step.save`, with dropout as it would have been."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        made = step(name)
    made.load(f"steps/{name}")
    assert (made.step, made.data_position) == (3, 12)
    rtol = 1e-2 if "precision" in STEPS[name] else 1e-4
    assert train(made, 4) == pytest.approx(old[f"step {name}"]["losses"], rel=rtol)
    made.save("end")
    near(summary("end"), old[f"step {name}"]["sums"], rtol)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_read(old, name):
    _, flags = TEXTS[name]
    rtol = 1e-2 if "bf16" in flags else 1e-4
    goes_on(compiled("tiny", flags.split()), "checkpoints/f32", old[name], rtol)


def test_rates_and_times_are_read(old):
    # Rates decide where stages begin, and times are of the stages of then.
    for measured in ("--machine=machine.json", "--measured-costs=trace.json"):
        run("cleave-compile", "tiny.mlir", "--mesh=pp=2", "--micro-batches=2", measured,
            "--plan-only", "--threads=1")
    before = json.loads(pathlib.Path("tuning.json").read_text())
    said = run("cleave-run", "./pipeline.so", *FLAGS, "--resume=checkpoints/pipeline",
               CLEAVE_TUNING="tuning.json")
    assert "is not a file of measured contractions" not in said
    assert before.items() <= json.loads(pathlib.Path("tuning.json").read_text()).items()


@pytest.mark.parametrize("phase", ["step", "placed", "local", "scheduled", "executable"])
def test_ir_is_read(old, phase):
    """With the attributes of then: it is parsed and verified."""
    run("cleave-opt", f"{phase}.mlir", "-o", "out.mlir")


def test_stored_tokens_are_those_of_the_text(old):
    """The name of a store holds place and time of its text; its bytes are as they were."""
    (stored,) = pathlib.Path("cache").rglob("*.bin")
    flags = [*FLAGS[1:], "--resume=checkpoints/zero1", "--accept-changes", "--log=log"]
    run("cleave-run", "./zero1.so", "--data=text.txt", "--tokenizer=tokenizer.json", *flags,
        XDG_CACHE_HOME=os.path.abspath("other"))
    (made,) = pathlib.Path("other").rglob("*.bin")
    assert made.read_bytes() == stored.read_bytes()
    from_text = [line["loss"] for line in metrics("log")]
    run("cleave-run", "./zero1.so", f"--data={stored}", "--token-dtype=i32", *flags)
    assert from_text == [line["loss"] for line in metrics("log")][-3:]
    assert from_text == pytest.approx(old["tokens"]["losses"], rel=1e-4)


def test_a_store_and_the_position_of_a_feed_are_read(old):
    store = cleave.feed.Store("store.db")
    store.fetch(old["store"]["hash"], "out")
    assert summary("out") == summary("steps/dropout")
    feed = cleave.feed.Feed(cleave.feed.SQLite("rows.db", "select id, value from rows", key="id"),
                            batch=3, shuffle=4, seed=2)
    feed.position = old["feed"]["position"]
    batches = iter(feed)
    assert [int(v) for _ in range(4) for v in next(batches)["value"]] == old["feed"]["values"]
