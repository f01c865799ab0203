"""Fields that explain themselves, and a config with some of them changed."""

from __future__ import annotations

from dataclasses import field, replace


def option(default, help: str):
    """A field with a default and the line that explains it, on a command line as here."""
    return field(default=default, metadata={"help": help})


def override(config, **changes):
    """The config with some fields changed; None leaves a field as it is. Raises ValueError."""
    changes = {name: value for name, value in changes.items() if value is not None}
    known = config.__dataclass_fields__
    if unknown := sorted(set(changes) - set(known)):
        raise ValueError(
            f"{type(config).__name__} has no field {', '.join(unknown)}; it has {', '.join(known)}"
        )
    return replace(config, **changes)
