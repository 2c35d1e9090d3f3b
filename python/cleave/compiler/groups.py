# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The groups of options that `cleave.compile` takes.

Written by scripts/write_groups.py from the table of options (lib/Pipelines/Options); edit that.
None leaves an option at its default. Sizes are bytes, or text with a unit: "80GB" (10^9 bytes
each), "24GiB" (2^30). `cleave.compile` checks the options, by the rules of the table: what is out
of range, contradicts another option, or would have no effect raises `cleave.OptionError` (a
`ValueError`), and a value of another type TypeError.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Literal, Mapping, Sequence

from .fields import OptionGroup, check_names

if TYPE_CHECKING:
    from ..training.loss_scale import LossScale


@check_names
@dataclasses.dataclass(frozen=True, repr=False)
class Numerics(OptionGroup):
    """What is checked and in which order is summed in a step.

    Attributes:
        check_finite: On, the default: a step whose loss or gradients are not finite stops and
            changes nothing, so that no update runs before all gradients are known; off: it
            updates nevertheless. True or False; True by default.
        deterministic: Compute the batch in this many equal grains, each by one thread, and sum
            them in one tree: losses and weights then have the same bits for every "dp" that
            divides the grains, a power of 2. At least 1.
        batch_statistics: The samples that share the statistics of batch normalisation. batch,
            the default: all, also those of other ranks (as SyncBatchNorm); refused with several
            micro-batches, because each would need the later ones. micro-batch: those of a
            micro-batch, on all ranks; running statistics are updated in the order of
            micro-batches, as gradient accumulation in PyTorch does. rank: those of a
            micro-batch on one rank; running statistics are those of the first rank, as
            DistributedDataParallel keeps them. With the last two the loss differs from that of
            the whole batch. Other buffers that the model writes get one new value in a step,
            that of the whole batch.
        balance_loss: The tokens over which the loss that balances experts is taken: an expert's
            share of the choices times its mean probability, summed over experts; the loss is
            the mean over such parts of the batch. model, the default: as the model's code has
            it. sequence: each sample (Megatron's seq_aux_loss). micro-batch: those of a
            micro-batch, on all ranks, as gradient accumulation in PyTorch does. rank: those of
            a micro-batch on one rank (Megatron's aux_loss). global: the whole batch (Megatron's
            global_aux_loss), as models of transformers have it themselves; it needs one
            micro-batch. It is of `cleave.moe.balance_loss`, of the mixtures of `cleave.models`,
            and of models of transformers with output_router_logits=True; with others it is an
            error.
        expert_counts: Whether a step counts how often each expert is chosen, for
            `Loss.expert_counts`: in experts of transformers, in the mixtures of
            `cleave.models`, and where a model calls `cleave.moe.count_choices`.
    """

    _: dataclasses.KW_ONLY
    check_finite: bool | None = None
    deterministic: int | None = None
    batch_statistics: Literal["batch", "micro-batch", "rank"] | None = None
    balance_loss: Literal["model", "sequence", "micro-batch", "rank", "global"] | None = None
    expert_counts: bool | None = None


@check_names
@dataclasses.dataclass(frozen=True, repr=False)
class Precision(OptionGroup):
    """The types of numbers. `precision="bf16"` is short for
    `precision=cleave.Precision("bf16")`.

    Attributes:
        precision: Bf16, fp16: contractions and attention read 16-bit copies of weights and
            activations, and sum in f32 (mixed precision, arXiv 1710.03740); parameters,
            optimizer state, gradients of parameters, losses and statistics stay f32. With fp16
            the loss is scaled, and a step that overflows is skipped. fp8: as bf16, but linear
            layers read 8 bits: e4m3 of weights and activations, e5m2 of gradients, each tensor
            with a scale that the largest numbers of the steps before decide. None: what the
            model asks for, by 16-bit parameters or regions of `torch.autocast`, with a remark;
            else f32.
        fp8_history: With `precision` fp8, the steps whose largest numbers decide the scale of a
            tensor (default 1024). At least 1.
        fp8_margin: With `precision` fp8, the powers of two by which scales are smaller than the
            largest numbers allow (default 0). At least 0 and at most 100.
        residual: With 16-bit precision, the type of the residual stream, the sum of embeddings
            and blocks: 16bit, the default, or f32, which is nearer to f32 and saves twice as
            many bytes of it.
        save_precision: The type in which forward saves values for backward: bf16 and fp16 take
            half of the bytes of f32 and fp8 (e4m3) a quarter, and gradients are computed from
            rounded values; forward is unchanged (Gist, ISCA 2018).
        activation_reduction: With 16-bit precision, the type of matmuls that are activations or
            gradients of them: f32; products: 16 bits, but f32 where ranks reduce their sums
            over shards; 16bit: ranks send half the bytes, each rank's part rounded. auto, the
            default: f32 on a CPU, 16bit on a GPU.
        merge_matmuls: With 16-bit precision, whether matmuls of one value by several weights
            are one matmul, as those of query, key and value: auto, the default: on a GPU; on;
            off.
        gradient_dtype: With 16-bit precision, the type in which gradients of weights are summed
            over micro-batches and ranks: f32, the default, or that of `precision`, bf16 or
            fp16, half the bytes, each addition rounded; those of embeddings, norms and biases
            stay f32.
        loss_scale: With `precision` fp16, the factor of the loss (arXiv 1710.03740): dynamic,
            the default: it falls when a step overflows, and rises while steps do not; a number:
            constant, and a step that overflows ends the run. A `cleave.LossScale` has the
            settings of one that moves.
        precision_policy: Ops that are computed otherwise than `precision` has it: pairs of a
            pattern and "f32" or "16bit". A pattern is of paths of modules and what is in them,
            ("layers.*.gate", "f32"), or of names of ops, ("softmax", "16bit"); of several that
            match, the last one counts.
    """

    precision: Literal["f32", "bf16", "fp16", "fp8"] | None = None
    _: dataclasses.KW_ONLY
    fp8_history: int | None = None
    fp8_margin: int | None = None
    residual: Literal["16bit", "f32"] | None = None
    save_precision: Literal["f32", "bf16", "fp16", "fp8"] | None = None
    activation_reduction: Literal["auto", "f32", "products", "16bit"] | None = None
    merge_matmuls: Literal["auto", "on", "off"] | None = None
    gradient_dtype: Literal["f32", "bf16", "fp16"] | None = None
    loss_scale: LossScale | float | str | None = None
    precision_policy: Sequence[tuple[str, str]] | None = None


@check_names
@dataclasses.dataclass(frozen=True, repr=False)
class Pipeline(OptionGroup):
    """The stages of a pipeline, and the order of their work. `pipeline="1f1b"` is short for
    `pipeline=cleave.Pipeline("1f1b")`.

    Attributes:
        schedule: The order of a pipeline: gpipe, 1f1b (the default), interleaved, zb-h1, zb-h2,
            zb-v, v-half, v-min, dualpipe-v, pipedream, or auto, which searches for the fastest.
            --schedule=help says more. An order written by hand is given as its text, a line for
            each position (`Step.schedule` returns such a text), or as the path of its file.
        virtual_stages: Stages for each position of the pipeline; by default as the schedule
            requires. At least 1.
        stages: Where stages begin, from the second on: at the first reader of a parameter whose
            name has this prefix (transformer.h.6.,transformer.h.12.). By default, stages have
            even cost. As a list of names, or a text with commas.
        pipe_slices: Whether ranks that hold replicas of a value send it to other stages in
            slices, gathered there: auto: if fewer elements are sent in total, or as many where
            pp is major to the axes of these ranks in the mesh; on: wherever it is divisible
            (links between stages may be slower than those within one); off: never.
        max_saved_bytes: The limit of the memory that a pipeline position may have saved for
            backward at a time; `schedule` auto respects it, any other order that exceeds it is
            an error. Bytes, or a text with a unit, at least 0.
        measured_costs: A trace written by cleave-run --trace: schedules are predicted, and
            searched for, by the times of the pipeline's parts in it, instead of by `machine`.
        max_staleness: For an asynchronous schedule: the largest number of updates of other
            micro-batches between the read of the parameters by one micro-batch and its own
            update; 0 means one after another. At least 0. An asynchronous schedule makes as
            many updates in a call as there are micro-batches.
        post_validation: In a pipeline, each stage updates when its own gradients are complete;
            if the scalars computed from all stages, as for a clip, differ from those it
            assumed, it updates again from a copy of the old values (arXiv 2401.10241, section
            4). The bits are the same; the copy takes as much memory as parameters and state.
            True or False; False by default. `Loss.updated_again` counts what was repeated.
        pipe_gather: When sharded parameters (zero3) are gathered. each, the default: in forward
            and in backward of each micro-batch, and released after the last use; once: before
            the first forward of a step, and held until the last backward; auto: once if the
            gathered parameters have no more bytes than the parameters and the optimizer's state
            of a device, else each.
    """

    schedule: str | os.PathLike[str] | None = None
    _: dataclasses.KW_ONLY
    virtual_stages: int | None = None
    stages: str | Sequence[str] | None = None
    pipe_slices: Literal["auto", "on", "off"] | None = None
    max_saved_bytes: int | str | None = None
    measured_costs: str | os.PathLike[str] | None = None
    max_staleness: int | None = None
    post_validation: bool | None = None
    pipe_gather: Literal["each", "once", "auto"] | None = None


@check_names
@dataclasses.dataclass(frozen=True, repr=False)
class Communication(OptionGroup):
    """How collectives are merged, and cut.

    Attributes:
        bucket_bytes: Merge reductions and gathers of one kind among the same ranks into buckets
            of up to this size; 0: do not merge. By default of the size with which they end
            soonest: the root of the bytes of all that a part of the step reduces or gathers so,
            times the latency and the rate of a link of `machine`; 1 MiB where activations are
            cut into chunks (`collective_chunks`). Bytes, or a text with a unit, at least 0.
        collective_chunks: Cut gathers and reductions of activations and their gradients, with
            the contractions beside them, into up to this many chunks of samples (or of
            positions), so that one chunk is sent while another one is computed; 1: do not cut.
            At least 1.
        collective_chunk_bytes: With `collective_chunks`: the least bytes that a rank puts into
            the collective of one chunk (1 MiB by default); always more than a bucket has.
            Bytes, or a text with a unit, at least 0.
        expert_buffer: Of experts that drop no token, sharded by the recipe `expert`: the rows
            that a rank can receive. worst: those of all ranks, so that no choice of experts
            exceeds them; a factor: so many times those that a rank receives where experts are
            chosen evenly. By default worst where its buffers take at most a tenth of the arena,
            else 2, as the report says. `expert_overflow` says what follows where tokens choose
            otherwise.
        expert_overflow: A step whose tokens choose experts so that a rank has no room for its
            rows (`expert_buffer`) changes nothing. abort: it ends with an error that says the
            layer, the rank, the rows and the factor that has room. grow: the step of
            `cleave.compile` is compiled with twice the room, or more, and made again. auto:
            grow where the step is of `cleave.compile`, else abort.
        expert_dispatch: How tokens go to experts that drop no token, where these are sharded
            over several axes. flat: a row for each choice, over all axes at once. hierarchical:
            over the axis `node` a row for each node that has a chosen expert of the token, then
            over the others a row for each choice; outputs are added on the node, and a row for
            each token and node returns. auto: hierarchical where the first of the axes is
            called `node`, another one follows, and a token chooses several experts.
    """

    _: dataclasses.KW_ONLY
    bucket_bytes: int | str | None = None
    collective_chunks: int | None = None
    collective_chunk_bytes: int | str | None = None
    expert_buffer: float | str | None = None
    expert_overflow: Literal["auto", "abort", "grow"] | None = None
    expert_dispatch: Literal["auto", "flat", "hierarchical"] | None = None


@check_names
@dataclasses.dataclass(frozen=True, repr=False)
class Memory(OptionGroup):
    """What is held in memory. `memory="16GiB"` is short for `memory=cleave.Memory("16GiB")`.

    Attributes:
        optimizer_fusion: Where updates run (arXiv 2104.00237). none: after all gradients;
            backward: each after its gradient, which is then released, an error where that is
            not possible; forward: in the next step, each before the first reader of its
            parameter; auto, the default: backward if possible, else none. The bits are the
            same.
        recompute: What backward computes again instead of saving it. none; free: element-wise
            and row-wise ops; selective: the core of an attention that is not one op (arXiv
            2205.05198); full: all of each block, from its input; regions: all of what the model
            runs in torch.utils.checkpoint; several with commas, by default free,regions, and
            regions on a GPU; a policy for each block, as '3 full; 5 free; none'; or auto: by
            blocks, the least time within `memory_limit`. Results have the same bits, on a GPU
            but for gelu that is computed again.
        memory_limit: The most memory that a device may need, as 80GB (10^9 bytes each) or 24GiB
            (2^30): its arena, and what the report lists outside of it. What is recomputed is
            then chosen for it (`recompute` auto), and if no plan fits, the error says the
            smallest limit found. Bytes, or a text with a unit, at least 1.
        fused_attention: On, the default: attention is one op, which holds no scores; off: it is
            matmuls and a softmax, whose results are tensors. True or False; True by default.
        max_logits_bytes: The largest chunk of the logits in memory at once: 100 MiB by default,
            and 1 GiB on a GPU, which does little in a small one. Bytes, or a text with a unit,
            at least 1.
        offload: What is in a file of each rank while no command uses it, and fetched into
            memory before: state (the optimizer's), masters (parameters of which forward and
            backward read 16-bit copies), saved (by forward for backward), with commas between.
            Results have the same bits. As a list, or a text with commas. After an error of the
            file within a step, only the last checkpoint remains.
        offload_dir: The folder of the files of `offload`, which have no names and end with the
            step; by default the one for temporary files.
    """

    memory_limit: int | str | None = None
    _: dataclasses.KW_ONLY
    optimizer_fusion: Literal["auto", "none", "backward", "forward"] | None = None
    recompute: str | None = None
    fused_attention: bool | None = None
    max_logits_bytes: int | str | None = None
    offload: str | Sequence[str] | None = None
    offload_dir: str | os.PathLike[str] | None = None


@check_names
@dataclasses.dataclass(frozen=True, repr=False)
class Lossy(OptionGroup):
    """What changes the mathematics of a step.

    Attributes:
        compress: Sum gradients over ranks with less data, which changes the mathematics:
            powersgd,rank=4 (factors of low rank, arXiv 1905.13727), topk,density=0.01 (the
            largest elements), threshold,keep=0.005, int8 or 1bit (codes). The rest is added in
            the next step (error feedback), and is state of the optimizer.
        compress_over: With `compress`: the axis of the mesh over which compressed gradients are
            summed, dp by default; over others they are summed in full.
        compress_stages: Of each row (last dimension) of an activation, send this share of its
            elements, those of largest magnitude, to other stages of the pipeline, and the
            gradient at the same places back; others are 0, which changes the mathematics
            (DCT-MP, arXiv 2010.08899). At 0.0333 stages send 20 times fewer bytes in f32. Above
            0 and at most 1.
        prune: Keep weights of contractions zero after each update: 2:4 (two of each four along
            the inputs), or the share of each tensor, as 0.5 or 0.9,cubic,steps=1000 (the share
            grows over these steps). Those of least magnitude are chosen, until the step that
            steps= says (1 without cubic), and fixed then.
        quantize: Train for weights of 8 bits: contractions read weights rounded to int8 with a
            scale for each output channel, and gradients are those of the rounded weights.
        update_delay: Update parameters by the gradients of so many steps before, which changes
            the mathematics: 1, or, by names of parameters, 1,embed*=0. Gradients that wait are
            state. With reduce=next ranks add them up in the step after their own, whose
            computation hides the time of it. A dict has numbers by patterns of parameters'
            names, of which the last that matches counts, and "*" for all others, as {"*": 1,
            "embed*": 0}; "reduce": "next" is one of its entries.
    """

    _: dataclasses.KW_ONLY
    compress: str | None = None
    compress_over: str | None = None
    compress_stages: float | None = None
    prune: str | float | None = None
    quantize: str | None = None
    update_delay: int | str | Mapping[str, int | str] | None = None


@check_names
@dataclasses.dataclass(frozen=True, repr=False)
class Interlock(OptionGroup):
    """Interlocking backpropagation (arXiv 2010.04116). `interlock=2` is short for
    `interlock=cleave.Interlock(2)`.

    Attributes:
        grad_horizon: Interlocking backpropagation (arXiv 2010.04116): each module of `modules`
            but the last gets a head and a loss of its own, and the gradient of a head passes
            this many modules, of which it trains the first; 1: modules learn locally. At least
            1.
        modules: With `grad_horizon`: the number of modules, of even cost, or where they begin,
            as in `stages`. The stages of the pipeline by default. A list of names is in the
            form of `stages`.
        head: With `grad_horizon`: where the head begins of which auxiliary heads are copies: at
            the first reader of a parameter whose name has this prefix. After the last layer by
            default.
    """

    grad_horizon: int | None = None
    _: dataclasses.KW_ONLY
    modules: int | str | Sequence[str] | None = None
    head: str | None = None


@check_names
@dataclasses.dataclass(frozen=True, repr=False)
class Target(OptionGroup):
    """The device that runs a step. `target="cuda"` is short for `target=cleave.Target("cuda")`.

    Attributes:
        target: The device that runs the program: the CPU, the default, or a GPU of NVIDIA.
        arch: With `target` cuda: the GPU's architecture, such as sm_80, sm_90 (the default) or
            sm_100. Its code is compiled by NVRTC, without a GPU.
        threads: Threads of a step, for which memory is planned; by default the cores of this
            machine. At least 1 and at most 1024.
        dump_phases: Write the module of each phase to this folder (0-model.mlir to
            5-executable.mlir), each with the command of cleave-opt that makes it of the one
            before; a program is then compiled even if it is in the cache.
        time_phases: Print to standard error the CPU and wall seconds of each phase of the
            compilation, and of each pass with passes, which then run on one thread; a program
            is then compiled even if it is in the cache.
        machine: The rates of a device per second, by which stages are balanced, schedules
            predicted and recomputation chosen: flops=1e11,memory=2e10,link=5e9 (bytes of its
            memory, and sent to another device) by default, with latency=2e-5, the seconds that
            a collective takes beside its bytes; or the file of cleave-compile
            --measure-machine.
    """

    target: Literal["cpu", "cuda"] | None = None
    _: dataclasses.KW_ONLY
    arch: str | None = None
    threads: int | None = None
    dump_phases: str | None = None
    time_phases: Literal["off", "phases", "passes"] | None = None
    machine: str | os.PathLike[str] | None = None


@check_names
@dataclasses.dataclass(frozen=True, repr=False)
class Launch(OptionGroup):
    """Where ranks run. `launch="threads"` is short for `launch=cleave.Launch("threads")`.

    Attributes:
        ranks: Where the devices of the mesh are. processes: each is a process that `mpirun`,
            `torchrun` or `srun` has started with this script; their number must be that of the
            devices. All of them make the same calls with the same arguments and whole batches,
            and get the same results. threads: all are threads of this process. auto, the
            default: processes if several were started, else threads.
        ranks_per_device: With `target` cuda, the ranks of a machine that share a GPU; 1 by
            default.
        patience: The seconds that ranks which are processes wait for each other before all of
            them end and say for whom; for one that writes files, ten times as long. By default
            the variable CLEAVE_PATIENCE, or 300. It is of the whole process: of the first step.
    """

    ranks: Literal["auto", "processes", "threads"] | None = None
    _: dataclasses.KW_ONLY
    ranks_per_device: int | None = None
    patience: int | None = None


@check_names
@dataclasses.dataclass(frozen=True, repr=False)
class Shapes(OptionGroup):
    """Batches of several lengths. `shapes=[128, 256]` is short for `shapes=cleave.Shapes([128,
    256])`.

    Attributes:
        lengths: The lengths of sequences for which programs are compiled, such as [128, 256,
            512], or pairs (samples, length). A batch is padded at its end to the smallest that
            fits; the step trains as it would without padding. That is so of models that leave
            padded positions out (by an attention mask, or because attention is causal) and
            ignore their labels: eager PyTorch must have the same loss and gradients for the
            example with and without padding, or the model is refused; `check="off"` trusts it.
            The first program is compiled at once, the others in another thread; a step that
            needs one of them waits.
        length_dims: The dimensions of inputs that have the length, as {"input_ids": 1}; by
            default those of the size that the second dimension of all inputs with two
            dimensions has.
        pad_values: The values that inputs are padded with, by name; by default the value that
            the loss ignores for labels (usually -100), and 0 for others.
    """

    lengths: Sequence[int | tuple[int, int]] | None = None
    _: dataclasses.KW_ONLY
    length_dims: Mapping[str, int | Sequence[int]] | None = None
    pad_values: Mapping[str, float] | None = None


#: The argument of `cleave.compile` that takes each group, and the option that a plain value in its
#: place is.
GROUPS: dict[str, tuple[Any, str | None]] = {
    "numerics": (Numerics, None),
    "precision": (Precision, "precision"),
    "pipeline": (Pipeline, "schedule"),
    "communication": (Communication, None),
    "memory": (Memory, "memory_limit"),
    "lossy": (Lossy, None),
    "interlock": (Interlock, "grad_horizon"),
    "target": (Target, "target"),
    "launch": (Launch, "ranks"),
    "shapes": (Shapes, "lengths"),
}
