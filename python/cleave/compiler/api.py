# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""From a torch module to a compiled training step."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import warnings
from typing import Mapping, Sequence

import torch

from ..messages import readable_places, some_names, warn
from ..runtime.forks import TRACING, compiling
from ..runtime.state import byte_count, check_text, flag, path_of, whole
from ..runtime.step import Step, log
from ..training import optim
from ..training.loss_scale import LossScale, loss_scale_options
from . import verdicts
from .batch import first_part, flatten
from .options import (interlock_options, lossy_options, machine_options, module_remarks,
                      offload_options, pipeline_options, recompute_options, remark_pipeline,
                      stage_compression_options, update_delay_options, updates_each)
from .shardings import AXIS, P, entries
from .trainable import (Known, asked_precision, check_statistics, check_trained, check_types,
                        coupled_samples, other_types)


def compile(
    model,
    example_inputs,
    loss_fn=None,
    *,
    optimizer=None,
    optimizer_fusion: str = "auto",
    micro_batches: int = 1,
    batch_statistics: str = "batch",
    target: str = "cpu",
    arch: str | None = None,
    ranks_per_device: int = 1,
    patience: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    max_logits_bytes: int | str | None = None,
    bucket_bytes: int | str = 1 << 20,
    collective_chunks: int = 1,
    collective_chunk_bytes: int | str = 1 << 20,
    mesh: Mapping[str, int] | None = None,
    ranks: str = "auto",
    deterministic: int | None = None,
    plan: str | Mapping[str, P] | Sequence[str | Mapping[str, P]] | None = None,
    schedule: str | os.PathLike | None = None,
    chunks: int | None = None,
    stages: Sequence[str] | None = None,
    pipe_slices: str = "auto",
    max_saved_bytes: int | str | None = None,
    measured_costs: str | os.PathLike | None = None,
    recompute: str | None = None,
    memory_limit: int | str | None = None,
    machine: str | os.PathLike | None = None,
    offload: Sequence[str] | None = None,
    offload_dir: str | os.PathLike | None = None,
    fused_attention: bool = True,
    max_staleness: int | None = None,
    post_validation: bool = False,
    check_finite: bool = True,
    precision: str | None = None,
    fp8_history: int = 1024,
    fp8_margin: int = 0,
    precision_policy: Sequence[tuple[str, str]] | None = None,
    residual: str = "16bit",
    loss_scale: LossScale | float | None = None,
    save_precision: str = "f32",
    activation_reduction: str = "auto",
    merge_products: str = "auto",
    compress: str | None = None,
    compress_over: str = "dp",
    compress_stages: float | None = None,
    prune: str | float | None = None,
    quantize: str | None = None,
    update_delay: int | str | Mapping[str, int | str] = 0,
    gradient_dtype: str = "f32",
    pipe_gather: str | None = None,
    grad_horizon: int | None = None,
    modules: int | Sequence[str] | None = None,
    head: str | None = None,
    check: str = "auto",
    shapes: Sequence[int | tuple[int, int]] | None = None,
    length_dims: Mapping[str, int | Sequence[int]] | None = None,
    pad_values: Mapping[str, float] | None = None,
) -> Step:
    """Compiles a training step of `model`.

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
            and `Muon`; groups of parameters may have another. If None, AdamW with torch's
            defaults.
        optimizer_fusion: where updates run. "none": after all gradients.
            "backward": each directly after its gradient, whose memory is then
            released; refused if something must run in between: a clip of the norm,
            another micro-batch, the stages of a pipeline. "forward": in the next
            step, each before the first reader of its parameter; reading parameters
            or state in between runs them first. "auto": "backward" if possible,
            else "none". The bits are the same. "backward" needs less memory for
            gradients, and requires `check_finite=False`; "auto" does not compare
            arenas, which may become slightly larger or smaller.
        micro_batches: the number of parts of a batch, computed one after another to
            save memory; the result is that of the whole batch. Where it does not divide
            the batch, the last parts are smaller (13 samples in 4: 4, 4, 4 and 1); with
            statistics of each part (`batch_statistics`), `compress` or sums of the next step
            (`update_delay`), the batch is computed in as many parts as divide it, with a
            remark. With an asynchronous schedule each micro-batch is a step
            of its own, in order, with the learning rate of the call: a call makes
            as many updates, and its loss is the mean of theirs.
        batch_statistics: the samples that share the statistics of batch normalisation.
            "batch": all, also those of other ranks (as SyncBatchNorm); refused with
            several micro-batches, because each would need the later ones.
            "micro-batch": those of a micro-batch, on all ranks; running statistics are
            updated in the order of micro-batches, as gradient accumulation in PyTorch
            does. "rank": those of a micro-batch on one rank; running statistics are
            those of the first rank, as DistributedDataParallel keeps them. With the
            last two the loss differs from that of the whole batch. Other buffers that
            the model writes get one new value in a step, that of the whole batch.
        target: what runs the step: "cpu", or "cuda": a GPU of NVIDIA.
        arch: with "cuda", its architecture, such as "sm_80", "sm_90" (if None) or
            "sm_100".
        ranks_per_device: with "cuda", the number of ranks of a machine that share a GPU.
        patience: the seconds that ranks which are processes wait for each other before all of
            them end and say for whom; for one that writes files, ten times as long. By default
            the variable CLEAVE_PATIENCE, or 300. It is of the whole process: of the first step.
        seed: the seed of dropout.
        threads: with "cpu", the number of threads of a step, in each process; the cores
            of this process if None.
        max_logits_bytes: the largest chunk of the logits in memory at once, in
            bytes or with a unit, such as "1GB" (10^9) or "1GiB" (2^30), as all sizes
            are given; None: 100 MiB, and on a GPU, which does little in a small one, 1 GiB.
        bucket_bytes: reductions and gathers of one kind among the same ranks are
            merged into exchanges of up to this many bytes; 0: never merged.
        collective_chunks: gathers and reductions of activations and of their gradients
            are cut, with the contractions beside them, into up to this many chunks of
            samples (or of positions), so that one chunk is communicated while another
            one is computed; 1: not cut.
        collective_chunk_bytes: the least bytes that a rank puts into the exchange of
            one chunk; it is always more than `bucket_bytes`.
        mesh: the devices as named axes, major to minor, with their sizes: `{"dp":
            2, "tp": 4}`; one device if None. An axis over which nothing is sharded
            causes a warning.
        ranks: where the devices of the mesh are. "processes": each is a process that
            `mpirun`, `torchrun` or `srun` has started with this script; their number must be that
            of the devices. All of them make the same calls with the same arguments and
            whole batches, and get the same results. "threads": all are threads of this
            process. "auto": processes if several were started, else threads.
        deterministic: the number of grains, a power of 2, in which the batch is
            computed, each alike on every mesh and by one thread, and summed in one
            tree: losses and weights have the same bits for every size of "dp" that
            divides the number of grains. Replaces `micro_batches` and `threads`.
            Refused with "zero2", "zero3", and "zero1" with a clip, which sum in
            another order.
        plan: what is sharded over the mesh: a recipe or several, such as
            `["megatron-sp", "zero1"]`, each bound to its own axis or to another,
            `"zero3(fsdp)"`. An axis "dp" shards the samples. A dict gives shardings
            of parameters and inputs by patterns of their names,
            `{"layers.*.q_proj.weight": cleave.P("tp", None)}`, alone or in the list
            with recipes; "hf" stands for the model's own `tp_plan` on the axis
            "tp", as far as its entries are supported.
        schedule: the order of a pipeline, whose stages are on the positions of an
            axis "pp": a name ("1f1b" if None, "zb-h1", ...; "pipedream" is
            asynchronous), "auto" for the fastest by estimates, or an order written
            by hand: its text, a line for each position, or the path of a file with
            this text. `Step.schedule` returns such a text.
        chunks: the number of stages of each position; if None, as the schedule
            requires.
        stages: where the second, the third and further stages begin: at the first
            op that reads a parameter whose name has this prefix; if None, stages
            have even cost.
        pipe_slices: whether ranks that hold replicas of a value (for example of a
            tensor-parallel layer) send it to other stages in slices, which are
            gathered there. "auto": if fewer elements are sent in total; "on":
            wherever it is divisible, for links between stages that are slower than
            those within one; "off": never.
        max_saved_bytes: the limit of the bytes that a position may have saved for
            backward at a time; schedules other than "auto" may fail because of it.
        measured_costs: a trace written by `cleave-run --trace` for a step with the
            same stages: schedules are predicted, and "auto" searches, by the times
            of parts in it, in seconds, instead of estimates.
        recompute: what backward computes again instead of saving it; the bits are the
            same. "none". "free": element-wise and row-wise ops. "selective": the core
            of an attention that is not one op (arXiv 2205.05198). "full": all of each
            block, from its input. "regions": all of what the model runs in
            `torch.utils.checkpoint`, from its inputs. Several with commas, by default
            "free,regions", on a GPU "regions". A policy for each block, "3 full; 5 free; none".
            "auto" (the default with a limit): for each block, the least time by
            estimates within the limit.
        memory_limit: the most bytes that a device may need ("80GB", "24GiB"): its
            arena, and what the report lists outside of it.
        machine: the rates of a device per second, by which stages are balanced,
            schedules predicted and recomputation chosen: "flops=1e11,memory=2e10,
            link=5e9", or the path of a file that `cleave-compile --measure-machine`
            wrote. Results are the same, except that stages may be cut elsewhere.
        offload: what is in a file of each rank while no command uses it, and fetched
            into memory before: "state" (the optimizer's), "masters" (with
            `precision="bf16"`, parameters of which forward and backward read 16-bit
            copies), "saved" (by forward for backward). The bits are the same. After
            an error of the file within a step, only the last checkpoint remains.
        offload_dir: the folder of these files, which have no names and end with the
            step; if None, the one for temporary files.
        fused_attention: if false, attention is products and a softmax, whose results
            are tensors.
        max_staleness: for an asynchronous schedule, the largest number of updates
            between the read of the parameters by a micro-batch and its own update;
            0: one micro-batch after another.
        post_validation: stages of a pipeline update when their own gradients are
            complete, and repeat the update from a copy of the old values if the
            scalars computed from all stages (a clip's factor) differ from those
            assumed; `Loss.updated_again` counts these. The bits are the same; the
            copy takes as many bytes as parameters and optimizer state.
        check_finite: a step whose loss or gradients are not finite (NaN or
            infinite), on any rank, raises `StepError` and changes nothing. False:
            it updates nevertheless. An asynchronous schedule and
            `optimizer_fusion="backward"`, which update before that is known,
            require False. With `max_grad_norm`, the norm must be finite in any
            case.
        precision: "f32"; or "bf16" or "fp16": contractions and attention read 16-bit
            copies of weights and activations and sum in f32 (mixed precision, arXiv
            1710.03740). Parameters, optimizer state, gradients of parameters,
            losses, softmax and statistics of norms stay f32, and so do checkpoints.
            With "fp16" the loss is scaled, and a step whose gradients overflow is
            skipped: `Loss.skipped`. "fp8" is "bf16" with linear layers, but not the
            head, of 8-bit operands: e4m3 of weights and activations, e5m2 of
            gradients, each tensor with a scale that the largest numbers of the steps
            before decide (delayed scaling). None: what the model asks for, by 16-bit
            parameters or regions of `torch.autocast`, with a remark; else "f32".
        loss_scale: with `precision="fp16"`, the factor of the loss: a `LossScale`,
            which moves it, or a number, at which an overflow raises `StepError`. None
            is `LossScale()`.
        fp8_history: with `precision="fp8"`, the number of steps whose largest numbers
            decide the scale of a tensor.
        fp8_margin: with `precision="fp8"`, the powers of two by which scales are smaller
            than those numbers allow.
        precision_policy: which ops are computed otherwise than `precision` has it:
            pairs of a pattern and "f32" or "16bit". A pattern is of paths of modules
            and what is in them, `("layers.*.gate", "f32")`, or of names of ops,
            `("softmax", "16bit")`; of several that match, the last one counts.
        residual: with 16-bit precision, the type of the residual stream, the sum of
            embeddings and blocks: "16bit", or "f32", which is nearer to f32 (as
            `torch.autocast` has it) and saves twice as many bytes of it.
        save_precision: the type in which forward saves values for backward: "f32" (as
            they are), or "bf16" or "fp16", which halve the bytes of those that are f32
            and round what gradients are computed from, or "fp8" (e4m3, up to 448), a
            quarter of the bytes; forward is unchanged (Gist, ISCA 2018).
        activation_reduction: with 16-bit precision, the type of products that are
            activations or gradients of them: "f32"; "products": 16 bits, but f32 where
            ranks exchange their sums over shards; or "16bit": they exchange half the
            bytes, with each rank's part rounded. "auto" is "products" on a GPU (not with
            "fp8"), else "f32".
        merge_products: with 16-bit precision, whether products of one value by several
            weights are one product, as those of query, key and value: "on", "off", or
            "auto": on a GPU. Sums of their gradients are then rounded once.
        compress: how gradients are summed over ranks with less data, which changes the
            mathematics: "powersgd,rank=4" (factors of low rank, arXiv 1905.13727),
            "topk,density=0.01" (the largest elements of each rank), "threshold,keep=0.005"
            (those above a threshold), "int8" or "1bit" (codes). What is not sent is added in
            the next step (error feedback); it is state of the optimizer.
        compress_over: the axis of the mesh over which compressed gradients are summed.
        compress_stages: the share of the elements of each row (last dimension) of an
            activation, those of largest magnitude, that stages of a pipeline send each
            other, with the gradient at the same places sent back; others are 0, which
            changes the mathematics (DCT-MP, arXiv 2010.08899). At 0.0333 stages send 20
            times fewer bytes in f32. None: all elements.
        prune: which weights of contractions are zero behind each update: "2:4" (two of
            each four along the inputs), or a share of each tensor, "0.5" or
            "0.9,cubic,steps=1000" (it grows over these steps). Those of least magnitude are
            chosen, until the step that `steps` says (1 without cubic), and fixed then.
        quantize: "int8": contractions read weights rounded to 8 bits, with a scale for each
            output channel, in training and evaluation; gradients are those of the rounded
            weights. `cleave.export` writes them.
        update_delay: the number of steps by which an update lags behind its gradient, which
            changes the mathematics: w[t+1] = w[t] - u(g[t-d]). A dict has numbers by patterns of
            parameters' names, of which the last that matches counts, and "*" for all
            others: {"*": 1, "embed*": 0}. Gradients that wait are state of the optimizer.
            With "reduce": "next", ranks add them up in the next step, whose forward and
            backward hide the time of it.
        gradient_dtype: with 16-bit precision, the type in which gradients of weights are
            summed over micro-batches and exchanged by ranks: "f32", or that of
            `precision`, half the bytes, with each addition rounded. Those of
            embeddings, norms and biases stay f32.
        pipe_gather: when sharded parameters ("zero3") are gathered. "each": in
            forward and in backward of each micro-batch, and released after the last
            use. "once": before the first forward of a step, and held until the last
            backward. "auto": once if the gathered parameters have no more bytes
            than the parameters and the optimizer's state of a rank, else each.
            None: each, unless a schedule written by hand gathers once.
        grad_horizon: trains by interlocking backpropagation (arXiv 2010.04116):
            each module except the last gets an auxiliary head with its own loss,
            and the gradient of a head passes this many modules, of which it trains
            the first. 1: modules learn locally. None: one head trains all.
        modules: with `grad_horizon`: the number of modules, of even cost, or where
            they begin, in the form of `stages`; the stages of the pipeline if None.
        head: with `grad_horizon`: the prefix of the name of a parameter with which
            the model's head begins; if None, the head follows the last layer.
        check: compares the model's program, on one device, with eager PyTorch: the
            loss and the gradient of each parameter, on the example inputs and
            without dropout. Neither the model nor the state of random numbers is
            changed. "auto": only if it is quick; of a large batch the first samples
            are compared, and for a model that is too large a remark says that
            nothing was compared. "on": always, on the whole batch. "off": never.
            The environment variable CLEAVE_CHECK sets the meaning of "auto". What it found
            equal is not compared again at the next start, while the program and all Python
            files that are loaded are the same.
        shapes: the lengths of sequences for which programs are compiled, such as `[128,
            256, 512]`, or pairs (samples, length). A batch is padded at its end to the
            smallest that fits; the step trains as it would without padding. That is so
            of models that leave padded positions out (by an attention mask, or because
            attention is causal) and ignore their labels: eager PyTorch must have the
            same loss and gradients for the example with and without padding, or the
            model is refused; `check="off"` trusts it. The first program is compiled
            here, the others in another thread; a step that needs one of them waits.
        length_dims: with `shapes`: which dimensions of which inputs have the length,
            `{"input_ids": 1}`; if None, those of the size that the second dimension of
            all inputs with two dimensions has.
        pad_values: with `shapes`: what inputs are padded with, by name; if None, the
            value that the loss ignores for labels (usually -100), and 0 for others.

    Returns:
        The `Step`.

    Raises:
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
            float32 nor of 16 bits.
        ValueError: an argument is out of range, or a launch has another number of
            processes than the mesh has devices.
    """
    from .. import _cleave
    from ..runtime import processes
    from .buckets import Buckets, check_padding
    from . import check as checking
    from ..trace import Groups, PrecisionPolicy, trace
    from ..trace.call_plan import plan_call, samples_note

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {type(model).__name__}, not a torch.nn.Module")
    check_types(model)
    if target not in ("cpu", "cuda"):
        raise ValueError(f"unknown target '{target}'; it is 'cpu' or 'cuda'")
    if arch is not None and (mistake := _cleave.check_architecture(arch)):
        raise ValueError(mistake)
    ranks_per_device = whole("ranks_per_device", ranks_per_device, 1)
    if patience is not None:
        patience = whole("patience", patience, 1, 1 << 20)
    given = {"arch": arch is not None, "ranks_per_device": ranks_per_device != 1} \
        if target == "cpu" else \
        {"threads": threads is not None, "offload_dir": offload_dir is not None}
    for name in (name for name, used in given.items() if used):
        other = "cuda" if target == "cpu" else "cpu"
        raise ValueError(f'{name} is of target="{other}", and this is target="{target}": '
                         "leave it out")
    if offload_dir is not None and not offload:
        raise ValueError("offload_dir has no effect without offload, which says what is in its "
                         "files")
    if optimizer is None:
        optimizer = optim.AdamW()
    if not isinstance(optimizer, optim.Optimizer):
        kind = type(optimizer)
        raise TypeError(
            f"optimizer is a {kind.__module__}.{kind.__qualname__}; the update is "
            "compiled, so it must be one of cleave's, as cleave.AdamW(...)"
        )
    if optimizer_fusion not in ("auto", "none", "backward", "forward"):
        raise ValueError(
            f"optimizer_fusion is {optimizer_fusion!r}; it must be 'auto', 'none', "
            "'backward' or 'forward'"
        )
    # What the model asks for is known after its trace.
    asked = precision
    if precision is None:
        asked = gradient_dtype if gradient_dtype == "fp16" else "bf16"
    _check_precision(asked, residual, activation_reduction, merge_products, gradient_dtype)
    loss_scale_options(loss_scale, "fp16" if precision is None else precision)
    if save_precision not in ("f32", "bf16", "fp16", "fp8"):
        raise ValueError(f"save_precision is {save_precision!r}; it must be 'f32', 'bf16', 'fp16' "
                         "or 'fp8'")
    fp8_history = whole("fp8_history", fp8_history, 1)
    fp8_margin = whole("fp8_margin", fp8_margin, 0)
    if precision != "fp8" and (fp8_history, fp8_margin) != (1024, 0):
        raise ValueError('fp8_history and fp8_margin need precision="fp8": other types have no '
                         "scales of tensors")
    policy = PrecisionPolicy.of(precision_policy)
    axes = _axes(mesh)
    launch = processes.connect(ranks, axes, patience)
    given_threads = threads is not None
    if threads is None:
        threads = min(len(os.sched_getaffinity(0)), _cleave.MAX_THREADS)
        threads = processes.own_threads(threads) if launch else threads
    threads = whole("threads", threads, 1, _cleave.MAX_THREADS)
    micro_batches = whole("micro_batches", micro_batches, 1)
    if batch_statistics not in ("batch", "micro-batch", "rank"):
        raise ValueError(
            f"batch_statistics is {batch_statistics!r}; it must be 'batch', 'micro-batch' or 'rank'"
        )
    if max_logits_bytes is None:
        max_logits_bytes = 1 << 30 if target == "cuda" else 100 << 20
    max_logits_bytes = byte_count("max_logits_bytes", max_logits_bytes, 1)
    bucket_bytes = byte_count("bucket_bytes", bucket_bytes, 0)
    collective_chunks = whole("collective_chunks", collective_chunks, 1)
    collective_chunk_bytes = byte_count("collective_chunk_bytes", collective_chunk_bytes, 0)
    seed = whole("seed", seed, -(2**63))
    flag("check_finite", check_finite)
    pipeline = pipeline_options(
        schedule, chunks, stages, pipe_slices, max_saved_bytes, measured_costs, max_staleness,
        post_validation, pipe_gather,
    )
    pipeline.update(recompute_options(recompute, memory_limit, fused_attention))
    pipeline.update(machine_options(machine))
    pipeline.update(offload_options(offload))
    pipeline.update(stage_compression_options(compress_stages))
    lossy = {**lossy_options(compress, compress_over, prune, quantize),
             **update_delay_options(update_delay)}
    folder = "" if offload_dir is None else path_of("offload_dir", offload_dir)
    each = updates_each(pipeline)
    interlock = interlock_options(grad_horizon, modules, head)
    if deterministic is not None:
        deterministic = whole("deterministic", deterministic, 1)
        if deterministic & (deterministic - 1):
            raise ValueError(f"deterministic is {deterministic}; it must be a power of 2")
        if micro_batches != 1 or given_threads:
            raise ValueError(
                "deterministic says how the batch is cut and that one thread computes "
                "it: leave out micro_batches and threads"
            )
        threads = 1
    trusted, check = check == "off", checking.mode(check)
    if "pp" not in axes:
        remark_pipeline(pipeline, interlock)
    recipes = entries(plan, model)
    for name, value in {"mesh": axes, "plan": recipes, **lossy, **pipeline, **interlock}.items():
        check_text(name, value)
    examples, arrange = flatten(example_inputs)
    warned, known = [], []
    modes = {part: part.training for part in model.modules()}

    def build(inputs, later=False):
        with TRACING, _in_modes(modes):
            return build_in_modes(inputs, later)

    def build_in_modes(inputs, later):
        nonlocal precision
        # The model takes the types of the example.
        inputs = tuple(t.to(e.dtype) for t, e in zip(inputs, examples))
        batch = inputs[0].shape[0] if inputs and inputs[0].ndim else 1
        if each:
            inputs = first_part(inputs, batch, micro_batches)
        parts = micro_batches
        if not each:
            even = (batch_statistics != "batch" or compress is not None
                    or "reduce=next" in lossy.get("update_delay", "").split(","))
            parts = _micro_batches(micro_batches, batch, _sample_parts(axes, recipes), even)
        groups = Groups()
        if batch_statistics != "batch":
            ranks = _sample_parts(axes, recipes) if batch_statistics == "rank" else 1
            groups = Groups(1 if each else parts, ranks)
        if known:
            known[-1].check(model)
        with warnings.catch_warnings():
            # The remarks have been given for the batch of the first shape.
            if warned:
                warnings.simplefilter("ignore")
            traced = trace(model, arrange(inputs), loss_fn=loss_fn, groups=groups, policy=policy)
        known[:] = [Known(model)]
        if precision is None:
            precision = asked_precision(traced)
            _check_precision(precision, residual, activation_reduction, merge_products,
                             gradient_dtype)
            if precision != "f32":
                log.warning('remark: the model asks for 16 bits, and is compiled with '
                            'precision="%s"', precision)
        if unmatched := policy.unmatched():
            raise ValueError(f"precision_policy has {some_names(unmatched)}, with which no module "
                             "that computes, and no op, is named")
        check_trained(model, traced)
        check_statistics(traced, batch_statistics, 1 if each else parts, deterministic)
        options = {
            "optimizer_fusion": optimizer_fusion,
            "check_finite": check_finite,
            "precision": precision,
            "fp8_history": fp8_history,
            "fp8_margin": fp8_margin,
            "residual": residual,
            **loss_scale_options(loss_scale, precision),
            "save_precision": save_precision,
            "activation_reduction": activation_reduction,
            "merge_products": merge_products,
            **lossy,
            "gradient_dtype": gradient_dtype,
            "micro_batches": parts,
            "mesh": ",".join(f"{axis}={size}" for axis, size in axes.items()),
            "recipe": ",".join(recipes),
            "target": target,
            **({} if deterministic is None else {"deterministic": deterministic}),
            **({} if arch is None else {"arch": arch}),
            # Scratch memory of a GPU does not depend on threads of the host.
            "threads": 1 if target == "cuda" else threads,
            "max_logits_bytes": max_logits_bytes,
            "bucket_bytes": bucket_bytes,
            "collective_chunks": collective_chunks,
            "collective_chunk_bytes": collective_chunk_bytes,
            **pipeline,
            **interlock,
            "optimizer": optimizer.options(),
            "parameters": _parameter_options(optimizer, traced.parameters),
        }
        processes.agree(launch, options, seed, traced)
        if later:
            return lambda: native(traced, options)
        result = native(traced, options)
        if not warned and check != "off":
            plain = traced
            if groups.count > 1 and traced.batch_statistics:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    plain = trace(model, arrange(inputs), loss_fn=loss_fn, logits=False)
            _check(model, arrange, inputs, loss_fn, plain, options, check == "on")
        if not warned:
            for remark in map(readable_places, result[1].warnings()):
                warn(remark)
        warned.append(True)
        return result

    def native(traced, options):
        """Compiles what was traced; does not touch the model."""
        try:
            with compiling():
                compiled = _cleave.compile(traced.named_mlir, json.dumps(options))
                compiled.offload_dir = folder
                _remark_cache(compiled.cache_problem)
                compiled.ranks_per_device = ranks_per_device
        except _cleave.CompileError as error:
            message = readable_places(str(error)) or (
                "the compiler failed and does not say why; this is a defect of Cleave")
            if " native form " in message or " type" in message:
                message += other_types(model)
            if error.couples_samples:
                message = coupled_samples(message, options["micro_batches"], deterministic)
            if " samples" in message:
                message += samples_note({n: torch.empty(shape, device="meta")
                                         for n, (shape, _) in traced.input_types.items()})
            raise _cleave.CompileError(message) from None
        remarks = map(readable_places, compiled.warnings())
        return traced, compiled, [*remarks, *module_remarks(interlock, compiled)]

    buckets = None
    if shapes is not None:
        buckets = Buckets(shapes, plan_call(model, example_inputs, loss_fn).inputs, length_dims,
                          pad_values)
    elif length_dims is not None or pad_values is not None:
        raise ValueError("length_dims and pad_values are those of shapes, which are not given")
    with compiling():
        step = Step(build, model, examples, optimizer, seed, launch, buckets)
    if buckets and not trusted:
        with TRACING, _in_modes(modes):
            check_padding(model, arrange, loss_fn, buckets)
    step.compile_others()
    return step


@contextlib.contextmanager
def _in_modes(modes):
    """Each module in the mode that it was compiled in, in training or not, also for a
    batch of another shape that comes later."""
    now = {part: part.training for part in modes}
    try:
        for part, mode in modes.items():
            part.training = mode
        yield
    finally:
        for part, mode in now.items():
            part.training = mode


class _Remarks(logging.Handler):
    """Counts what is logged."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def emit(self, record) -> None:
        self.count += 1


def _check(model, arrange, inputs, loss_fn, traced, options, forced) -> None:
    """Raises CompileError if the program differs from eager PyTorch."""
    from .. import _cleave
    from .check import Skipped, compare

    own = {name: options[name] for name in ("threads", "max_logits_bytes", "bucket_bytes")}
    shapes = [(tuple(t.shape), t.dtype) for t in inputs]
    known = None if forced else verdicts.key(model, loss_fn, traced, own, shapes)
    if verdicts.found(known):
        return
    remarks = _Remarks()
    log.addHandler(remarks)
    try:
        difference = compare(model, arrange, inputs, loss_fn, traced, own, forced)
    except Skipped as reason:
        if forced:
            raise _cleave.CompileError(f"the model cannot be compared with eager PyTorch: {reason}; "
                                       'compile it with check="off"') from None
        log.warning("remark: the model was not compared with eager PyTorch: %s; "
                    'check="on" compares it in any case, check="off" omits this remark', reason)
        return
    finally:
        log.removeHandler(remarks)
    # What is said is said in each run.
    if not difference and not remarks.count:
        verdicts.keep(known)
    if difference:
        ties = ("Where elements that the model orders (topk, sort) are equal, PyTorch may choose "
                "others than a step, which takes the first: begin with other values then. Else "
                if "graph.top_k" in traced.named_mlir else "Either ")
        raise _cleave.CompileError(
            f"the compiled model differs from eager PyTorch: {difference}. {ties}its code does "
            "something that tracing does not see, or this is a defect of Cleave: compile parts of "
            'the model to find which; check="off" compiles it as it is')


def _remark_cache(problem: str) -> None:
    """Says once for each reason why compiled programs are not kept."""
    if problem and problem not in _cache_problems:
        _cache_problems.add(problem)
        log.warning("remark: what is compiled is not kept for the next start: %s; CLEAVE_CACHE "
                    'names another folder, or is "off"', problem)


#: The reasons that were given in this process.
_cache_problems: set[str] = set()


def _check_precision(precision, residual, activation_reduction, merge_products,
                     gradient_dtype) -> None:
    if precision not in ("f32", "bf16", "fp16", "fp8"):
        raise ValueError(f"precision is {precision!r}; it must be 'f32', 'bf16', 'fp16' or 'fp8'")
    if residual not in ("16bit", "f32"):
        raise ValueError(f"residual is {residual!r}; it must be '16bit' or 'f32'")
    if activation_reduction not in ("auto", "f32", "products", "16bit"):
        raise ValueError(f"activation_reduction is {activation_reduction!r}; "
                         "it must be 'auto', 'f32', 'products' or '16bit'")
    narrow = activation_reduction in ("products", "16bit")
    if narrow and precision == "f32":
        raise ValueError(f'activation_reduction is "{activation_reduction}", which needs '
                         'precision="bf16" or "fp16"')
    if merge_products not in ("auto", "on", "off"):
        raise ValueError(f"merge_products is {merge_products!r}; it must be 'auto', 'on' or 'off'")
    if merge_products == "on" and precision == "f32":
        raise ValueError('merge_products is "on", which needs precision="bf16" or "fp16": weights '
                         "in f32 are not copied")
    if gradient_dtype not in ("f32", "bf16", "fp16"):
        raise ValueError(f"gradient_dtype is {gradient_dtype!r}; it must be 'f32', 'bf16' or 'fp16'")
    if narrow and precision == "fp8":
        raise ValueError(f'activation_reduction is "{activation_reduction}", which needs '
                         'precision="bf16" or "fp16": sums of products of 8 bits are f32')
    if gradient_dtype not in ("f32", precision):
        raise ValueError(f"gradient_dtype is {gradient_dtype!r} and precision is {precision!r}; a "
                         "gradient is f32, or of the type that contractions read")


def _axes(mesh) -> dict[str, int]:
    if mesh is None:
        return {}
    if not isinstance(mesh, Mapping):
        raise TypeError(f"mesh is {type(mesh).__name__}, not a dict of axes and sizes")
    for axis in mesh:
        if not isinstance(axis, str) or not AXIS.fullmatch(axis):
            raise ValueError(f"mesh has {axis!r}, which is not the name of an axis")
    return {
        axis: whole(f'the size of axis "{axis}"', size, 1)
        for axis, size in mesh.items()
    }


def _parameter_options(optimizer, parameters) -> dict[str, dict]:
    """Settings of single parameters by the program's names; a stack has those that all
    its parts have."""
    own = {}
    for entry in parameters:
        if not entry.frozen:
            own.update(zip(entry.parts, entry.tensor) if entry.parts
                       else [(entry.name, entry.tensor)])
    options = optimizer.parameter_options(own)
    if idle := optimizer.idle_groups(own):
        warn(f"param_groups{idle} of the optimizer: no trained parameter has these settings, because "
             "match is false for all of them, or an earlier group matches first")
    for entry in parameters:
        found = [options.pop(part, {}) for part in entry.parts]
        if any(other != found[0] for other in found):
            raise ValueError(f"{entry.parts[0]} and others of {entry.name} are trained as one "
                             "and need one weight decay and learning rate")
        if found and found[0]:
            options[entry.name] = found[0]
    return options


def _micro_batches(asked: int, batch: int, ranks: int, even: bool) -> int:
    """The number of micro-batches, each of which has samples on some rank. Statistics of
    micro-batches, and gradients that each worker keeps, need `even` ones."""
    most = max(min(asked, -(-batch // ranks)), 1)
    parts = max(m for m in range(1, most + 1)
                if not even or batch % (m * ranks) == 0 or m == 1)
    if parts != asked:
        log.warning("remark: a batch of %d %s %d micro-batches; computed in %d", batch,
                    "is not divisible into" if even else "has too few samples for", asked, parts)
    return parts


def _sample_parts(axes: Mapping[str, int], recipes: Sequence[str]) -> int:
    """The number of ranks over which a batch is sharded."""
    from .. import _cleave

    bound = {"dp", *_cleave.sample_axes(",".join(recipes))}
    return math.prod(size for axis, size in axes.items() if axis in bound)
