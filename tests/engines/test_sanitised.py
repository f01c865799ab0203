"""Native code under the address and undefined-behaviour sanitisers, for every field of a config."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanogpt.engines.toolchain import CannotBuild, compiler

pytestmark = pytest.mark.release
FLAGS = "-std=c++17 -O1 -g1 -pthread -fsanitize=address,undefined -fno-sanitize-recover=undefined"
# The tests of the kernels, in a process whose builds have the sanitisers in them.
CHILD = f"""
import pathlib, sys
import pytest
from nanogpt.engines import toolchain
toolchain.FLAGS = {FLAGS!r}
code = pytest.main(["-n", "0", "-q", "-x", "-p", "no:cacheprovider", *sys.argv[1:]])
from nanogpt.engines.decoder_library import decoder_library
built = pathlib.Path(decoder_library()._name).read_bytes()
assert b"__asan_init" in built and b"__ubsan_handle" in built, "no sanitisers in what ran"
sys.exit(code)
"""


def runtime(name: str) -> str:
    """The path of a sanitiser's runtime, which must be loaded before Python."""
    command = [*compiler(), f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, encoding="utf-8").stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"the compiler has no {name}")
    return path


def test_the_kernels_touch_no_memory_but_theirs_and_leave_nothing_undefined(tmp_path):
    try:
        libraries = " ".join(runtime(name) for name in ("libasan.so", "libubsan.so"))
    except CannotBuild as error:
        pytest.skip(str(error))
    settings = {
        "LD_PRELOAD": libraries,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "NANOGPT_CACHE": str(tmp_path),
    }
    tests = Path(__file__).with_name("test_kernels.py")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tests)],
        env={**os.environ, **settings},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout, done.stdout[-1000:]


def test_the_native_sources_compile_without_a_warning(tmp_path):
    """In the flags of the package, for this processor."""
    from nanogpt.engines import decoder_library as library
    from nanogpt.engines import toolchain

    try:
        compiler()
    except CannotBuild as error:
        pytest.skip(str(error))
    headers = (library.decoder_header(), library.helpers_header())
    for source, header in zip((library.SOURCE, library.HELPERS), headers, strict=True):
        (tmp_path / toolchain.HEADER).write_text(header, encoding="utf-8")
        flags = [*toolchain.FLAGS.split(), *toolchain.MATH.split(), f"-I{tmp_path}"]
        command = [*compiler(), *flags, "-fPIC", "-c", str(source), "-o", str(tmp_path / "out.o")]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        assert done.returncode == 0
        assert "warning" not in done.stderr, done.stderr[:2000]
