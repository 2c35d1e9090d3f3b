# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Checks of tensors and training states before they are loaded."""

from __future__ import annotations

import fractions
import operator
import os
import re
from typing import TYPE_CHECKING, Any, Iterable, Mapping

import torch
from torch.nn.parameter import is_lazy

from .native import Counts, Scale, TensorFacts

if TYPE_CHECKING:
    from ..trace.model_tensors import Tensor

#: The runtime's element types.
TORCH_TYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "i1": torch.bool,
}
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32,
         torch.complex32: torch.complex64}


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which a step has what a model has in `dtype`: f32 for 16 bits."""
    return _WIDE.get(dtype, dtype)


def logical_shape(facts: TensorFacts) -> list[int]:
    """The framework's shape of a tensor that is stored in factored shape."""
    return facts.get("framework_shape") or facts["shape"]


def initial_values(tensors: Mapping[str, TensorFacts]) -> dict[str, str]:
    """The parameters that the compiler added, such as those of auxiliary heads, each
    with the parameter whose value it starts with."""
    return {name: facts["of"] for name, facts in tensors.items()
            if facts["role"] == "parameter" and facts["of"]}


def not_dense(value: torch.Tensor) -> str:
    """The kind of tensor that `value` is, and how it becomes one of the kind that a step takes
    (elements in strided memory); empty if it is one."""
    if is_lazy(value):
        return "is not initialized; call the model once, so that its lazy modules know shapes"
    if value.is_nested:
        return "is a nested tensor; pad it (torch.nested.to_padded_tensor)"
    if value.is_quantized:
        return f"is quantized ({_word(value.dtype)}); call dequantize()"
    if value.layout is not torch.strided:
        return f"is not dense ({_word(value.layout).removeprefix('_')}); call to_dense()"
    return ""


def _word(torch_name: Any) -> str:
    return str(torch_name).removeprefix("torch.")


def problem(value: Any, dtype: torch.dtype, shape: Iterable[int]) -> Exception | None:
    """Why `value` does not become a tensor of this type and shape. Floats are rounded;
    one beyond the range of the type (an infinity, where it has none), or an integer that
    would change, does not."""
    if not isinstance(value, torch.Tensor):
        return TypeError(f"{type(value).__name__} given, a tensor expected")
    if kind := not_dense(value):
        return TypeError(f"a tensor given that {kind}")
    if value.is_meta:
        return ValueError("a tensor on the meta device given, which has no values")
    if tuple(value.shape) != tuple(shape):
        return ValueError(f"{list(value.shape)} given, {list(shape)} expected")
    name = next((n for n, own in TORCH_TYPES.items() if own == dtype), dtype)
    if not torch.can_cast(value.dtype, dtype):
        return TypeError(f"{value.dtype} given, which does not become {name}")
    if value.dtype == dtype or value.dtype == torch.bool:
        return None
    converted = value.detach().to(dtype)
    if not value.is_floating_point():
        changed = converted.to(value.dtype) != value
    elif dtype == torch.float8_e4m3fn:
        # It has no infinities; 464 is halfway from the largest one, 448, to the next one.
        changed = value.detach().to(torch.float64).abs() > 464
    elif torch.finfo(value.dtype).max > torch.finfo(dtype).max:
        changed = converted.isinf() & ~value.detach().isinf()
    else:
        return None
    if bool(changed.any()):
        place = changed.nonzero()[0].tolist()
        return ValueError(f"{value.dtype} given, and its element at {place}, "
                          f"{value[tuple(place)].item()}, is out of the range of {name}")
    return None


def _problem(value: Any, facts: TensorFacts, shape: Iterable[int]) -> Exception | None:
    """Why `value` cannot be copied to the tensor that `facts` describe."""
    return problem(value, TORCH_TYPES[facts["dtype"]], shape)


def whole(name: str, value: Any, least: int | None = None, most: int = 2**63 - 1) -> int:
    """`value` as an int. Raises TypeError if it is not one, and ValueError if it is
    below `least`, or, where `least` is given, above `most`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; it must be a whole number") from None
    if least is not None and number < least:
        raise ValueError(f"{name} is {number}; it must be at least {least}")
    if least is not None and number > most:
        raise ValueError(f"{name} is {number}; it must be at most {most}")
    return number


#: The bytes of the units of sizes.
_UNITS = {"": 1, "b": 1, **{f"{letter}b": 1000**i for i, letter in enumerate("kmgt", 1)},
          **{f"{letter}ib": 1024**i for i, letter in enumerate("kmgt", 1)}}


def byte_count(name: str, value: Any, least: int) -> int:
    """A number of bytes, or a size with a unit, such as "80GB" (10^9 bytes each) or "24GiB"
    (2^30). Raises TypeError and ValueError as `whole` does."""
    if not isinstance(value, str):
        return whole(name, value, least)
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", value)
    unit = _UNITS.get(found[2].lower()) if found else None
    if not found or not unit:
        raise ValueError(f"{name} is {value!r}; a size is a number of bytes, or has a unit, as "
                         "'80GB' (10^9 bytes each) or '24GiB' (2^30)")
    return whole(name, int(fractions.Fraction(found[1].rstrip(".") or 0) * unit), least)


def flag(name: str, value: Any) -> bool:
    """`value`, which must be True or False, else raises TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {type(value).__name__}, not True or False")
    return value


def path_of(name: str, value: Any) -> str:
    """`value` as the path of a file. Raises TypeError if it is not one."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path:
        raise TypeError(f"{name} is {value!r}; it must be the path of a file")
    check_text(name, path)
    return path


def check_text(name: str, value: Any) -> None:
    """Raises ValueError if `value`, or a part of it, is a string that native code does not
    take: of invalid Unicode, or with a null character, at which it would end."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} has {value!a}, which is not valid Unicode") from None
        if "\0" in value:
            raise ValueError(f"{name} has {value!a}, with a null character")
    elif isinstance(value, (list, tuple, Mapping)):
        for part in value:
            check_text(name, part)


def _raise_all(what: str, problems: list[tuple[str, Exception]]) -> None:
    """Raises one error for all problems, with the type of the first."""
    if problems:
        text = "; ".join(f"{name}: {error}" for name, error in problems)
        raise type(problems[0][1])(f"{what} does not fit the model: {text}")


def _raise_names(what: str, missing: Iterable[str], unknown: Iterable[str]) -> None:
    parts = [
        f"{word} {', '.join(names)}"
        for word, names in (("missing", list(missing)), ("unknown", list(unknown)))
        if names
    ]
    if parts:
        raise KeyError(f"{what} does not match the model: {'; '.join(parts)}")


def choose_tensors(entries: Iterable[Tensor], tensors: Mapping[str, TensorFacts],
                   own: Iterable[str], state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of `state` by the name of the program's tensor.

    `entries` are parameters and buffers of the trace, `tensors` the program's by name,
    `own` the names of the module's parameters and buffers. A buffer that its state_dict
    does not have may be missing, and keeps its value. A parameter that the compiler added, and that `state`
    does not have, gets the value of the one that it starts with. Raises KeyError,
    TypeError and ValueError as `Step.load_state_dict` does.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state is {type(state).__name__}, not a dict of tensors by name")
    known = set(own)
    missing: list[str] = []
    problems: list[tuple[str, Exception]] = []
    chosen: dict[str, torch.Tensor] = {}
    copies = initial_values(tensors)
    known.update(copies)
    for entry in entries:
        if entry.parts:
            known.update(entry.parts)
            if entry.name not in tensors:
                continue
            missing += [name for name in entry.parts if name not in state]
            facts = tensors[entry.name]
            shape = logical_shape(facts)[1:]
            parts = [(n, state[n]) for n in entry.parts if n in state]
            wrong = [(n, e) for n, v in parts if (e := _problem(v, facts, shape))]
            problems += wrong
            if len(parts) == len(entry.parts) and not wrong:
                chosen[entry.name] = torch.stack([value for _, value in parts])
            continue
        names = (entry.name, *entry.aliases)
        known.update(names)
        if entry.name not in tensors:
            continue
        found = [name for name in names if name in state]
        if not found and (entry.role == "parameter" or entry.persistent):
            missing.append(entry.name)
        facts = tensors[entry.name]
        shape = logical_shape(facts)
        wrong = [(n, e) for n in found if (e := _problem(state[n], facts, shape))]
        problems += wrong
        if wrong or not found:
            continue
        chosen[entry.name] = first = state[found[0]]
        kind = TORCH_TYPES[facts["dtype"]]
        problems += [
            (name, ValueError(f"differs from {found[0]}, which is the same parameter"))
            for name in found[1:]
            if not torch.allclose(
                state[name].to(first.device, kind), first.to(kind), rtol=0.0, atol=0.0,
                equal_nan=True,
            )
        ]
    for name, source in copies.items():
        value = state.get(name, chosen.get(source))
        if value is None:
            continue  # the other one is reported as missing
        error = _problem(value, tensors[name], logical_shape(tensors[name]))
        if error:
            problems.append((name, error))
        chosen[name] = value
    _raise_names("state_dict", missing, (name for name in state if name not in known))
    _raise_all("state_dict", problems)
    return chosen


def split_slots(entries: Iterable[Tensor], slots: Mapping[str, dict[str, torch.Tensor]]
                ) -> dict[str, dict[str, torch.Tensor]]:
    """Optimizer state by the framework's names: the state of a stack is split into that
    of its parts."""
    result = dict(slots)
    for entry in entries:
        if entry.parts and entry.name in result:
            own = result.pop(entry.name)
            for i, part in enumerate(entry.parts):
                result[part] = {slot: value[i] for slot, value in own.items()}
    return result


def _joined_slots(entries: Iterable[Tensor],
                  slots: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The inverse of `split_slots`, as far as `slots` has all parts."""
    result = dict(slots)
    for entry in entries:
        own = [result[part] for part in entry.parts if part in result]
        if not own or len(own) < len(entry.parts):
            continue
        shared = [s for s in own[0] if all(
            isinstance(x.get(s), torch.Tensor) and x[s].shape == own[0][s].shape for x in own)]
        if all(len(x) == len(shared) for x in own):
            for part in entry.parts:
                del result[part]
            result[entry.name] = {s: torch.stack([x[s] for x in own]) for s in shared}
    return result


def choose_slots(entries: Iterable[Tensor], tensors: Mapping[str, TensorFacts],
                 state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The optimizer state of `state` by the name of the program's tensor.

    Raises KeyError, TypeError and ValueError as `Step.load_training_state` does.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state is {type(state).__name__}, not what training_state returns")
    _raise_names(
        "training state",
        [name for name in ("step", "seed", "optimizer") if name not in state],
        [],
    )
    slots = state["optimizer"]
    if not isinstance(slots, Mapping) or not all(
        isinstance(own, Mapping) for own in slots.values()
    ):
        raise TypeError("'optimizer' must hold a dict of tensors for each parameter")
    slots = _joined_slots(entries, slots)
    wanted = {
        (facts["of"], facts["slot"]): name
        for name, facts in tensors.items()
        if facts["role"] == "state"
    }
    given = {(of, slot): value for of, own in slots.items() for slot, value in own.items()}

    def text(keys: Iterable[tuple[str, str]]) -> list[str]:
        return [f"'{slot}' of '{of}'" for of, slot in keys]

    _raise_names(
        "training state",
        text(key for key in wanted if key not in given),
        text(key for key in given if key not in wanted),
    )
    _raise_all(
        "training state",
        [
            (text([key])[0], error)
            for key, name in wanted.items()
            if (
                error := _problem(
                    given[key], tensors[name], logical_shape(tensors[name])
                )
            )
        ],
    )
    return {name: given[key] for key, name in wanted.items()}


#: The entries of a loss scale in a training state.
SCALE_FACTS = ("scale", "growth", "hysteresis")


def read_counts(state: Mapping[str, Any], each: int) -> Counts:
    """(seed, step, data_position, skipped) of a training state, in steps of `each`
    updates."""
    counts = []
    for name, least, default in (("step", 0, 0), ("seed", -(2**63), 0), ("data_position", 0, 0),
                                 ("skipped", 0, 0), ("updates_per_step", 1, 1)):
        value = whole(f"'{name}'", state.get(name, default))
        if not least <= value < 2**63:
            raise ValueError(f"'{name}' is {value}, which is out of range")
        counts.append(value)
    step, seed, position, skipped, before = counts
    if skipped > step:
        raise ValueError(f"'skipped' is {skipped}, more than the {step} of 'step'")
    made = (step - skipped) * before
    if made % each:
        raise ValueError(
            f"{made} updates were made, and a step of this program makes {each}: its "
            "optimizer would count others; compile it for micro-batches that divide them"
        )
    return seed, made // each + skipped, position, skipped


def read_loss_scale(state: Mapping[str, Any]) -> Scale | None:
    """(scale, growth, hysteresis) of a training state, if it has a loss scale."""
    facts = state.get("loss_scale")
    if facts is None:
        return None
    if not isinstance(facts, Mapping):
        raise TypeError(f"'loss_scale' is {type(facts).__name__}, not a dict")
    if missing := [name for name in SCALE_FACTS if name not in facts]:
        raise KeyError(f"'loss_scale' has no {', '.join(missing)}")
    scale, growth, hysteresis = (facts[name] for name in SCALE_FACTS)
    counts = (whole("'growth' of 'loss_scale'", growth),
              whole("'hysteresis' of 'loss_scale'", hysteresis))
    if not isinstance(scale, (int, float)) or not 0 < scale <= 2.0**127 or min(counts) < 0:
        raise ValueError("'loss_scale' is out of range")
    return float(scale), *counts
