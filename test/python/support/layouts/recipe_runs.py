# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The split program against the whole one, in f64 by the interpreter: models, cases and the comparison."""

import functools
import re

import numpy as np

from cleave.testing.tools import interpret, run_tool, tool
from cleave.trace import trace
from family_models import FAMILIES, build
from native_layouts import SHARE, SHARE_OF_SHARDINGS, Expected, check_native, is_chosen
from trace_support import text_in_double

BATCH, LENGTH = 8, 8

MODELS = {
    "gpt2": dict(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1),
    "llama": dict(attention_dropout=0.1),
    "bert": dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
}

#: Recipe lists by a mesh they fit.
CASES = [
    ("dp=2", ""),
    ("dp=4", "zero1"),
    ("dp=2", "zero2"),
    ("dp=4", "zero3"),
    ("tp=2", "megatron"),
    ("tp=2", "megatron-sp"),
    ("cp=2", "ulysses"),
    ("dp=2,tp=2", "megatron,zero1"),
    ("dp=2,tp=2", "megatron-sp,zero2"),
    ("tp=2,dp=2", "megatron-sp,zero3"),
    ("dp=2,cp=2", "ulysses,zero3"),
    ("dp=2,cp=2", "ulysses,zero1(cp)"),
    ("dp=2,fsdp=2", "dp(fsdp),zero3(fsdp)"),
    ("dp=2,tp=2,fsdp=2", "megatron-sp,dp(fsdp),zero3(fsdp),zero1"),
    ("cp=2", "context"),
    ("cp=4", "context"),
    ("cp=8", "context"),
    ("dp=2,cp=2", "context,zero1"),
    ("dp=2,cp=2", "context,zero3,zero1(cp)"),
    ("cp=2,tp=2", "context,megatron"),
    ("tp=2,cp=2", "context,megatron-sp"),
    ("cp=2,up=2", "context,ulysses(up)"),
    ("cp=2", "ring"),
    ("cp=4", "ring"),
    ("cp=8", "ring"),
    ("dp=2,cp=2", "ring,zero1"),
    ("cp=2,dp=2", "ring,zero2"),
    ("dp=2,cp=4", "ring,zero3,zero1(cp)"),
    ("cp=2,tp=2", "ring,megatron"),
    ("tp=2,cp=4", "ring,megatron-sp"),
    ("dp=2,cp=2,tp=2", "ring,megatron-sp,zero3"),
    ("cp=2,up=2", "ring,ulysses(up)"),
    ("up=2,cp=4", "ulysses(up),ring"),
    ("row=2,col=2", "summa2d"),
    ("dp=2,row=2,col=2", "summa2d,zero1"),
    ("dp=2,row=2,col=2", "summa2d,zero3"),
    ("depth=2,row=2,col=2", "summa25d"),
    ("depth=2,row=2,col=2", "summa25d,zero2(depth)"),
    ("row=2,col=2,cp=2", "summa2d,ring"),
    ("cp=2", "two-ring"),
    ("cp=4", "two-ring"),
    ("cp=8", "two-ring"),
    ("dp=2,cp=2", "two-ring,zero1"),
    ("cp=2,tp=2", "two-ring,megatron-sp"),
    ("tp=2,cp=4", "two-ring,megatron"),
]


def family(name, **changes):
    """Makes a model of test_trace_families."""
    model, config, settings, _ = FAMILIES[name]
    return lambda: build(model, config, **{**settings, **changes})


#: How to make each model.
MAKERS = {name: family(name, **changes) for name, changes in MODELS.items()}


@functools.cache
def traced_model(name, batch=BATCH, length=LENGTH, *changes):
    """`changes`: pairs of a setting of the model and its value."""
    import torch

    torch.manual_seed(0)
    make = family(name, **{**MODELS.get(name, {}), **dict(changes)}) if changes else MAKERS[name]
    module = make().train().double()
    ids = torch.randint(3, 96, (batch, length))
    # What a model asks to be computed in f32, such as its loss, is in f64 too.
    return text_in_double(trace(module, dict(input_ids=ids, labels=ids)).mlir)


def model_file(folder, name, sizes=(BATCH, LENGTH)):
    """`sizes`: samples, places, and changes of the model."""
    path = folder / f"{name}-{hash(sizes) & 0xffffffff:x}.mlir"
    path.write_text(traced_model(name, *sizes))
    return path


def emit(folder, name, phase, *flags, sizes=(BATCH, LENGTH)):
    path = model_file(folder, name, sizes)
    return run_tool([tool("cleave-compile"), str(path), f"--emit={phase}", *flags])


OPTIMIZERS = {
    "sgd": ["--optimizer=sgd", "--momentum=0.9", "--max-grad-norm=0.5"],
    # With the default of eps, a gradient that is 0 but for rounding makes an
    # update of full size.
    "adamw": ["--optimizer=adamw", "--eps=1e-3", "--weight-decay=0.1"],
}

TYPES = {"f64": np.float64, "f32": np.float32, "i64": np.int64}


def random_inputs(step, seed=7):
    """Values for every argument of @train, drawn by what it is."""
    header = re.search(r"func\.func @train\((.*?)\n", step).group(1)
    rng = np.random.default_rng(seed)
    values = {}
    for shape, dtype, attributes in re.findall(
            r"%arg\d+: tensor<((?:\d+x)*)(\w+)> \{(.*?)\}(?=, %arg|\) ->)", header):
        shape = tuple(int(n) for n in shape.split("x")[:-1])
        name = re.search(r'graph\.name = "([^"]*)"', attributes).group(1)
        role = re.search(r'graph\.role = "([^"]*)"', attributes).group(1)
        if role == "input":
            value = rng.integers(3, 96, shape)
            if name == "labels" and len(shape) > 1:
                value[:, -3:][rng.random((shape[0], 3)) < 0.5] = -100
        elif role == "state":
            value = rng.random(shape)
        elif role == "rng":
            value = np.array([5, 3]).reshape(shape) if shape else np.array(5)
        elif role == "scalar":
            value = np.full(shape, 3 if dtype == "i64" else 0.1)
        else:
            value = rng.standard_normal(shape) * 0.3
        values[name] = value.astype(TYPES[dtype])
    return values


@functools.cache
def whole_run(name, optimizer, folder, sizes=(BATCH, LENGTH)):
    step = emit(folder, name, "step", *OPTIMIZERS[optimizer], sizes=sizes)
    inputs = random_inputs(step)
    return inputs, *interpret(step, inputs, entry="train")


@functools.cache
def whole_steps(name, optimizer, folder, sizes=(BATCH, LENGTH)):
    """Several steps of it."""
    inputs, results, _ = whole_run(name, optimizer, folder, sizes)
    step = emit(folder, name, "step", *OPTIMIZERS[optimizer], sizes=sizes)
    return Expected(step, inputs, results)


def agree_natively(folder, name, optimizer, *flags, sizes=(BATCH, LENGTH), share=SHARE):
    """Of the cases that are chosen, three native steps of the layout that `flags` say."""
    if is_chosen(share):
        check_native(model_file(folder, name, sizes), OPTIMIZERS[optimizer], flags,
                     whole_run(name, optimizer, folder, sizes)[0],
                     whole_steps(name, optimizer, folder, sizes))


def agree(found, expected):
    assert found.keys() == expected.keys()
    scale = max((np.abs(v).max() for v in expected.values() if v.size), default=1)
    for name, value in expected.items():
        assert np.isfinite(value).all() and np.isfinite(found[name]).all(), (name, "not finite")
        # A factored weight has the same elements in the same order.
        error = np.abs(found[name].astype(np.float64).ravel()
                       - value.astype(np.float64).ravel()).max()
        assert error <= 1e-10 * scale, (name, error, scale)


def agree_for_steps(whole, local, inputs, steps=3):
    """The results of each of `steps` exact steps of two texts, their gradients, and the parameters
    and the state with which the next one begins."""
    given = [dict(inputs), dict(inputs)]
    for _ in range(steps):
        expected, found = (interpret(text, values, entry="train")
                           for text, values in zip((whole, local), given))
        for one, other in zip(found, expected):
            agree(one, other)
        for values, (results, _) in zip(given, (expected, found)):
            values.update({name: value.reshape(values[name].shape)
                           for name, value in results.items() if name in values})


def check(tmp_path_factory, name, mesh, recipes, optimizer, micro_batches,
          sizes=(BATCH, LENGTH), natively=True):
    folder = tmp_path_factory.getbasetemp()
    inputs, results, gradients = whole_run(name, optimizer, folder, sizes)
    layout = [f"--mesh={mesh}", f"--plan={recipes}", f"--micro-batches={micro_batches}"]
    local = emit(folder, name, "local", *OPTIMIZERS[optimizer], *layout, sizes=sizes)
    own_results, own_gradients = interpret(local, inputs, entry="train")
    agree(own_results, results)
    agree(own_gradients, gradients)
    if natively:
        agree_natively(folder, name, optimizer, *layout, sizes=sizes, share=SHARE_OF_SHARDINGS)
    return local
