# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""What a trace may read, as one hash.

Two processes whose hashes are equal trace the same module: Python runs the same code on the same
objects. The hash covers the model, its loss and the inputs, with all that they refer to (classes,
functions with their bytecode, closures, defaults and the globals that they name, numbers, values
of buffers, but not those of parameters and inputs, which a trace does not read); what a program
may have replaced or set in installed packages; the modes and settings of torch; the environment;
and all loaded files. What is of a kind that is not known here raises `Unknown`, and the model is
then traced.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from .hashed_code import PLAIN, Unknown
from .hashed_objects import Objects
from .hashed_packages import hash_installed
from .verdicts import loaded_files

__all__ = ["Unknown", "trace_key"]

#: Variables that differ between shells, and that no model reads.
_SHELL = {"_", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "TERM_SESSION_ID", "WINDOWID",
          "CLEAVE_CACHE", "CLEAVE_CACHE_BYTES", "CLEAVE_CACHE_VERIFY", "CLEAVE_CHECK"}
#: Modules of settings.
_CONFIGURED = ("torch._dynamo.config", "torch._functorch.config", "torch._export.config",
               "torch.fx.experimental._config")


def trace_key(model: torch.nn.Module, inputs: Any, loss_fn: Any, *others: Any) -> list[str]:
    """The texts that name a trace of `model` in the cache. Raises `Unknown`."""
    files = loaded_files()
    if files is None:
        raise Unknown("a program that is in no file")
    walk = Objects(model)
    walk.add("others", others)
    _hash_modes(walk)
    walk.add("model", model)
    walk.add("loss", loss_fn)
    walk.add("inputs", inputs)
    for name, module in sorted(sys.modules.items()):
        hash_installed(walk, name, module)
    return ["trace", sys.version, torch.__version__, str(torch.version.git_version), files,
            walk.digest()]


def _hash_modes(walk: Objects) -> None:
    """Hashes the modes of the process."""
    walk.say("env", sorted((k, v) for k, v in os.environ.items() if k not in _SHELL), os.getcwd())
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        # torch.device as a context and torch.set_default_device are such modes.
        raise Unknown("a mode of torch that is active")
    backends = torch.backends
    walk.say(
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.is_anomaly_enabled(), torch.is_autocast_cache_enabled(),
        [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(), torch.get_num_threads(), torch.cuda.is_available(),
        backends.cuda.flash_sdp_enabled(), backends.cuda.mem_efficient_sdp_enabled(),
        backends.cuda.math_sdp_enabled(), backends.cuda.cudnn_sdp_enabled(),
        backends.cuda.matmul.allow_tf32, backends.cudnn.enabled, backends.cudnn.deterministic,
        backends.cudnn.benchmark, backends.cudnn.allow_tf32, backends.mkldnn.enabled,
        backends.mha.get_fastpath_enabled(), backends.opt_einsum.enabled,
        backends.opt_einsum.strategy, torch.overrides.is_tensor_like(None),
        torch.__future__.get_overwrite_module_params_on_conversion(),
        getattr(torch.utils.deterministic, "fill_uninitialized_memory", None),
        sys.getrecursionlimit(), sys.flags)
    for name in _CONFIGURED:
        values = getattr(sys.modules.get(name), "_config", {})
        walk.say(name, [(k, v) for k, entry in sorted(values.items())
                        if type(v := getattr(entry, "user_override", None)) in PLAIN])
