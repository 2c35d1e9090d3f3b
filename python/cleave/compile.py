"""From a torch module to a compiled training step."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from typing import Mapping, Sequence

import torch

from . import optim
from .messages import readable_places, some_names, warn
from .plan import P, entries
from .state import path_of, whole
from .step import Step, log


def compile(
    model,
    example_inputs,
    loss_fn=None,
    *,
    optimizer=None,
    optimizer_fusion: str = "auto",
    micro_batches: int = 1,
    target: str = "cpu",
    seed: int = 0,
    threads: int | None = None,
    max_logits_bytes: int = 100 << 20,
    bucket_bytes: int = 1 << 20,
    mesh: Mapping[str, int] | None = None,
    deterministic: int | None = None,
    plan: str | Mapping[str, P] | Sequence[str | Mapping[str, P]] | None = None,
    schedule: str | os.PathLike | None = None,
    chunks: int | None = None,
    stages: Sequence[str] | None = None,
    pipe_slices: str = "auto",
    max_saved_bytes: int | None = None,
    measured_costs: str | os.PathLike | None = None,
    max_staleness: int | None = None,
    post_validation: bool = False,
    pipe_gather: str | None = None,
    grad_horizon: int | None = None,
    modules: int | Sequence[str] | None = None,
    head: str | None = None,
) -> Step:
    """Compiles a training step of `model`.

    Args:
        model: a `torch.nn.Module`; its parameters are copied, not changed. Those
            that are trained are float32. It is trained as in training mode, with its
            dropout, whatever mode it is in; a model in `eval()` mode that has
            dropout is warned of.
        example_inputs: tensors of the shapes of a whole batch, samples first:
            a tuple, a dict by name, or ((model inputs...), (targets...)).
            A step takes them in this order, or by name.
        loss_fn: `loss_fn(output, *targets)` when the model returns logits; the
            targets are the inputs that the model's forward does not take.
            None when the model returns the loss, or an output with `.loss`.
        optimizer: `cleave.AdamW` or `cleave.SGD`; AdamW with torch's defaults
            when None.
        optimizer_fusion: where updates run. "none": apart, behind all gradients.
            "backward": each behind its gradient, which dies there; refused where
            something must come between: a clip of the norm, another micro-batch,
            the stages of a pipeline. "forward": in the next step, each before its
            parameter is read first; what reads parameters or state in between
            runs them. "auto": "backward" where it can be, else "none". The bits
            are the same. "backward" needs less memory for gradients; "auto" does
            not compare arenas, which it may make a little larger or smaller.
        micro_batches: equal parts in which a batch is computed, one after
            another, to save memory; the result is that of the whole batch. A
            batch that it does not divide is computed in as many parts as do,
            with a remark. With an asynchronous schedule each of them is a step
            of its own, in order, with the rate of the call: a call makes so many
            updates, and its loss is the mean of theirs.
        target: "cpu".
        seed: of dropout.
        threads: of the step; the cores of this process when None.
        max_logits_bytes: the largest piece of the logits held at once.
        bucket_bytes: reductions and gathers of one kind among the same devices
            are exchanged together up to so many bytes; 0: each alone.
        mesh: the devices as named axes, major to minor, with their sizes:
            `{"dp": 2, "tp": 4}`; one device when None. They are ranks that are
            threads of this process. An axis that splits nothing is warned of.
        deterministic: grains, a power of 2, that the batch is computed in, each
            alike on every mesh and by one thread, and summed up in one tree
            over all of them: losses and weights have the same bits for every
            number of devices "dp" that divides it. In the place of
            `micro_batches` and `threads`. Refused with what adds up parts in
            another order: "zero2", "zero3", and "zero1" with a clip.
        plan: what is split over them: a recipe or several, such as
            `["megatron-sp", "zero1"]`, each bound to its own axis or to
            another, `"zero3(fsdp)"`. An axis "dp" splits the samples. A dict
            places parameters and inputs by patterns of their names,
            `{"layers.*.q_proj.weight": cleave.P("tp", None)}`, alone or in the
            list beside recipes; "hf" stands for the model's own `tp_plan` on
            the axis "tp", as far as it fits.
        schedule: the order of a pipeline, whose stages are the positions of an
            axis "pp": a name ("1f1b" when None, "zb-h1", ...; "pipedream" is
            asynchronous), "auto" for the fastest by estimates, or an order written by
            hand: its text, a line for each position, or the path of a file that has it.
            `Step.schedule` gives such a text.
        chunks: stages for each position; what the schedule needs when None.
        stages: where the second, the third and so on begin: at the first op that
            reads a parameter whose name starts so; of even cost when None.
        pipe_slices: whether devices that have a value in common (that of a tensor
            parallel layer, say) send it to other stages in slices, which are
            gathered there. "auto": where fewer elements are sent in all; "on":
            wherever it divides, for links between stages that are slower than
            those within one; "off": never.
        max_saved_bytes: the most that a position may have saved for backward at a
            time; any other schedule than "auto" may fail for it.
        measured_costs: a trace that `cleave-run --trace` has written of a step with
            the same stages: schedules are predicted, and "auto" searches, by what
            parts took in it, in seconds, in the place of estimates.
        max_staleness: of an asynchronous schedule, the most updates that come
            between the parameters that a micro-batch reads and its own update;
            0: one micro-batch after another.
        post_validation: stages of a pipeline update when their own gradients are
            there, and again, from a copy of what was before, where the scalars
            that come of all stages (a clip's factor) are others than assumed;
            `Loss.updated_again` counts these. The bits are the same; the copy
            takes as many bytes as parameters and optimizer state.
        pipe_gather: when parameters that devices hold in parts ("zero3") are
            gathered. "each": by forward and by backward of each micro-batch, which
            hold them no longer than they need. "once": before the first forward of
            a step, to be held until the last backward. "auto": once where what is
            gathered has no more bytes than the parameters and the optimizer's
            state of a device, else each. None: each, unless a schedule written by
            hand gathers once.
        grad_horizon: trains by interlocking backpropagation (arXiv 2010.04116):
            each module but the last gets a head and a loss of its own, and the
            gradient of a head passes so many modules, of which it trains the
            first. 1: modules learn locally. None: one head trains all.
        modules: how many, of even cost, or where they begin, as `stages` says
            it; the stages of the pipeline when None. Of `grad_horizon`.
        head: the beginning of the name of a parameter that the model's head
            begins with; behind the last layer when None. Of `grad_horizon`.

    Returns:
        The `Step`.

    Raises:
        cleave.trace.UnsupportedError: ops that have no translation, all at
            once, with their lines.
        cleave.trace.TraceError: the model cannot be followed or called.
        cleave.CompileError: what the compiler refused, with the location; of a
            schedule written by hand, its line and column; a string that is no
            schedule's name and no file's; a trace of measured costs that cannot be
            read, or does not fit the model.
        OSError: the file of a schedule cannot be read, or is not there, given as a
            `pathlib.Path`.
        TypeError: an argument is of another kind, or a trained parameter of another
            type than float32.
        ValueError: an argument is out of range.
    """
    from . import _cleave
    from .trace import trace

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {type(model).__name__}, not a torch.nn.Module")
    _check_types(model)
    if target != "cpu":
        raise ValueError(f"target '{target}' is not known; targets: cpu")
    if optimizer is None:
        optimizer = optim.AdamW()
    if not isinstance(optimizer, (optim.AdamW, optim.SGD)):
        kind = type(optimizer)
        raise TypeError(
            f"optimizer is a {kind.__module__}.{kind.__qualname__}; the update is "
            "compiled, so it must be a cleave.AdamW(...) or a cleave.SGD(...)"
        )
    if optimizer_fusion not in ("auto", "none", "backward", "forward"):
        raise ValueError(
            f"optimizer_fusion is {optimizer_fusion!r}; it must be 'auto', 'none', "
            "'backward' or 'forward'"
        )
    given_threads = threads is not None
    if threads is None:
        threads = min(len(os.sched_getaffinity(0)), _cleave.MAX_THREADS)
    threads = _whole("threads", threads, 1, _cleave.MAX_THREADS)
    micro_batches = _whole("micro_batches", micro_batches, 1)
    max_logits_bytes = _whole("max_logits_bytes", max_logits_bytes, 1)
    bucket_bytes = _whole("bucket_bytes", bucket_bytes, 0)
    seed = _whole("seed", seed, -(2**63))
    pipeline = _pipeline(
        schedule, chunks, stages, pipe_slices, max_saved_bytes, measured_costs, max_staleness,
        post_validation, pipe_gather,
    )
    each = _updates_each(pipeline)
    interlock = _interlock(grad_horizon, modules, head)
    if deterministic is not None:
        deterministic = _whole("deterministic", deterministic, 1)
        if deterministic & (deterministic - 1):
            raise ValueError(f"deterministic is {deterministic}; it must be a power of 2")
        if micro_batches != 1 or given_threads:
            raise ValueError(
                "deterministic says how the batch is cut and that one thread computes "
                "it: leave out micro_batches and threads"
            )
        threads = 1
    axes = _axes(mesh)
    if "pp" not in axes:
        _remark_pipeline(pipeline, interlock)
    recipes = entries(plan, model)
    examples, arrange = _flatten(example_inputs)
    warned = []

    def build(inputs):
        batch = inputs[0].shape[0] if inputs and inputs[0].ndim else 1
        if each:
            inputs = _first_part(inputs, batch, micro_batches)
        with warnings.catch_warnings():
            # Of a batch of another shape everything has been said.
            if warned:
                warnings.simplefilter("ignore")
            traced = trace(model, arrange(inputs), loss_fn=loss_fn)
        parts = micro_batches if each else max(
            m
            for m in range(1, min(micro_batches, batch) + 1)
            if batch % (m * _sample_parts(axes, recipes)) == 0 or m == 1
        )
        if parts != micro_batches:
            log.warning(
                "remark: a batch of %d does not divide into %d micro-batches; "
                "computed in %d",
                batch,
                micro_batches,
                parts,
            )
        options = {
            "optimizer_fusion": optimizer_fusion,
            "micro_batches": parts,
            "grains": deterministic or 0,
            "mesh": ",".join(f"{axis}={size}" for axis, size in axes.items()),
            "recipes": ",".join(recipes),
            "threads": threads,
            "max_logits_bytes": max_logits_bytes,
            "bucket_bytes": bucket_bytes,
            **pipeline,
            **interlock,
            "optimizer": optimizer.options(),
            "parameters": _parameter_options(optimizer, traced.parameters),
        }
        try:
            compiled = _cleave.compile(traced.named_mlir, json.dumps(options))
        except _cleave.CompileError as error:
            message = readable_places(str(error))
            if message.startswith(f"schedule: '{pipeline.get('schedule')}' is no schedule"):
                message += "; nor is there a file of this name"
            if " native form " in message or " type" in message:
                message += _other_types(model)
            raise _cleave.CompileError(message) from None
        remarks = list(map(readable_places, compiled.warnings()))
        if not warned:
            for remark in remarks:
                warn(remark)
        warned.append(True)
        return traced, compiled, [*remarks, *_module_remarks(interlock, compiled)]

    return Step(build, model, examples, optimizer, seed)


def _check_types(model) -> None:
    """A step trains in f32. Frozen parameters may be of other types, if the model
    casts them where it reads them."""
    other = {name: p.dtype for name, p in model.named_parameters()
             if p.requires_grad and p.dtype != torch.float32}
    if other:
        kinds = " and ".join(sorted({str(t).removeprefix("torch.") for t in other.values()}))
        raise TypeError(
            f"the model trains parameters of {kinds} ({some_names(other)}); a compiled step "
            "trains float32 alone: call model.float(), or freeze them (requires_grad_(False)). "
            "cleave.trace takes other types for the interpreter"
        )


def _other_types(model) -> str:
    """What an error may come of that speaks of types."""
    other = [name for name, p in model.named_parameters()
             if p.dtype.is_floating_point and p.dtype != torch.float32]
    if not other:
        return ""
    kind = str(model.get_parameter(other[0]).dtype).removeprefix("torch.")
    return (f"; a step computes in float32: cast frozen parameters of {kind} "
            f"({some_names(other)}) where they are read, or call model.float()")


def _updates_each(pipeline) -> bool:
    """Whether the schedule has an update behind each micro-batch."""
    text = re.sub("#.*", "", pipeline.get("schedule_text", ""))
    return pipeline.get("schedule") == "pipedream" or bool(re.search(r"\bU\d|\dU\d", text))


def _first_part(inputs, batch, parts):
    """The inputs of the first of equal parts of a batch."""
    if batch % parts:
        raise ValueError(
            f"a batch of {batch} does not divide into {parts} micro-batches, each of "
            "which is a step of its own"
        )
    return tuple(
        value[: batch // parts] if value.ndim and value.shape[0] == batch else value
        for value in inputs
    )


def _pipeline(
    schedule, chunks, stages, pipe_slices, max_saved_bytes, measured_costs, max_staleness,
    post_validation, pipe_gather,
) -> dict:
    """The options of a pipeline."""
    if pipe_slices not in ("auto", "on", "off"):
        raise ValueError(f"pipe_slices is {pipe_slices!r}; it must be 'auto', 'on' or 'off'")
    options = {"pipe_slices": pipe_slices}
    if isinstance(schedule, os.PathLike):
        options.update(_read_schedule(schedule))
    elif isinstance(schedule, str):
        if os.path.isfile(schedule):
            options.update(_read_schedule(schedule))
        elif _is_order(schedule):
            options.update(schedule_text=schedule, schedule_file="<schedule>")
        else:
            options["schedule"] = schedule
    elif schedule is not None:
        raise TypeError(f"schedule is {type(schedule).__name__}, not a name, a text or a path")
    if chunks is not None:
        options["chunks"] = _whole("chunks", chunks, 1)
    if max_saved_bytes is not None:
        options["max_saved_bytes"] = _whole("max_saved_bytes", max_saved_bytes, 0)
    if max_staleness is not None:
        options["max_staleness"] = _whole("max_staleness", max_staleness, 0)
    if post_validation:
        options["post_validation"] = True
    if pipe_gather is not None:
        if pipe_gather not in ("each", "once", "auto"):
            raise ValueError(
                f"pipe_gather is {pipe_gather!r}; it must be 'each', 'once' or 'auto'"
            )
        options["pipe_gather"] = pipe_gather
    if stages is not None:
        options["stages"] = _beginnings("stages", stages)
    if measured_costs is not None:
        options["measured_costs"] = path_of("measured_costs", measured_costs)
    return options


def _is_order(text: str) -> bool:
    """Whether a string is an order of actions, right or wrong, and not a name: of a
    schedule, or of a file that is not there."""
    order = text.partition("#")[0]
    if "\n" not in text and re.search(r"[/\\]|\.[A-Za-z]\w*$", order):
        return False
    # One action is one word, as are names.
    return order != text or bool(re.search(r"\s|[|{}<>,;]|^-?$|^\d*[A-Z]\d*$", order))


def _remark_pipeline(pipeline, interlock):
    """Names what is given and is of a pipeline, where there is none. An order that is
    written by hand is one of a single device as well, and modules begin as stages do."""
    for name in ("schedule", "chunks", "stages", "pipe_slices", "max_saved_bytes"):
        if (name in pipeline and pipeline[name] != "auto"
                and not (name == "stages" and interlock)):
            log.warning('remark: %s is of a pipeline, and the mesh has no axis "pp"', name)


def _interlock(grad_horizon, modules, head) -> dict:
    """The options of interlocking backpropagation."""
    if grad_horizon is None:
        if modules is not None or head is not None:
            raise ValueError("modules and head are those of a grad_horizon, which is not given")
        return {}
    options = {"grad_horizon": _whole("grad_horizon", grad_horizon, 1)}
    if isinstance(modules, (str, Sequence)):
        if not modules:
            raise ValueError("modules is empty: name where the second and those behind it begin")
        options["modules"] = _beginnings("modules", modules)
    elif modules is not None:
        options["modules"] = str(_whole("modules", modules, 2))
    if head is not None:
        if not isinstance(head, str):
            raise TypeError(f"head is {type(head).__name__}, not the beginning of a name")
        options["head"] = head
    return options


def _module_remarks(interlock, compiled) -> list[str]:
    """Which head trains each module of a gradient horizon."""
    if not interlock:
        return []
    names = interlock.get("modules", "")
    if names.isdecimal():
        count, begins = int(names), []
    elif names:
        begins = names.split(",")
        count = len(begins) + 1
    else:
        count, begins = len(json.loads(compiled.report())["schedule"]["stages"]), []
    horizon = interlock["grad_horizon"]
    lines = []
    for module in range(1, count + 1):
        head = min(module + horizon - 1, count)
        trainer = "the model's head" if head == count else f"the head behind module {head}"
        begin = f" from {begins[module - 2]}" if begins and module > 1 else ""
        lines.append(f"module {module} of {count}{begin}: trained by {trainer}")
    return lines


def _beginnings(what, names) -> str:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what} is not a sequence of beginnings of parameters' names")
    return ",".join(names)


def _read_schedule(path) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except UnicodeDecodeError:
        raise ValueError(f"{os.fspath(path)} is not a schedule: it is no text") from None
    return {"schedule_text": text, "schedule_file": os.fspath(path)}


def _axes(mesh) -> dict[str, int]:
    if mesh is None:
        return {}
    if not isinstance(mesh, Mapping):
        raise TypeError(f"mesh is {type(mesh).__name__}, not a dict of axes and sizes")
    return {
        str(axis): _whole(f'the size of axis "{axis}"', size, 1)
        for axis, size in mesh.items()
    }


def _parameter_options(optimizer, parameters) -> dict[str, dict]:
    """Settings of single parameters by the program's names; a stack has those
    that all its parts have."""
    own = {}
    for entry in parameters:
        if not entry.frozen:
            own.update(zip(entry.parts, entry.tensor) if entry.parts
                       else [(entry.name, entry.tensor)])
    options = optimizer.parameter_options(own)
    for entry in parameters:
        found = [options.pop(part, {}) for part in entry.parts]
        if any(other != found[0] for other in found):
            raise ValueError(f"{entry.parts[0]} and others of {entry.name} are trained as one "
                             "and need one weight decay and learning rate")
        if found and found[0]:
            options[entry.name] = found[0]
    return options


def _sample_parts(axes: Mapping[str, int], recipes: Sequence[str]) -> int:
    """The parts into which devices split a batch."""
    from . import _cleave

    bound = {"dp", *_cleave.sample_axes(",".join(recipes))}
    return math.prod(size for axis, size in axes.items() if axis in bound)


def _whole(name: str, value, least: int, most: int = 2**63 - 1) -> int:
    value = whole(name, value)
    if value < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")
    if value > most:
        raise ValueError(f"{name} is {value}; it must be at most {most}")
    return value


def _flatten(inputs):
    """The tensors of `inputs` as a tuple, and how to arrange such a tuple as
    `inputs` was."""
    flat, arrange = _parts(inputs)
    for value in flat:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"example_inputs holds {value!r}, which is not a tensor")
    return flat, arrange


def _parts(inputs):
    if isinstance(inputs, torch.Tensor):
        return (inputs,), tuple
    if isinstance(inputs, Mapping):
        names = list(inputs)
        return tuple(inputs.values()), lambda flat: dict(zip(names, flat))
    if not isinstance(inputs, (tuple, list)):
        raise TypeError(
            f"example_inputs is {type(inputs).__name__}, not a tuple of tensors or a "
            "dict by name"
        )
    inputs = tuple(inputs)
    if len(inputs) == 2 and all(isinstance(x, (tuple, list)) for x in inputs):
        count = len(inputs[0])
        return (*inputs[0], *inputs[1]), lambda flat: (flat[:count], flat[count:])
    return inputs, tuple
