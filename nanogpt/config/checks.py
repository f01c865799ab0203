"""Plain values at every public door: checks whose errors name the value and what is needed.

A config's fields explain themselves, and some of them can be changed by name.
"""

from __future__ import annotations

from dataclasses import field, replace

LARGEST = 1e30  # what float32 can still multiply with


def check_int(name: str, value, low: int, high: int | None = None) -> None:
    """Raise ValueError unless the value is an integer in [low, high]."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        need = f"of at least {low}" if high is None else f"in [{low}, {high}]"
        raise ValueError(f"{name}={value!r}: must be an integer {need}")


def check_number(name: str, value, low: float, high=LARGEST, advice="", span="") -> None:
    """Raise ValueError unless the value is a number in [low, high]; NaN is not."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        span = (span or f"[{low:g}, {high:g}]") + f"; {advice}" * bool(advice)
        raise ValueError(f"{name}={value!r}: must be a number in {span}")


def check_positive(name: str, value) -> None:
    """Raise ValueError unless the value is a finite number above 0."""
    check_number(name, value, 1 / LARGEST)


def check_switch(name: str, value) -> None:
    """Raise ValueError unless the value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: must be True or False")


def check_type(name: str, value, kind: type | tuple[type, ...]) -> None:
    """Raise TypeError unless the value is of this kind, or one of these."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(each.__name__ for each in kinds)
        raise TypeError(f"{name} must be a {wanted}, not {value!r:.80}")


def option(default, help: str):
    """A field with a default and the line that explains it, on a command line as here."""
    return field(default=default, metadata={"help": help})


def override(config, **changes):
    """The config with some fields changed; None leaves a field as it is.

    Raises ValueError for a value that does not fit, TypeError for a field that it does not have.
    """
    return replace(config, **{name: x for name, x in changes.items() if x is not None})
