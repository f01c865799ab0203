"""What Python and native code share: declared in Python, written for C++ from there."""

import ctypes
import subprocess
from dataclasses import fields

import pytest

from nanogpt.decoder.config import Activation, DecoderConfig, Norm
from nanogpt.engines import decoder_library as library
from nanogpt.engines.shared_types import HEADER, Function, address, declarations
from nanogpt.engines.toolchain import CannotBuild, compiler

# How a compiler may lay out fields in another way than ctypes: by padding after the small ones.
PAIR = [("few", ctypes.c_bool), ("many", ctypes.c_double)]


class CPair(ctypes.Structure):
    _fields_ = PAIR


FUNCTIONS = {"sum": Function(ctypes.c_double, [address("const Pair *"), ctypes.c_int64])}


def test_declarations_are_the_python_ones_in_cpp():
    assert declarations([Norm], [CPair], FUNCTIONS).splitlines() == [
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        "enum class Norm : int64_t { LAYER, RMS };",
        "",
        "struct Pair {",
        "  bool few;",
        "  double many;",
        "};",
        "static_assert(sizeof(Pair) == 16);",
        "",
        'extern "C" double sum(const Pair *, int64_t);',
    ]


def test_every_field_of_a_config_reaches_native_code_under_its_own_name():
    """All but the scaling of rotations, which only their table depends on."""
    names = {library.NUMBER_OF.get(field.name, field.name) for field in fields(DecoderConfig)}
    assert set(library.config_fields()) == names - {"rope_scaling"}
    c = DecoderConfig(n_kv_head=2, window=7, logit_softcap=3, activation="gelu", gated=True)
    struct = library.CConfig.of(c)
    found = {name: getattr(struct, name) for name in ("kv_heads", "window", "gated", "hidden")}
    assert found == {"kv_heads": 2, "window": 7, "gated": True, "hidden": 256}
    assert struct.activation.value == list(Activation).index(Activation.GELU)
    assert library.CConfig.of(DecoderConfig()).window == 0


INCLUDE = '#include "shared_types.h"\n'
DISAGREEING = {
    "a size": "#pragma pack(1)\n" + INCLUDE,
    "a field": INCLUDE + "double one(Pair pair) { return pair.one; }",
    "a parameter": INCLUDE + 'extern "C" double sum(const Pair *pair) { return pair->many; }',
    "a member": INCLUDE + "Norm last = Norm::BATCH;",
}
AGREEING = INCLUDE + 'extern "C" double sum(const Pair *p, int64_t n) { return n * p->many; }'


@pytest.mark.slow
@pytest.mark.parametrize("what", [None, *DISAGREEING])
def test_only_cpp_that_agrees_compiles(tmp_path, what):
    path = tmp_path / "source.cpp"
    path.write_text(DISAGREEING.get(what, AGREEING), encoding="utf-8")
    (tmp_path / HEADER).write_text(declarations([Norm], [CPair], FUNCTIONS), encoding="utf-8")
    try:
        command = [*compiler(), "-std=c++17", "-fsyntax-only", str(path)]
    except CannotBuild as error:
        pytest.skip(str(error))
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    assert (done.returncode == 0) is (what is None), done.stderr
