# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Restores what a forward changes in the process: levels and modes that it enters and does not
leave, and settings of torch."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

import torch
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

_FUNCTORCH = torch._C._functorch
_C = torch._C


def _set_deterministic(setting: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(setting[0], warn_only=setting[1])


def _device() -> Any:
    """Returns what `torch.set_default_device` has set; None if nothing."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _autocast_depth() -> int:
    """Returns how many `torch.autocast` were entered and not left. While there are some, casts of
    parameters are cached, also of parameters that have changed since."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def _leave_autocast() -> None:
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()


#: Settings of the process: how each is read and set.
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (_device, torch.set_default_device),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_anomaly_enabled, lambda on: torch.autograd.set_detect_anomaly(on)),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (lambda: (torch.are_deterministic_algorithms_enabled(),
              torch.is_deterministic_algorithms_warn_only_enabled()),
     _set_deterministic),
    (_C._is_fwd_grad_enabled, _C._set_fwd_grad_enabled),
    (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    (lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on)),
    (lambda: torch.get_autocast_dtype("cpu"), lambda t: torch.set_autocast_dtype("cpu", t)),
    (lambda: torch.get_autocast_dtype("cuda"), lambda t: torch.set_autocast_dtype("cuda", t)),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (_C._get_flash_sdp_enabled, _C._set_sdp_use_flash),
    (_C._get_math_sdp_enabled, _C._set_sdp_use_math),
    (_C._get_mem_efficient_sdp_enabled, _C._set_sdp_use_mem_efficient),
    (lambda: forward_ad._current_level, lambda level: setattr(forward_ad, "_current_level", level)),
    (lambda: eager_transforms.JVP_NESTING,
     lambda depth: setattr(eager_transforms, "JVP_NESTING", depth)),
)

#: Stacks of the process: how many are on each, and how the last is taken off.
_STACKS: tuple[tuple[Callable[[], int], Callable[[], Any]], ...] = (
    (_FUNCTORCH.get_dynamic_layer_stack_depth, lambda: (
        _FUNCTORCH.pop_dynamic_layer_stack_and_undo_to_depth(
            _FUNCTORCH.get_dynamic_layer_stack_depth() - 1))),
    (_C._len_torch_function_stack, _C._pop_torch_function_stack),
    (_C._len_torch_dispatch_stack, _C._pop_torch_dispatch_stack),
    (_autocast_depth, _leave_autocast),
)

#: The dictionaries of hooks of all modules.
_HOOKS = tuple(value for name, value in vars(torch.nn.modules.module).items()
               if name.startswith("_global_") and isinstance(value, dict))


def process_state() -> list[Any]:
    """Returns what `restored_process` restores, without random numbers, to be compared."""
    return [*(size() for size, _ in _STACKS), *(read() for read, _ in _SETTINGS),
            *(list(hooks) for hooks in _HOOKS)]


@contextlib.contextmanager
def restored_process() -> Iterator[None]:
    """Context manager that restores the levels, modes, settings and hooks of the process, and the
    state of torch's random numbers."""
    sizes = [size() for size, _ in _STACKS]
    settings = [read() for read, _ in _SETTINGS]
    hooks = [dict(own) for own in _HOOKS]
    generator = torch.random.default_generator
    state = generator.get_state()
    try:
        yield
    finally:
        # The default device is a mode, which torch takes off by itself.
        for (read, write), before in zip(_SETTINGS, settings):
            if read() != before:
                write(before)
        for (size, pop), before in zip(_STACKS, sizes):
            while size() > before:
                pop()
        for own, before in zip(_HOOKS, hooks):
            if own != before:
                own.clear()
                own.update(before)
        generator.set_state(state)
