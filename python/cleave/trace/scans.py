# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""State-space and linear-attention layers of the transformers library, as scans.

The library computes them in loops over positions, chunks or rows, which a trace would unroll. While
a model is traced, the functions of its modules that do so are replaced by the same layers made of
`cleave.recurrence`; a call that these do not cover goes to the library's own function.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from typing import Any, Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import recurrence


@contextlib.contextmanager
def recognised_scans(module: torch.nn.Module) -> Iterator[None]:
    """Context manager in which functions that layers of `module` call by a known name, with known
    parameters, are computed as scans."""
    replaced: list[tuple[dict[str, Any], str, Callable]] = []
    for name in sorted({type(part).__module__ for part in module.modules()}):
        if not name.startswith("transformers.models.") or name not in sys.modules:
            continue
        values = vars(sys.modules[name])
        for key, scan in _SCANS.items():
            function = values.get(key)
            if callable(function) and _computes(function, scan):
                replaced.append((values, key, function))
                values[key] = _either(scan, function)
    try:
        yield
    finally:
        for values, key, function in replaced:
            values[key] = function


@functools.cache
def _computes(function: Callable, scan: Callable) -> bool:
    """Whether `function` computes what `scan` does. This is decided by comparing results for random
    arguments, of lengths that chunks divide and do not."""
    generator = torch.Generator().manual_seed(0)
    cases = [_DRAWS[scan](lambda *shape: torch.randn(shape, generator=generator), length)
             for length in (1, 6, 8)]
    try:
        with torch.no_grad():
            for case in cases:
                own, known = ([y for y in _flat(f(**case)) if y is not None]
                              for f in (function, scan))
                if len(own) != len(known) or any(
                        a.shape != b.shape or a.dtype != b.dtype
                        or not torch.allclose(a, b, rtol=1e-3, atol=1e-4)
                        for a, b in zip(own, known)):
                    return False
    except Exception:
        return False
    return True


def _flat(result) -> tuple:
    return result if isinstance(result, tuple) else (result,)


def _either(scan: Callable, function: Callable) -> Callable:
    """Returns the function that computes `scan`, or `function` where that returns None. Keywords
    that `function` does not name, such as those of the whole model, mean nothing to it."""
    named = inspect.signature(function).parameters

    def chosen(*args, **kwargs):
        result = scan(*args, **{key: value for key, value in kwargs.items() if key in named})
        return function(*args, **kwargs) if result is None else result

    return chosen


def _given(others: dict[str, Any]) -> bool:
    """Whether a keyword that the forms do not know says something."""
    return any(value is not None for value in others.values())


def _selective(hidden_states, dt, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False,
               return_last_state=False, use_mambapy=False, use_associative_scan=False, **others):
    """Mamba: [b, d, l] of a state [d, n] at each position."""
    if _given(others):
        return None
    steps = _steps(dt, None if delta_bias is None else delta_bias[:, None], delta_softplus)
    x = hidden_states.float()
    result, last = recurrence.selective_scan(x, steps.to(x.dtype), A.to(x.dtype),
                                             B.to(x.dtype), C.to(x.dtype))
    result = result.to(hidden_states.dtype)
    if D is not None:
        result = result + hidden_states * D[None, :, None]
    if z is not None:
        result = result * F.silu(z)
    return (result, last) if return_last_state else result


def _chunked(hidden_states, dt, A, B, C, chunk_size, D=None, dt_bias=None, initial_states=None,
             dt_softplus=False, dt_limit=(0.0, float("inf")), return_final_states=False, **others):
    """Mamba-2: [b, l, a, p] of a state [a, p, n] at each position."""
    if _given(others) or initial_states is not None:
        return None
    steps = torch.clamp(_steps(dt, dt_bias, dt_softplus), min=dt_limit[0], max=dt_limit[1])
    x = hidden_states.float()
    result, last = recurrence.chunked_scan(x, steps.to(x.dtype), A.to(x.dtype), B.to(x.dtype),
                                           C.to(x.dtype), min(chunk_size, x.shape[1]))
    if D is not None:
        result = result + D[..., None] * x
    return (result, last) if return_final_states else result


def _gated_delta(query, key, value, g, beta, chunk_size=64, initial_state=None,
                 output_final_state=False, use_qk_l2norm_in_kernel=False, **others):
    """The gated delta rule: [b, l, a, v] of a state [a, k, v] at each position, which decays as a
    whole or by rows."""
    if _given(others) or initial_state is not None or chunk_size & (chunk_size - 1):
        return None
    dtype, shared = query.dtype, value.shape[2] // key.shape[2]
    if shared > 1:
        query, key = (x.repeat_interleave(shared, dim=2) for x in (query, key))
    query, key, value, decay, beta = (x.transpose(1, 2).float()
                                      for x in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    while chunk_size // 2 >= query.shape[2]:
        chunk_size //= 2
    result, last = recurrence.gated_delta_rule(query * query.shape[-1] ** -0.5, key, value, decay,
                                               beta, chunk_size)
    return result.transpose(1, 2).to(dtype), last if output_final_state else None


def _kimi_delta(query, key, value, g, beta, chunk_size=64, initial_state=None,
                output_final_state=False, use_qk_l2norm_in_kernel=False, **others):
    """The same with a decay of each row of the state: `g` is [b, l, a, k]."""
    return _gated_delta(query, key, value, g, beta, chunk_size, initial_state, output_final_state,
                        use_qk_l2norm_in_kernel, **others)


def _steps(dt: Tensor, bias: Tensor | None, softplus: bool) -> Tensor:
    """The sizes of steps, in the type of `dt`."""
    if bias is not None:
        dt = dt + bias.to(dt.dtype)
    return F.softplus(dt) if softplus else dt


def _draw_selective(normal, length: int) -> dict[str, Any]:
    return dict(hidden_states=normal(2, 3, length), dt=normal(2, 3, length),
                A=-normal(3, 4).exp(), B=normal(2, 4, length), C=normal(2, 4, length),
                D=normal(3), z=normal(2, 3, length), delta_bias=normal(3), delta_softplus=True,
                return_last_state=True)


def _draw_chunked(normal, length: int) -> dict[str, Any]:
    return dict(hidden_states=normal(2, length, 4, 3), dt=normal(2, length, 4),
                A=-normal(4).exp(), B=normal(2, length, 2, 5), C=normal(2, length, 2, 5),
                chunk_size=4, D=normal(4), dt_bias=normal(4), dt_softplus=True,
                dt_limit=(0.1, 2.0), return_final_states=True)


def _draw_gated_delta(normal, length: int) -> dict[str, Any]:
    return dict(query=normal(2, length, 2, 3), key=normal(2, length, 2, 3),
                value=normal(2, length, 4, 5), g=-normal(2, length, 4).exp(),
                beta=normal(2, length, 4).sigmoid(), chunk_size=4, output_final_state=True,
                use_qk_l2norm_in_kernel=True)


def _draw_kimi_delta(normal, length: int) -> dict[str, Any]:
    return dict(query=normal(2, length, 4, 3), key=normal(2, length, 4, 3),
                value=normal(2, length, 4, 5), g=-normal(2, length, 4, 3).exp(),
                beta=normal(2, length, 4).sigmoid(), chunk_size=4, output_final_state=True,
                use_qk_l2norm_in_kernel=True)


#: The library's functions by name. Models that share a layer each have a copy of it.
_SCANS: dict[str, Callable] = {
    "mamba_selective_scan": _selective,
    "mamba2_chunk_scan": _chunked,
    "torch_chunk_gated_delta_rule": _gated_delta,
    "chunk_kimi_delta_attention": _kimi_delta,
}

#: Random arguments of each, of a length.
_DRAWS: dict[Callable, Callable] = {
    _selective: _draw_selective, _chunked: _draw_chunked, _gated_delta: _draw_gated_delta,
    _kimi_delta: _draw_kimi_delta}
