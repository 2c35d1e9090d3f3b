# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Makes the Python code of graph modules when it is asked for: torch writes and compiles that of each
graph of each pass of an export, most of which are interpreted, or thrown away. Leaves out what torch
notes of each operator for its own code generator."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Iterator

import torch
from torch._export.utils import _get_shape_env_from_gm
from torch.export import _trace
from torch.fx.experimental import proxy_tensor
from torch.fx.graph import _PyTreeCodeGen
from torch.utils import _pytree as pytree
from torch.utils._sympy.symbol import SymT, symbol_is_type

from .patches import patched

_GRAPH_MODULE: Any = torch.fx.GraphModule
_recompile = _GRAPH_MODULE.recompile
_code = _GRAPH_MODULE.__dict__["code"]
_str = _GRAPH_MODULE.__dict__["__str__"]
_bind = _trace._replace_unbacked_bindings
_is_named_tuple = pytree.is_namedtuple_class


@contextlib.contextmanager
def code_on_demand() -> Iterator[None]:
    """Context manager in which `recompile` only notes that a graph module has changed. Its code is
    made when it is called or asked for it, then or later."""
    with patched((_GRAPH_MODULE, "recompile", _note)):
        yield


def without_notes() -> contextlib.AbstractContextManager[None]:
    """Context manager in which the metadata of nodes has neither the shape and strides of their values,
    which the values have themselves, nor the strides that operators were called with; in which symbols of
    sizes that depend on values are looked for only where there are some; and in which a class is found to
    be that of a named tuple, or not, once instead of for each container and leaf."""
    return patched((proxy_tensor, "_extract_tensor_metadata", lambda value: None),
                   (proxy_tensor, "_should_save_eager_input_vals", lambda *_: False),
                   (_trace, "_replace_unbacked_bindings", _bind_symbols),
                   (pytree, "is_namedtuple_class", functools.lru_cache(_is_named_tuple)))


def _bind_symbols(module: Any) -> None:
    """The replacement of `torch.export._trace._replace_unbacked_bindings`."""
    shapes = _get_shape_env_from_gm(module)
    if shapes is None or any(symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))
                             for symbol in shapes.var_to_range):
        _bind(module)
        return
    for node in module.graph.nodes:
        node.meta.pop("unbacked_bindings", None)


def _note(module: Any) -> None:
    """Implements `GraphModule.recompile`. Each object has a class of its own."""
    codegen = module._graph._codegen
    if isinstance(codegen, _PyTreeCodeGen):
        module._in_spec = codegen.pytree_info.in_spec
        module._out_spec = codegen.pytree_info.out_spec
    kind = type(module)
    kind.forward, kind.code, kind.__str__ = _forward, property(_made_code), _made_str
    for part in module.children():
        if isinstance(part, torch.fx.GraphModule):
            part.recompile()


def _make(module: Any) -> None:
    if type(module).forward is _forward:
        _recompile(module)


def _forward(module: Any, *args: Any, **kwargs: Any) -> Any:
    _make(module)
    return module.forward(*args, **kwargs)


def _made_code(module: Any) -> str:
    _make(module)
    return _code.fget(module)


def _made_str(module: Any) -> str:
    _make(module)
    return _str(module)
