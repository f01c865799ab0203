"""C++ declarations of what Python and native code share, written from the Python ones.

Enums, structs and functions are declared once, in Python. Their C++ text is compiled with the
source, so a field that moves, or a parameter too many, cannot be read as another number.
"""

from __future__ import annotations

import ctypes
from enum import Enum
from typing import Any, NamedTuple

HEADER = "shared_types.h"  # the name under which C++ includes the text
CPP_NAMES: dict[Any, str] = {  # of the plain types
    ctypes.c_int64: "int64_t",
    ctypes.c_uint64: "uint64_t",
    ctypes.c_double: "double",
    ctypes.c_float: "float",
    ctypes.c_bool: "bool",
}


class Address(ctypes.c_void_p):
    """An address; `cpp` is its type in C++."""

    cpp = "void *"


def address(cpp: str) -> type[Address]:
    """The ctypes type of a pointer that C++ declares like this."""
    return type("Address", (Address,), {"cpp": cpp})


class Index(ctypes.c_int64):
    """A member of an enum as its index; `cpp` is the name of the enum in C++."""

    cpp = ""


def index(kind: type[Enum]) -> type[Index]:
    """The ctypes type of a member of this enum."""
    return type("Index", (Index,), {"cpp": kind.__name__})


class Function(NamedTuple):
    """A function of a native library: its result (None: none) and its parameters."""

    result: Any
    parameters: list[Any]


def declarations(
    enums: list[type[Enum]],
    structs: list[type[ctypes.Structure]],
    functions: dict[str, Function],
) -> str:
    """The C++ header that declares all of these, in this order."""
    parts = ["#pragma once", "#include <cstdint>"]
    parts += [enum_text(kind) for kind in enums]
    parts += [struct_text(kind) for kind in structs]
    parts += [function_text(name, function) for name, function in functions.items()]
    return "\n\n".join(parts) + "\n"


def enum_text(kind: type[Enum]) -> str:
    """An enum whose members have the indices that Python passes."""
    members = ", ".join(member.name for member in kind)
    return f"enum class {kind.__name__} : int64_t {{ {members} }};"


def struct_text(kind: type[ctypes.Structure]) -> str:
    """A struct with the same fields. Compiling fails if it is laid out in another way."""
    name = type_text(kind)
    lines = [f"struct {name} {{"]
    lines += [f"  {type_text(field[1])} {field[0]};".replace("* ", "*") for field in kind._fields_]
    lines += ["};"]
    lines += [f"static_assert(sizeof({name}) == {ctypes.sizeof(kind)});"]
    return "\n".join(lines)


def function_text(name: str, function: Function) -> str:
    """A prototype. C++ accepts no definition of that name with other parameters."""
    result = "void" if function.result is None else type_text(function.result)
    parameters = ", ".join(type_text(kind) for kind in function.parameters)
    return f'extern "C" {result} {name}({parameters});'


def type_text(kind: Any) -> str:
    """The type in C++; a ctypes structure has its name without the leading C."""
    if kind in CPP_NAMES:
        return CPP_NAMES[kind]
    if issubclass(kind, ctypes.Structure):
        name: str = kind.__name__
        return name.removeprefix("C")
    text: str = kind.cpp
    return text


def declare(library: ctypes.CDLL, functions: dict[str, Function]) -> ctypes.CDLL:
    """Tell ctypes the types of these functions."""
    for name, function in functions.items():
        entry = getattr(library, name)
        entry.restype = _plain(function.result)
        entry.argtypes = [_plain(kind) for kind in function.parameters]
    return library


def _plain(kind: Any) -> Any:
    """Addresses as plain pointers: ctypes returns those as integers."""
    return ctypes.c_void_p if kind and issubclass(kind, Address) else kind
