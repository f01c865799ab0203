"""How a program is run: on the model as it is, on a new object, or in two threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .contract import Model
from .errors import NotOffered
from .objects import untouched
from .programs import Program, Written, run, sessions
from .reference import Reference
from .report import ScenarioKind
from .scenarios import Scenario
from .threads import by_turns_in_threads

_Run = Callable[[Program], list[Written]]


class ProgramRunner:
    """Runs the programs of scenarios through one model's caches."""

    def __init__(self, reference: Reference, fresh: Any, why_not: str):
        """`fresh` is a copy of the adapter that nobody has used, or None; why_not says why."""
        self.reference = reference
        self.fresh = fresh
        self.why_not = why_not
        self._converted: Model | None = None  # that copy, in the finest dtype

    def usual(self, scenario: Scenario) -> _Run:
        """How this scenario is run. Raises NotOffered."""
        model = self.reference.model
        if scenario.kind is ScenarioKind.FIRST:
            return partial(self._on_new, cache=scenario.cache)
        if scenario.kind is not ScenarioKind.THREADS:
            return partial(run, model, cache=scenario.cache)
        if not model.threads:
            raise NotOffered("it declares threads=False")
        return partial(in_threads, model, cache=scenario.cache)

    def on_new_objects(self, scenario: Scenario) -> _Run:
        """The same on an object that nobody has used, as in a script."""
        if scenario.kind is ScenarioKind.THREADS:
            return lambda program: in_threads(self._new(), program, scenario.cache)
        return partial(self._on_new, cache=scenario.cache)

    def _on_new(self, program: Program, cache: str) -> list[Written]:
        return run(self._new(), program, cache)

    def _new(self) -> Model:
        """The model as it is before it is used for the first time. Raises NotOffered."""
        if self.fresh is None:
            raise NotOffered(self.why_not)
        given = self.reference.given
        if self._converted is None:  # the weights of all these copies are the same
            model = Model(untouched(self.fresh), given.meter, like=given)
            if self.reference.model is not given:
                model = model.to(self.reference.dtype)
            self._converted = model
        return Model(untouched(self._converted.given), given.meter, like=given)


def in_threads(model: Model, program: Program, cache: str) -> list[Written]:
    """Run each session of a program in a thread of its own; their lines take turns."""
    # 1. The steps of each session, with their places in the whole program.
    parts = [
        [(i, step) for i, step in enumerate(program) if step.session == name]
        for name in sessions(program)
    ]
    alone = [tuple(step for _, step in part) for part in parts]
    if len(alone) < 2:
        return run(model, program, cache)
    # 2. What they wrote, with steps by their place in the whole program.
    found = by_turns_in_threads(*(partial(run, model, one, cache) for one in alone))
    texts: list[Written] = []
    for part, written in zip(parts, found, strict=True):
        for one in written:
            one.steps = [part[i][0] for i in one.steps]
            texts.append(one)
    return texts
