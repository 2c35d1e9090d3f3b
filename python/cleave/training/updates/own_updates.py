# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Optimizers of torch that are not in the compiler's table: their code is recorded, and compiled."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, Callable, ClassVar, Mapping, Sequence

import torch

from .. import optim
from .recording import Call, Recording, Refused, Simulation, check_apart, same_operators
from .replay import replayed, write

#: Steps that are recorded at once: what an update does in them, it may do in later ones.
AHEAD = 64
#: The most forms that an update may have, as with and without a correction, or in each fifth step.
FORMS = 4
#: Where a start of state is looked for with its own shape, in elements.
SMALL = 1 << 20

Place = tuple[int, int]
Start = Callable[[torch.Tensor], torch.Tensor] | None


class _Kind:
    """The update of the parameters of one group and one shape: the forms that it has in the first
    steps. In each step one of them counts, and its numbers."""

    def __init__(self, name: str, place: Place, shape: tuple[int, ...], make: Callable[..., Simulation]):
        self.name, self.place, self.shape = name, place, shape
        self.simulation = make([place])
        self.rates: list[float] = []
        #: A recording of each form that steps after the first have; which each step has, and its numbers.
        self.forms: list[Recording] = []
        self._known: list[list[Any]] = []
        self.active: list[int] = []
        self.numbers: list[list[float]] = []
        self.first = self._record()
        while len(self.active) < AHEAD - 1 and not self.simulation.end:
            self._add(self._record())
        if not self.forms:
            raise Refused("there is one step alone")
        self.state = sorted(self.forms[0].state)
        self._check_state()
        self.starts: list[Start] | None = None
        self._begin(make)

    def _record(self) -> Recording:
        self.rates.append(self.simulation.rate())
        return self.simulation.record()

    def _add(self, recording: Recording) -> None:
        form = recording.form()
        if form not in self._known:
            if len(self.forms) == FORMS:
                raise Refused(self._changed(recording))
            self._known.append(form)
            self.forms.append(recording)
        self.active.append(self._known.index(form))
        self.numbers.append(recording.numbers())

    def _changed(self, recording: Recording) -> str:
        found, known = recording.form(), self._known[0]
        place = next((call.place for call, old, new in zip(recording.calls, known[2:], found[2:]) if old != new),
                     recording.calls[-1].place if recording.calls else "")
        return (f"{place}in step {self.simulation.steps} the update calls other operators than in steps before, or "
                "the same with other settings: what it does is not one of a few forms")

    def later(self) -> tuple[int, list[float]]:
        """The form and the numbers of the next step. Raises Refused for a form that is new."""
        recording = self._record()
        form = recording.form()
        if form not in self._known:
            raise Refused(self._changed(recording))
        return self._known.index(form), recording.numbers()

    def _check_state(self) -> None:
        for recording in (self.first, *self.forms):
            if sorted(recording.new_state) != self.state:
                raise Refused(f"the update has state {', '.join(sorted(recording.new_state)) or 'of none'} in one "
                              f"step and {', '.join(self.state) or 'none'} in another")
        for name in self.state:
            if self.forms[0].types[name].dtype != torch.float32:
                raise Refused(f"state {name!r} is of {self.forms[0].types[name].dtype}; state is float32")

    def _begin(self, make: Callable[..., Simulation]) -> None:
        """Finds a form that computes what the first step does, and the state that it begins with: then
        that form is active in it. Else the first step is a form of its own."""
        first, forms = self.first, self.forms
        if math.prod(self.shape) > SMALL:
            small = make([self.place], tuple(min(size, 8) for size in self.shape))
            first = small.record()
            by_form: dict[int, Recording] = {}
            for number in self.active:
                by_form.setdefault(number, small.record())
            forms = [by_form[number] for number in range(len(self.forms))]
        for number, form in enumerate(forms):
            begun = _first_numbers(first, form)
            if begun is None:
                continue
            starts = _starts(first, form, self.state, begun)
            if starts is not None:
                self.starts = starts
                self.active.insert(0, number)
                self.numbers.insert(0, begun)
                return
        self.active.insert(0, len(self.forms))
        self.numbers.insert(0, [])

    def sites(self) -> list[tuple[int, int]]:
        """The numbers of each form."""
        return [(number, site) for number, form in enumerate(self.forms) for site in range(len(form.numbers()))]

    def columns(self) -> list[tuple[float | None, ...]]:
        """The numbers of each site in each step, None where its form is not active."""
        return [tuple(numbers[site] if active == number else None
                      for active, numbers in zip(self.active, self.numbers)) for number, site in self.sites()]

    def flags(self) -> list[tuple[float | None, ...]]:
        """For each form but the first, in which steps it is active."""
        return [tuple(float(active == number) for active in self.active) for number in range(1, len(self.forms))]

    def text(self, first: str, flags: Sequence[str], numbers: Sequence[str]) -> str:
        sizes = {name: tuple(self.forms[0].types[name].shape) for name in self.state}
        names = list(dict.fromkeys([first, *flags, *numbers]))

        def compute(parameter: torch.Tensor, gradient: torch.Tensor, state: Sequence[torch.Tensor],
                    given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            value = dict(zip(names, given))
            if self.starts is not None:
                state = [old if start is None else torch.where(value[first] > 0, start(parameter), old)
                         for old, start in zip(state, self.starts)]
            found: list[torch.Tensor] = []
            own = iter(numbers)
            for number, form in enumerate(self.forms):
                mine = [value[next(own)] for _ in form.numbers()]
                made = replayed(form, self.state, parameter.clone(), gradient.clone(),
                                [x.clone() for x in state], mine)
                found = made if not number else [torch.where(value[flags[number - 1]] > 0, a, b)
                                                 for a, b in zip(made, found)]
            if self.starts is None:
                made = replayed(self.first, self.state, parameter.clone(), gradient.clone(), [],
                                self.first.numbers())
                found = [torch.where(value[first] > 0, a, b) for a, b in zip(made, found)]
            return found

        place = next((call.place for call in self.forms[0].calls), "")
        return write(self.name, compute, self.shape, sizes, names, place)


def _first_numbers(first: Recording, form: Recording) -> list[float] | None:
    """The numbers of the first step, of the sites that `form` has, in order: the first step may also
    make state."""
    own = [(call.name, call.place) for call in form.calls for _ in call.sites]
    begun: list[float] = []
    for name, place, value in ((call.name, call.place, value) for call in first.calls for value in call.numbers()):
        if len(begun) < len(own) and own[len(begun)] == (name, place):
            begun.append(value)
    return begun if len(begun) == len(own) else None


def _filled(size: tuple[int, ...], fill: float) -> Start:
    return lambda parameter: torch.full(size, fill, dtype=parameter.dtype)


def _starts(first: Recording, form: Recording, state: Sequence[str], numbers: Sequence[float]) -> list[Start] | None:
    """The values of each state before the first step, where `form` then computes as it did: None for zeros, else
    a function of the parameter. Returns None where there is no such state."""
    shape = first.parameter[1]
    generator = torch.Generator().manual_seed(0)
    parameter, gradient = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = replayed(first, state, parameter.clone(), gradient.clone(), [], first.numbers())
    fills = {float(x) for call in first.calls for x in call.leaves()
             if isinstance(x, (int, float)) and not isinstance(x, bool)} - {0.0}
    sizes = {name: tuple(form.types[name].shape) for name in state}

    def choices(name: str) -> list[Start]:
        found: list[Start] = [None]
        if sizes[name] == shape:
            found.append(lambda p: p)
        return [*found, *(_filled(sizes[name], fill) for fill in sorted(fills)[:4])]

    for chosen in itertools.islice(itertools.product(*map(choices, state)), 256):
        values = [torch.zeros(sizes[name], dtype=torch.float64) if start is None else start(parameter).clone()
                  for name, start in zip(state, chosen)]
        found = replayed(form, state, parameter.clone(), gradient.clone(), values, numbers)
        if all(torch.allclose(a, b, rtol=1e-12, atol=1e-300, equal_nan=True) for a, b in zip(found, expected)):
            return list(chosen)
    return None


class Numbers:
    """The numbers of each step that the compiled updates take. Equal ones are one."""

    def __init__(self, kinds: Sequence[_Kind]):
        self._kinds = kinds
        self._columns: dict[tuple[int, tuple[float | None, ...]], int] = {}
        first = tuple([1.0] + [0.0] * (len(kinds[0].active) - 1))
        self._site(-1, first)
        #: The places of each kind's flags and numbers among those of a step.
        self.flags = [[self._site(-1, column) for column in kind.flags()] for kind in kinds]
        self.sites = [[self._site(kind.place[0], column) for column in kind.columns()] for kind in kinds]
        self._table = [[1.0 if x is None else x for x in line]
                       for line in zip(*(column for _, column in self._columns))]
        self.names = [f"update.{i}" for i in range(len(self._columns))]

    def _site(self, group: int, column: tuple[float | None, ...]) -> int:
        return self._columns.setdefault((group, column), len(self._columns))

    def of(self, step: int) -> list[float]:
        """Those of the update after `step` finished ones. Raises ValueError where the optimizer does
        in that step what it did in none of the first."""
        while len(self._table) <= step:
            self._extend()
        return self._table[step]

    def rate(self, step: int) -> float:
        """The learning rate of the first group."""
        self.of(step)
        return self._kinds[0].rates[step]

    def _extend(self) -> None:
        found: dict[int, float] = {0: 0.0}

        def put(site: int, value: float) -> None:
            if found.setdefault(site, value) != value:
                raise ValueError(f"in step {len(self._table) + 1} the optimizer takes different numbers for "
                                 "parameters that had equal ones in steps before, which is not compiled")

        for kind, flags, sites in zip(self._kinds, self.flags, self.sites):
            try:
                active, numbers = kind.later()
            except Refused as error:
                raise ValueError(str(error)) from None
            for number, flag in enumerate(flags, 1):
                put(flag, float(active == number))
            own = [site for (number, _), site in zip(kind.sites(), sites) if number == active]
            for site, value in zip(own, numbers, strict=True):
                put(site, value)
        self._table.append([found.get(site, 1.0) for site in range(len(self._columns))])


@dataclasses.dataclass
class OwnUpdates(optim.Optimizer):
    """An optimizer whose updates are functions of the module; `own_updates` makes it."""

    _kind: ClassVar[str] = "sgd"

    #: The text of the functions, and which of them each parameter has, by the parameter's name.
    updates: str = ""
    functions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    numbers: Numbers | None = None

    def _settings(self) -> dict[str, Any]:
        return {}

    def module(self) -> str:
        return self.updates

    def lr_at(self, step: int) -> float:
        assert self.numbers is not None
        return self.numbers.rate(step)

    def scalars_at(self, step: int) -> dict[str, float]:
        assert self.numbers is not None
        return dict(zip(self.numbers.names, self.numbers.of(step), strict=True))

    def parameter_options(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
        return {name: {"kind": f"@{self.functions[name]}"} for name in parameters}


def own_updates(optimizer: torch.optim.Optimizer, names: Mapping[int, Sequence[str]], scheduler: Any = None,
                *, max_grad_norm: float | None = None) -> OwnUpdates:
    """The optimizer of a step that updates as the Python code of `optimizer` does. `names` are those of
    each parameter, by its id.

    The code is run for 64 steps on tensors without values, for each kind of parameters (a group and
    a shape). The operators that it calls are compiled; the numbers that it computes in Python (rates, corrections
    of means, ...) are computed so for each step. It may do different things in different steps, as
    every fifth, if these are of few forms. Raises ValueError with the line for code that reads
    values of tensors, updates several parameters by one operator, or draws random numbers.
    """
    kind = type(optimizer).__qualname__
    try:
        return _own_updates(optimizer, names, scheduler, max_grad_norm)
    except Refused as error:
        raise ValueError(f"{kind}: {error}") from None


def _own_updates(optimizer: torch.optim.Optimizer, names: Mapping[int, Sequence[str]], scheduler: Any,
                 max_grad_norm: float | None) -> OwnUpdates:
    def make(places: Sequence[Place] | None = None, shape: tuple[int, ...] | None = None) -> Simulation:
        return Simulation(optimizer, scheduler, places, shape)

    members: dict[tuple[int, tuple[int, ...]], list[Place]] = {}
    for group, settings in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(settings["params"]):
            members.setdefault((group, tuple(parameter.shape)), []).append((group, place))
    _check_each(make(), members, optimizer, make)
    kinds = [_Kind(f"update_{i}", places[0], shape, make) for i, ((_, shape), places) in enumerate(members.items())]
    numbers = Numbers(kinds)
    own = numbers.names
    texts = [kind.text(own[0], [own[i] for i in flags], [own[i] for i in sites])
             for kind, flags, sites in zip(kinds, numbers.flags, numbers.sites)]
    functions = {name: kind.name for kind, places in zip(kinds, members.values()) for group, place in places
                 for name in names[id(optimizer.param_groups[group]["params"][place])]}
    return OwnUpdates(lr=1.0, max_grad_norm=max_grad_norm, updates="  module @updates {\n" + "\n".join(texts) + "\n  }\n",
                      functions=functions, numbers=numbers)


def _check_each(whole: Simulation, members: Mapping[Any, list[Place]], optimizer: torch.optim.Optimizer,
                make: Callable[..., Simulation]) -> None:
    """Each parameter's update is that of its kind, also when all are updated."""
    order = [(group, place) for group, settings in enumerate(optimizer.param_groups)
             for place in range(len(settings["params"]))]
    kind_of = {place: number for number, places in enumerate(members.values()) for place in places}
    alone = [make([places[0]]) for places in members.values()]
    for _ in range(3):
        if whole.end:
            break
        expected = [simulation.record().calls for simulation in alone]

        def check(number: int, calls: list[Call]) -> None:
            if not same_operators(calls, expected[kind_of[order[number]]]):
                place = next((call.place for call in calls), "")
                raise Refused(f"{place}the update of a parameter depends on others, or on its place among them")

        check_apart(whole, check)
