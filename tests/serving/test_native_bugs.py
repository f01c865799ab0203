"""Bugs put into native code, one at a time: what the tests of serving compare must show each."""

import ctypes
import shutil
from unittest.mock import patch

import pytest
import torch
from decoding_fixtures import build
from serving_fixtures import (
    BLOCK_BUGS,
    FORMS,
    Watched,
    check_workload,
    numbers_that_are_none,
    request,
    run,
    serve_beginnings,
)

from nanogpt.engines import base
from nanogpt.engines import decoder_library as library
from nanogpt.engines.native import Native
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.serving.native_steps import NativeBackend

pytestmark = pytest.mark.release  # it compiles a library of its own
MUTATIONS = {  # where in the C++, what it says, and a bug in its place
    "none": ("", "", ""),
    "keys are read past a chunk": (
        "const int64_t pos = rows[row_of(i)].position;\n      w.sights[i] = {",
        "pos",
        "pos + (i + 1 < n)",
    ),
    "noise of the row": (
        "next_token(*m, text, ",
        "s.position",
        "std::min(s.position, text.noise_from - 1 + i)",
    ),
    "the position is the row": (
        "rows.push_back({t->sequence, ",
        "pos",
        "std::min<int64_t>(pos, rows.size())",
    ),
    "the tail of a batch adds up differently": (
        "[&](int r, int p, vec a, vec b) { sums[r][p] = ",
        "multiply_add(a, b, sums[r][p])",
        "in_two_roundings(R, a, b, sums[r][p])",
    ),
    "values are read past the end of a text": (
        "add(panels + whole, whole * LANES, 1, ",
        "last - panels[whole].first + 1",
        "LANES",
    ),
}
SWITCH = """
#include <cstdint>
extern "C" int64_t bug = 0;
"""
TWO_ROUNDINGS = """
INLINE vec in_two_roundings(int rows, vec a, vec b, vec c) {
  if (rows > 2) return multiply_add(a, b, c);
  vec product = a * b;
  HIDE(product);
  return product + c;
}
"""
AFTER = "// ---------------------------------------------------------------- products\n"


@pytest.fixture(scope="module")
def buggy(tmp_path_factory):
    """decoder.cpp with all bugs, of which `bug` switches on one."""
    text = library.SOURCE.read_text(encoding="utf-8")
    header = library.SOURCE.with_name("kernels.h").read_text(encoding="utf-8")
    header = header.replace("#pragma once\n", SWITCH).replace(AFTER, TWO_ROUNDINGS + AFTER)
    text = text.replace('#include "kernels.h"\n', header)
    for i, (where, right, wrong) in enumerate(MUTATIONS.values()):
        if where:
            assert text.count(where + right) >= 1, f"{where}{right} is not there"
            text = text.replace(where + right, f"{where}(bug == {i} ? {wrong} : {right})")
    source = tmp_path_factory.mktemp("buggy") / "decoder.cpp"
    source.write_text(text, encoding="utf-8")
    shutil.copy(library.SOURCE.with_name("threads.h"), source.parent)
    real = library.SOURCE
    library.SOURCE = source
    library.decoder_library.cache_clear()
    try:
        yield library.decoder_library()
    except CannotBuild as error:
        pytest.skip(str(error))
    finally:
        library.SOURCE = real
        library.decoder_library.cache_clear()
        base._built.clear()


def check(form="batched"):
    """Tokens are those of `generate`; logits the same bits in a batch and alone; no NaN strays."""
    model = build(torch.float32, **FORMS[form])
    for seed in range(2):
        served = check_workload(form, seed, NativeBackend, torch.float32, Native)
        for kind, rows in served.logits.items():
            own = Watched(model, backend=NativeBackend, block_len=served.block_len)
            run(own, {0: [request(kind)]}, {})
            assert torch.equal(torch.stack(rows), torch.stack(own.logits[kind][: len(rows)]))
    # Such weights are refused; an overflow inside the model may still make a NaN.
    with patch("nanogpt.engines.decoder_library.check_numbers"):
        numbers_that_are_none(backend=NativeBackend)


@pytest.mark.parametrize("bug", MUTATIONS)
def test_each_bug_in_native_code_is_caught(bug, buggy):
    number = ctypes.c_int64.in_dll(buggy, "bug")
    number.value = list(MUTATIONS).index(bug)
    try:
        if bug == "none":
            return [check(form) for form in FORMS]
        with pytest.raises(AssertionError):
            check()
    finally:
        number.value = 0


@pytest.mark.parametrize("bug", ["none", *BLOCK_BUGS])
def test_each_bug_of_the_blocks_is_caught(bug, buggy, monkeypatch):
    if bug in BLOCK_BUGS:
        monkeypatch.setattr(*BLOCK_BUGS[bug])
    settings = {"backend": NativeBackend, "block_len": 4, "n_blocks": 12, "budget": 6}
    engine = Watched(build(torch.float32), **settings)
    engine.backend.most_steps = lambda n: 1  # texts that begin alike meet
    if bug == "none":
        return serve_beginnings(engine, torch.float32, Native)
    with pytest.raises((AssertionError, IndexError)):
        serve_beginnings(engine, torch.float32, Native)
