# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The arguments of `cleave.compile`, checked, as far as they do not depend on a batch."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import TYPE_CHECKING, Any, Mapping

import torch

from .. import _cleave
from ..runtime import processes
from ..runtime.state import path_of, whole
from ..runtime.step import log
from ..training import optim
from . import check as checking
from . import options as table
from .entrance import table as option_table
from .groups import Launch, Memory
from .shardings import entries

if TYPE_CHECKING:
    from ..trace import PrecisionPolicy

#: What a model can ask for by its own types.
ASKED = ("f32", "bf16", "fp16")
#: The tokens that a loss that balances experts can be taken over.
BALANCE = ("model", "sequence", "micro-batch", "rank", "global")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a model is compiled and trained."""

    #: The compiler's, but those that follow from the batch; "precision" is missing if the model
    #: decides.
    options: dict[str, Any]
    optimizer: optim.Optimizer
    policy: PrecisionPolicy
    #: "on", "off" or "auto".
    check: str
    seed: int
    #: The processes that are ranks; None for threads of this one.
    launch: _cleave.Processes | None
    micro_batches: int
    batch_statistics: str
    balance_loss: str
    expert_counts: bool
    #: The number of ranks over which a batch is sharded.
    sample_parts: int
    #: Whether there is an update after each micro-batch.
    updates_each: bool
    #: Whether micro-batches must be even.
    even: bool
    offload_dir: str
    ranks_per_device: int


def read_settings(model: torch.nn.Module, groups: Mapping[str, Any], plain: Mapping[str, Any],
                  optimizer: object, seed: Any, check: str) -> Settings:
    """The settings of groups, by argument, and of options that are arguments themselves (`plain`).
    Raises TypeError, ValueError (`OptionError` by the compiler's table), OSError."""
    from ..trace import PrecisionPolicy

    optimizer = _optimizer(optimizer, model)
    recipes = ",".join(entries(plain["plan"], model))
    options = table.with_plan_file(
        table.encode({**plain, "plan": recipes or None, **_of_table(groups)}))
    complete = _with_precision({**options, "optimizer": optimizer.options()})
    statistics = groups["numerics"].batch_statistics
    statistics = "batch" if statistics is None else statistics
    if not isinstance(statistics, str) or statistics not in ("batch", "micro-batch", "rank"):
        raise ValueError(f"batch_statistics is {statistics!r}; it must be 'batch', 'micro-batch' or "
                         "'rank'")
    balance = groups["numerics"].balance_loss
    balance = "model" if balance is None else balance
    if not isinstance(balance, str) or balance not in BALANCE:
        raise ValueError(f"balance_loss is {balance!r}; it must be "
                         f"{', '.join(map(repr, BALANCE[:-1]))} or {BALANCE[-1]!r}")
    if balance not in ("model", "sequence") and "deterministic" in options:
        raise ValueError(f"balance_loss is {balance!r}, and deterministic computes grains of the batch, "
                         "one after another: it must be 'sequence'")
    counts = groups["numerics"].expert_counts
    if not isinstance(counts, (bool, type(None))):
        raise TypeError(f"expert_counts is {counts!r}; it must be True or False")
    counts = bool(counts)
    policy = PrecisionPolicy.of(groups["precision"].precision_policy)
    folder = _offload_folder(groups["memory"], options)
    ranks_per_device = _ranks_per_device(groups["launch"], options)
    mode, seed = checking.mode(check), whole("seed", seed, -(2**63))
    for remark in _cleave.option_warnings(json.dumps(complete)):
        log.warning("remark: %s", remark)
    known, axes = table.facts(complete), _axes(options)
    if balance == "global" and known["updates_each"]:
        raise ValueError("balance_loss is 'global', and an asynchronous schedule updates after each "
                         "micro-batch: it must be 'micro-batch', 'rank' or 'sequence'")
    launch = _connect(groups["launch"], axes)
    if options.get("target", "cpu") == "cpu" and not {"threads", "deterministic"} & options.keys():
        options["threads"] = _default_threads(launch)
    return Settings(
        options, optimizer, policy, mode, seed, launch,
        micro_batches=options.get("micro_batches", 1), batch_statistics=statistics,
        balance_loss=balance, expert_counts=counts,
        sample_parts=_sample_parts(axes, options.get("plan", "")), updates_each=known["updates_each"],
        even=statistics != "batch" or balance in ("micro-batch", "rank") or "compress" in options or known["reduces_next"],
        offload_dir=folder, ranks_per_device=ranks_per_device)


def _optimizer(optimizer: object, model: torch.nn.Module) -> optim.Optimizer:
    if optimizer is None:
        return optim.AdamW()
    scheduler = None
    if isinstance(optimizer, tuple) and len(optimizer) == 2:
        optimizer, scheduler = optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        return optim.of_torch(optimizer, model, scheduler)
    if not isinstance(optimizer, optim.Optimizer):
        kind = type(optimizer)
        raise TypeError(
            f"optimizer is a {kind.__module__}.{kind.__qualname__}; the update is compiled, so it must "
            "be one of cleave's, as cleave.AdamW(...), or of torch's that are the same, as "
            "torch.optim.AdamW(model.parameters())")
    if scheduler is not None:
        raise TypeError("a scheduler of torch sets the rates of an optimizer of torch; those of cleave's are "
                        "lr=cleave.Schedule(...)")
    return optimizer


def _of_table(groups: Mapping[str, Any]) -> dict[str, Any]:
    """The options of groups that the compiler has, and not Python alone."""
    keys = {row["key"] for row in option_table()}
    return {name: value for group in groups.values() for name, value in group.given().items()
            if name in keys}


def _with_precision(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, which are checked. If the model decides the precision, they must be valid with
    one that it can ask for; they are checked again when it has."""
    if "precision" not in options:
        for precision in ASKED:
            own = {**options, "precision": precision}
            if not _cleave.check_options(json.dumps(own)):
                return own
    table.check(options)
    return options


def _offload_folder(memory: Memory, options: Mapping[str, Any]) -> str:
    if memory.offload_dir is None:
        return ""
    if options.get("target", "cpu") != "cpu":
        raise ValueError("offload_dir is of target cpu: leave it out")
    if not options.get("offload"):
        raise ValueError("offload_dir has no effect without offload, which says what is in its "
                         "files")
    return path_of("offload_dir", memory.offload_dir)


def _ranks_per_device(launch: Launch, options: Mapping[str, Any]) -> int:
    if launch.ranks_per_device is None:
        return 1
    count = whole("ranks_per_device", launch.ranks_per_device, 1)
    if count != 1 and options.get("target", "cpu") != "cuda":
        raise ValueError("ranks_per_device is of target cuda: leave it out")
    return count


def _axes(options: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the axes of the mesh, which is valid."""
    parts = (part.split("=") for part in options.get("mesh", "").split(",") if part)
    return {axis.strip(): int(size) for axis, size in parts}


def _connect(launch: Launch, axes: Mapping[str, int]) -> _cleave.Processes | None:
    patience = launch.patience
    if patience is not None:
        patience = whole("patience", patience, 1, 1 << 20)
    return processes.connect("auto" if launch.ranks is None else launch.ranks, axes, patience)


def _default_threads(launch: _cleave.Processes | None) -> int:
    threads = min(len(os.sched_getaffinity(0)), _cleave.MAX_THREADS)
    return processes.own_threads(threads) if launch else threads


def _sample_parts(axes: Mapping[str, int], plan: str) -> int:
    bound = set(_cleave.sample_axes(plan))
    return math.prod(size for axis, size in axes.items() if axis in bound)
