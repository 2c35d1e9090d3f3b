# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""A run calls its step, evaluates, saves and calls back in order, and trains as a plain loop does."""

import math
import re

import pytest
import torch

import cleave
from cleave.run import rates
from loop_runs import BATCH, LENGTH, Recorder, loader, make_step
from training_support import net, same_bits, snapshot, token_batches, token_loss, tokens


@pytest.fixture(scope="module")
def shared():
    """A step that tests of messages share; none of them trains it."""
    return make_step()


def test_as_eager_training():
    """Losses as those of PyTorch's own loop, and state as that of a plain loop, bit for bit."""
    batches = token_batches(5)
    run_step, plain, recorder = make_step(), make_step(), Recorder()
    last = cleave.Run(run_step, batches, callbacks=[recorder]).fit(epochs=2)
    losses = [float(plain(*batch)) for batch in batches * 2]
    assert recorder.losses == losses and float(last) == losses[-1] and last.step == 10
    assert same_bits(snapshot(run_step), snapshot(plain))

    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=cleave.AdamW().weight_decay)
    rate = cleave.cosine(1e-2, warmup=3, steps=40).value
    for number, (ids, labels) in enumerate(batches * 2):
        optimizer.param_groups[0]["lr"] = rate(number)
        loss = token_loss(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert abs(loss.item() - losses[number]) < 1e-4


def test_order(tmp_path):
    recorder = Recorder()
    run = cleave.Run(make_step(), token_batches(3), eval_data=token_batches(2, batch=4), eval_every=2,
                     callbacks=[recorder], folder=tmp_path / "run", save_every=3)
    run.fit(steps=4)
    assert recorder.events == ["start", "step 1", "step 2", "evaluate 2", "step 3", "save 3", "step 4",
                               "evaluate 4", "save 4", "end"]
    assert run.epoch == 1 and sorted(p.name for p in (tmp_path / "run").iterdir()) == ["step-3", "step-4"]
    # A second call goes on, also in the folder that is its own.
    run.fit(steps=5)
    assert recorder.events[10:] == ["start", "step 5", "evaluate 5", "save 5", "end"]


def test_an_evaluation_is_weighted_by_labels():
    """The loss of a data set, whatever is ignored in its batches and however it is shuffled."""
    step = cleave.compile(net(), tokens(), token_loss, optimizer=cleave.SGD(lr=0.1), mesh={"dp": 2})
    batches = [tokens(seed=1), tokens(seed=2, ignored=6), tokens(seed=3, ignored=3)]
    run = cleave.Run(step, batches, eval_data=batches)
    model, total, count = net(), 0.0, 0
    for ids, labels in batches:
        own = (labels != -100).sum().item()
        total += token_loss(model(ids), labels).item() * own
        count += own
    assert abs(run.evaluate()["loss"] - total / count) < 1e-5
    torch.manual_seed(1)
    before = torch.get_rng_state()
    shuffled = torch.utils.data.DataLoader(list(zip(*(torch.cat(x) for x in zip(*batches)))), batch_size=4,
                                           shuffle=True)
    assert abs(run.evaluate(shuffled)["loss"] - total / count) < 1e-5
    assert torch.equal(torch.get_rng_state(), before)
    limited = cleave.Run(step, batches, eval_data=batches, eval_batches=1)
    assert limited.evaluate()["loss"] == float(step.evaluate(*batches[0]))
    with pytest.raises(ValueError, match="no batches"):
        run.evaluate([])


def test_stop_and_errors():
    class Stops:
        def on_step(self, run, values):
            if run.step.step == 2:
                run.stop()

    recorder = Recorder()
    step = make_step()
    cleave.Run(step, token_batches(3), callbacks=[Stops(), recorder]).fit(steps=9)
    assert step.step == 2 and recorder.events[-1] == "end"

    class Raises(cleave.run.Callback):
        def on_step(self, run, values):
            raise KeyError("a callback's own")

        def on_end(self, run, error):
            raise OSError("at the end")

    recorder = Recorder()
    with pytest.warns(UserWarning, match="Raises.on_end raised OSError: at the end"), \
            pytest.raises(KeyError, match="a callback's own") as error:
        cleave.Run(step, token_batches(3), callbacks=[recorder, Raises()]).fit(steps=9)
    assert any(entry.name == "on_step" for entry in error.traceback)
    assert recorder.events == ["start", "step 3", "end KeyError"] and step.step == 3


def test_numbers(tmp_path):
    """Rates, norms and the share of a peak."""
    found = []

    class Keeps:
        def on_step(self, run, values):
            found.append((dict(values), run.seconds_left))

    step = make_step()
    run = cleave.Run(step, token_batches(4), callbacks=[Keeps()], log_every=2, peak=1e9,
                     norms=["parameter", "each parameter", "gradient"])
    run.fit(steps=4)
    first, second = found[0][0], found[1][0]
    assert set(first) == {"loss", "grad_norm", "lr", "tokens_per_s", "ms", "data_ms", "epoch", "mfu"}
    names = dict(step._module.named_parameters())
    assert {f"param_norm/{name}" for name in names} | {"param_norm"} == set(second) - set(first)
    state = step.state_dict()
    last = found[3][0]
    for name in names:
        assert math.isclose(last[f"param_norm/{name}"], state[name].double().norm().item(), rel_tol=1e-6)
    whole = torch.cat([state[name].double().flatten() for name in names]).norm().item()
    assert math.isclose(last["param_norm"], whole, rel_tol=1e-6)
    assert first["lr"] == 0 and found[1][0]["lr"] > 0 and first["grad_norm"] > 0
    operations, devices = rates.operations_of(step)
    assert devices == 4
    assert math.isclose(first["mfu"], operations / (first["ms"] * 1e-3 * 4 * 1e9))
    assert found[0][1] is None and found[2][1] > 0


def test_operations_are_those_of_the_model():
    """6 operations for each weight of a matmul and token, 3 for each bias, and 12 for each score and
    feature of a head, on any mesh, also where backward computes matmuls again."""
    linear = [m for m in net().modules() if isinstance(m, torch.nn.Linear)]
    each = sum(6 * m.weight.numel() + (0 if m.bias is None else 3 * m.bias.numel()) for m in linear)
    expected = BATCH * LENGTH * (each + 12 * LENGTH * 32)
    for mesh in ({}, {"dp": 2}, {"dp": 2, "tp": 2}):
        assert rates.operations_of(make_step(mesh)) == (expected, math.prod(mesh.values())), mesh
    again = make_step({"dp": 2}, memory=cleave.Memory(recompute="full"))
    assert rates.operations_of(again) == (expected, 2)


@pytest.mark.parametrize("form", ["lines", "bar", "none", "auto"])
def test_progress(capsys, form):
    step = make_step({"dp": 2})
    cleave.Run(step, token_batches(3), eval_data=token_batches(1), log_every=2, progress=form, peak=1e12).fit(steps=4)
    text = capsys.readouterr().out
    if form in ("none", "auto"):  # Standard output is not a terminal here.
        assert text == ""
        return
    lines = [line.strip() for line in text.split("\r" if form == "bar" else "\n") if line.strip()]
    steps = [line for line in lines if " loss " in line and "tokens/s" in line]
    assert len(steps) == (4 if form == "bar" else 2)
    assert re.match(r"step 4/4  loss \d\.\d{4}  [\d,]+ tokens/s  MFU \d+\.\d%  0s left", steps[-1])
    assert re.match(r"step 4: evaluated, loss \d\.\d{4}", lines[-1])


@pytest.mark.parametrize("arguments, error, text", [
    (dict(eval_every=2), ValueError, "eval_data, which is not given"),
    (dict(save_every=2), ValueError, "give folder="),
    (dict(keep=0, folder="x"), ValueError, "keep is 0"),
    (dict(save_minutes=-1, folder="x"), ValueError, "above 0"),
    (dict(save_minutes="1", folder="x"), TypeError, "must be a number"),
    (dict(callbacks=[3]), TypeError, "int is among the callbacks"),
    (dict(callbacks=[Recorder]), TypeError, "the class Recorder is among"),
    (dict(norms="weights"), ValueError, "norms has 'weights'"),
    (dict(peak="h900"), ValueError, "known are a100, h100, h200"),
    (dict(peak=-1.0), ValueError, "finite number above 0"),
    (dict(progress="dots"), ValueError, "progress is 'dots'"),
    (dict(log_every=0), ValueError, "log_every is 0"),
])
def test_wrong_arguments(shared, arguments, error, text):
    with pytest.raises(error, match=text):
        cleave.Run(shared, [tokens()], **arguments)


def test_wrong_calls(shared, tmp_path):
    with pytest.raises(TypeError, match="int, not a cleave.Step"):
        cleave.Run(3, [])
    with pytest.raises(TypeError, match="data is int"):
        cleave.Run(shared, 3)
    run = cleave.Run(shared, [tokens()])
    with pytest.raises(ValueError, match="steps or epochs"):
        run.fit()
    with pytest.raises(ValueError, match="needs the folder"):
        run.fit(1, resume="auto")
    with pytest.raises(FileNotFoundError):
        run.fit(1, resume=tmp_path)
    with pytest.raises(ValueError, match="read once"):
        cleave.Run(shared, iter([tokens()])).fit(epochs=2)
    with pytest.raises(ValueError, match="has no batches"):
        cleave.Run(shared, []).fit(steps=1)
    with pytest.raises(ValueError, match="no folder to save in"):
        run.save()
    plain = cleave.compile(net(), tokens(), token_loss, optimizer=cleave.SGD(lr=0.1))
    with pytest.raises(ValueError, match="computes no norm"):
        cleave.Run(plain, [tokens()], norms="gradient")
    assert shared.step == 0


def test_the_peak_of_a_device(shared):
    assert cleave.Run(shared, loader(), peak="H100")._utilisation.peak == 989e12
