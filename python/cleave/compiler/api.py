# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""From a torch module to a compiled training step."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import torch

from ..runtime.forks import TRACING, compiling
from ..runtime.step import Step
from .batch import flatten
from .build import Builder, in_modes
from .entrance import gather
from .settings import read_settings
from .shardings import P
from .trainable import check_types

if TYPE_CHECKING:
    from ..training.optim import Optimizer
    from .padding import Buckets
    from .groups import (Communication, Interlock, Launch, Lossy, Memory, Numerics, Pipeline,
                         Precision, Shapes, Target)


def compile(
    model: torch.nn.Module,
    example_inputs: Any,
    loss_fn: Callable[..., Any] | None = None,
    *,
    optimizer: Optimizer | torch.optim.Optimizer | tuple[torch.optim.Optimizer, Any] | None = None,
    micro_batches: int = 1,
    mesh: Mapping[str, int] | str | None = None,
    plan: str | os.PathLike[str] | Mapping[str, P] | Sequence[str | Mapping[str, P]] | None = None,
    target: str | Target = "cpu",
    precision: str | Precision | None = None,
    numerics: Numerics | None = None,
    pipeline: str | os.PathLike[str] | Pipeline | None = None,
    communication: Communication | None = None,
    memory: int | str | Memory | None = None,
    lossy: Lossy | None = None,
    interlock: int | Interlock | None = None,
    launch: str | Launch | None = None,
    shapes: Sequence[int | tuple[int, int]] | Shapes | None = None,
    seed: int = 0,
    check: str = "auto",
    metrics: Sequence[str] | Callable[[Any, dict[str, torch.Tensor]], Mapping[str, torch.Tensor]] | None = None,
    **former: Any,
) -> Step:
    """Compiles a training step of `model`.

    Options are in groups, such as `cleave.Precision`, whose fields say what they are; most groups
    may be given as the one value that is asked for most: `precision="bf16"`,
    `pipeline="1f1b"`, `memory="16GiB"`. docs/Options.md lists all, with their flags of
    `cleave-compile`.

    Args:
        model: a `torch.nn.Module`; its parameters are copied, not changed. Trained
            parameters are float32, or have 16 bits: then the step trains copies of
            them in float32. The model is trained in training mode, except
            submodules that are in `eval()` mode. A model that is itself in `eval()`
            mode is trained as if all of it were in training mode, with a warning if
            it has dropout.
        example_inputs: tensors with the shapes of a whole batch, samples first: a
            tuple by position, a dict by name, or ((model inputs...), (targets...)). A step
            takes inputs in this order, or by name.
        loss_fn: `loss_fn(output, *targets)` if the model returns logits; the
            targets are the inputs that the model's forward does not take. It gets the
            logits alone if it computes no loss of an output with more parts. None if
            the model returns the loss, or an output with `.loss`.
        optimizer: one of `cleave.AdamW`, `AdamW8bit`, `SGD`, `Lion`, `Adagrad`, `LAMB`, `Adafactor`
            and `Muon`; groups of parameters may have another. Or a `torch.optim.Optimizer`, also
            of your own, with its groups, alone or with its scheduler as (optimizer, scheduler):
            `cleave.optim.of_torch`. If None, AdamW with torch's defaults.
        micro_batches: the number of parts of a batch, computed one after another to
            save memory; the result is that of the whole batch. Where it does not divide
            the batch, the last parts are smaller (13 samples in 4: 4, 4, 4 and 1); with
            statistics of each part (`batch_statistics`), `compress` or sums of the next step
            (`update_delay`), the batch is computed in as many parts as divide it, with a
            remark. With an asynchronous schedule each micro-batch is a step
            of its own, in order, with the learning rate of the call: a call makes
            as many updates, and its loss is the mean of theirs.
        mesh: the devices as named axes, major to minor, with their sizes: `{"dp":
            2, "tp": 4}`; one device if None. An axis over which nothing is sharded
            causes a warning.
        plan: what is sharded over the mesh: a recipe or several, such as
            `["megatron-sp", "zero1"]`, each bound to its own axis or to another,
            `"zero3(fsdp)"`. An axis "dp" shards the samples. A dict gives shardings
            of parameters and inputs by patterns of their names,
            `{"layers.*.q_proj.weight": cleave.P("tp", None)}`, alone or in the list
            with recipes; "hf" stands for the model's own `tp_plan` on the axis
            "tp", as far as its entries are supported. Or the path of a plan file, whose name
            ends with ".plan", with a mesh and a plan: what `Step.plan` returns.
        target: what runs the step: "cpu", or "cuda", a GPU of NVIDIA; or a `cleave.Target`,
            with its architecture, threads, or rates by which plans are estimated.
        precision: "f32", "bf16", "fp16" or "fp8", or a `cleave.Precision`. None: what
            the model asks for.
        numerics: a `cleave.Numerics`: checks of what is finite, sums in one order for every
            number of devices, statistics of batches.
        pipeline: the schedule of a pipeline, whose stages are on the positions of an axis
            "pp", or a `cleave.Pipeline`.
        communication: a `cleave.Communication`: how collectives are merged and cut.
        memory: the most bytes that a device may need, or a `cleave.Memory`: recomputation,
            offloading, where updates run.
        lossy: a `cleave.Lossy`: what changes the mathematics of a step: compressed
            gradients, pruned and rounded weights, delayed updates.
        interlock: interlocking backpropagation: the number of modules that a gradient passes,
            or a `cleave.Interlock`.
        launch: "processes", "threads" or "auto", or a `cleave.Launch`: where ranks run.
        shapes: the lengths of sequences for which programs are compiled, or a
            `cleave.Shapes`.
        seed: the seed of dropout.
        check: compares the model's program, on one device, with eager PyTorch: the
            loss and the gradient of each parameter, on the example inputs and
            without dropout. Neither the model nor the state of random numbers is
            changed. "auto": only if it is quick; of a large batch the first samples
            are compared, and for a model that is too large a remark says that
            nothing was compared. "on": always, on the whole batch. "off": never.
            The environment variable CLEAVE_CHECK sets the meaning of "auto". What it found
            equal is not compared again at the next start, while the program and all Python
            files that are loaded are the same.
        metrics: scalars that the model computes beside its loss and that a step returns, in
            `Step.metrics`: names of fields of its output, or a function of (output, inputs), the
            inputs by name, that returns them by name. Each is that of the whole batch, as PyTorch
            computes it on one device, on every mesh and for any number of micro-batches; where that is not
            a sum or a mean over parts, the compiler refuses it, with its line. They get no gradient.
        former: options outside of their groups, and by the names that they had before; they
            go with the next version.

    Returns:
        The `Step`.

    Raises:
        cleave.OptionError: an option is out of range, contradicts another one, or has no
            effect: a `ValueError`, for the reason that `cleave-compile` gives too.
        cleave.trace.UnsupportedError: ops that have no translation, all together,
            with their lines.
        cleave.trace.TraceError: the model cannot be traced or called.
        cleave.CompileError: the compiler refused the model, with the location; padding
            to `shapes` changes its loss or gradients;
            `check` found differences from eager PyTorch, with the parameters; a
            schedule written by hand is invalid, with its line and column; a string
            is neither the name of a schedule nor of a file; a trace of measured
            costs cannot be read, or does not fit the model.
        OSError: the file of a schedule, given as a `pathlib.Path`, does not exist
            or cannot be read.
        cleave.ProcessError: processes of a launch differ in the model, its parameters
            or an argument, or one of them has failed.
        TypeError: an argument has the wrong type, or a trained parameter is neither
            float32 nor of 16 bits; there is no such argument.
        ValueError: an argument is out of range, or a launch has another number of
            processes than the mesh has devices; an option is given twice, with other values.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {type(model).__name__}, not a torch.nn.Module")
    check_types(model)
    groups, plain = gather(
        {"target": target, "precision": precision, "numerics": numerics, "pipeline": pipeline,
         "communication": communication, "memory": memory, "lossy": lossy, "interlock": interlock,
         "launch": launch, "shapes": shapes},
        {"micro_batches": micro_batches, "mesh": mesh, "plan": plan}, former)
    from ..trace.metrics import Metrics

    settings = read_settings(model, groups, plain, optimizer, seed, check)
    examples, arrange = flatten(example_inputs)
    named = Metrics.of(metrics)
    if named is not None and settings.updates_each:
        raise ValueError("metrics are those of a whole batch, and an asynchronous schedule makes a step "
                         "of each micro-batch")
    if named is not None and groups["shapes"].lengths is not None:
        raise ValueError("metrics are not defined for batches that are padded to shapes")
    builder = Builder(model, examples, arrange, loss_fn, settings, named)
    buckets = _buckets(groups["shapes"], model, example_inputs, loss_fn)
    with compiling():
        step = Step(builder, model, examples, settings.optimizer, settings.seed, settings.launch,
                    buckets)
    if buckets and check != "off":
        from .padding import check_padding

        with TRACING, in_modes(builder.modes):
            check_padding(model, arrange, loss_fn, buckets)
    step.compile_others()
    return step


def _buckets(shapes: Shapes, model: torch.nn.Module, example_inputs: Any,
             loss_fn: Callable[..., Any] | None) -> Buckets | None:
    """The sizes that batches are padded to; None if they are not."""
    from ..trace.call_plan import plan_call
    from .padding import Buckets

    if shapes.lengths is not None:
        inputs = plan_call(model, example_inputs, loss_fn).inputs
        return Buckets(shapes.lengths, inputs, shapes.length_dims, shapes.pad_values)
    if shapes.given():
        raise ValueError("length_dims and pad_values are those of shapes, which are not given")
    return None
