"""What a compiler made is kept whole under a key of all it depends on, or it is not kept at all."""

import atexit
import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from engine_fixtures import forget, heard, shared_model
from hypothesis import given

from nanogpt.engines import native, native_library, toolchain
from nanogpt.engines.compiled import Compiled
from nanogpt.engines.native_library import SOURCE, library
from nanogpt.engines.toolchain import (
    CannotBuild,
    cache_folder,
    compile_cpp,
    compiler,
    kept,
    key_of,
    machine,
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache folder for each test, not made yet; what is built elsewhere goes to tmp_path, too."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("NANOGPT_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


class Maker:
    """A build that writes these bytes and counts how often it was asked."""

    def __init__(self, content=b"good" * 100):
        self.content, self.calls = content, 0

    def __call__(self, path):
        self.calls += 1
        path.write_bytes(self.content)


def script(path: Path, text: str) -> str:
    """A program that stands in for the compiler. It answers --version as compilers do."""
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "fake 1.0"; exit 0; fi\n{text}\n'
    )
    path.chmod(0o755)
    return str(path)


LAST = 'for out in "$@"; do :; done'  # the shell's way to the last argument: the file to write


# ------------------------------------------------------------------ where


def test_the_folder_is_the_named_one_then_xdgs_then_the_users(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("NANOGPT_CACHE", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"
    monkeypatch.setenv("NANOGPT_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"
    for unset in (
        lambda: monkeypatch.setenv("NANOGPT_CACHE", ""),
        lambda: monkeypatch.delenv("NANOGPT_CACHE"),
    ):
        unset()
        assert cache_folder() == tmp_path / "xdg" / "nanogpt"
    for unset in (
        lambda: monkeypatch.setenv("XDG_CACHE_HOME", ""),
        lambda: monkeypatch.delenv("XDG_CACHE_HOME"),
    ):
        unset()
        assert cache_folder() == tmp_path / ".cache" / "nanogpt"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "nanogpt"


def test_a_new_folder_is_made_for_the_user_alone(folder):
    kept("thing", "key", ".so", Maker())
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_a_library_kept_in_the_current_folder_can_be_loaded(tmp_path, monkeypatch):
    """A library's name without a slash would be looked for in the system's folders."""
    parts = ("decode", "check", "quantize", "read_all", "multiply_add")
    (tmp_path / "native.cpp").write_text(
        "".join(f'extern "C" int {part}() {{ return C; }}\n' for part in parts)
    )
    monkeypatch.setattr(native_library, "SOURCE", tmp_path / "native.cpp")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANOGPT_CACHE", ".")
    assert library(3, 1, 1).multiply_add(0, None) == 3
    assert any(name.startswith("native-") for name in names(tmp_path))


# ------------------------------------------------------------------ the key


def new_machine(monkeypatch, change):
    """The key before a change of the machine, and after it."""
    before = key_of(source="text")
    change()
    toolchain.compiler.cache_clear()
    toolchain.machine.cache_clear()
    return before, key_of(source="text")


def set_cpuinfo(monkeypatch, text):
    read_text = Path.read_text

    def fake(self, *args, **kwargs):
        return text if str(self) == "/proc/cpuinfo" else read_text(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", fake)


CPU = "processor : 0\nflags\t: sse avx fma\ncpu MHz : 2000\n\nprocessor : 1\nflags : sse\n\n"


@given(
    parts=st.dictionaries(st.sampled_from(["source", "C", "H", "V", "BITS"]), st.integers(0, 99)),
    more=st.sampled_from(["source", "C", "H"]),
)
def test_equal_parts_have_equal_keys_and_other_parts_have_other_keys(parts, more):
    key = key_of(**parts)
    assert key == key_of(**dict(reversed(parts.items())))
    assert key != key_of(**parts | {more: parts.get(more, -1) + 100})
    assert key.isalnum()
    assert len(key) >= 32


MACHINES = {
    "torch": lambda m, tmp: m.setattr(torch, "__version__", "9.9.9"),
    "compiler": lambda m, tmp: m.setenv("CXX", script(tmp / "cxx", "exit 0")),
    "capability": lambda m, tmp: m.setattr(
        torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS"
    ),
    "system": lambda m, tmp: m.setattr(toolchain.platform, "system", lambda: "Plan9"),
    "processor": lambda m, tmp: m.setattr(toolchain.platform, "machine", lambda: "pdp11"),
    "flags": lambda m, tmp: set_cpuinfo(m, CPU.replace("fma", "fma avx512f")),
    "a flag less": lambda m, tmp: set_cpuinfo(m, CPU.replace("fma", "")),
    "an ARM's features": lambda m, tmp: set_cpuinfo(
        m, CPU.replace("flags", "Features").replace("avx", "sve")
    ),
}


@pytest.mark.parametrize("what", MACHINES)
def test_another_machine_has_another_key(what, monkeypatch, tmp_path):
    set_cpuinfo(monkeypatch, CPU)
    before, after = new_machine(monkeypatch, lambda: MACHINES[what](monkeypatch, tmp_path))
    assert before != after


def test_what_changes_from_minute_to_minute_is_no_part_of_the_key(monkeypatch):
    set_cpuinfo(monkeypatch, CPU)
    assert machine()["flags"] == ["avx", "fma", "sse"]
    same = CPU.replace("2000", "3333").replace("sse avx fma", "fma sse avx")
    before, after = new_machine(monkeypatch, lambda: set_cpuinfo(monkeypatch, same))
    assert before == after


def test_another_version_of_the_same_compiler_has_another_key(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", "exit 0"))

    def upgrade():
        path = tmp_path / "cxx"
        path.write_text(path.read_text().replace("fake 1.0", "fake 1.1"))

    before, after = new_machine(monkeypatch, upgrade)
    assert before != after


def test_a_machine_without_cpuinfo_has_a_key_too(monkeypatch):
    def missing(self, *args, **kwargs):
        raise FileNotFoundError(str(self))

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(toolchain.platform, "processor", lambda: "i386")
    assert machine()["flags"] == ["i386"]


def key_asked(call, monkeypatch):
    """The (name, key, suffix) under which a build is looked for."""
    asked = []

    def stop(name, key, suffix, make):
        asked.append((name, key, suffix))
        raise CannotBuild("stop")

    monkeypatch.setattr(toolchain, "kept", stop)
    with pytest.raises(CannotBuild, match="stop"):
        call()
    return asked[0]


def test_a_native_library_is_kept_for_its_source_and_its_shape(monkeypatch, tmp_path):
    shapes = [(64, 4, 65, 32), (64, 4, 65, 8), (64, 4, 66, 32), (64, 2, 65, 32), (32, 4, 65, 32)]
    asked = [key_asked(lambda shape=shape: library(*shape), monkeypatch) for shape in shapes]
    assert {(name, suffix) for name, _, suffix in asked} == {("native", ".so")}
    assert key_asked(lambda: library(64, 4, 65), monkeypatch) == asked[0]
    (tmp_path / "native.cpp").write_text(SOURCE.read_text() + "\n")
    monkeypatch.setattr(native_library, "SOURCE", tmp_path / "native.cpp")
    asked.append(key_asked(lambda: library(64, 4, 65), monkeypatch))
    assert len({key for _, key, _ in asked}) == len(shapes) + 1


# ------------------------------------------------------------------ kept


def test_what_was_built_is_not_built_again(folder):
    make = Maker()
    first = kept("thing", "key", ".so", make)
    assert first == folder / "thing-key.so"
    assert first.read_bytes() == make.content
    assert kept("thing", "key", ".so", make) == first
    assert make.calls == 1
    assert names(folder) == ["thing-key.so", "thing-key.so.sha256"]


def test_another_key_name_or_suffix_is_another_build(folder):
    make = Maker()
    kept("thing", "key", ".so", make)
    for parts in (("thing", "yek", ".so"), ("other", "key", ".so"), ("thing", "key", ".pt2")):
        kept(*parts, make)
    assert make.calls == 4
    assert len(names(folder)) == 8


def test_a_build_is_made_beside_its_place_under_a_name_that_ends_alike(folder):
    seen = []
    kept("thing", "key", ".pt2", lambda path: (seen.append(path), path.write_bytes(b"x")))
    assert seen[0].parent == folder
    assert seen[0].suffix == ".pt2"
    assert seen[0].name != "thing-key.pt2", "a reader could see half of it"


def cut_off(path, stamp):
    path.write_bytes(path.read_bytes()[:-1])


def flipped_byte(path, stamp):
    content = bytearray(path.read_bytes())
    content[17] ^= 1
    path.write_bytes(content)


def emptied(path, stamp):
    path.write_bytes(b"")


def gone(path, stamp):
    path.unlink()


def no_stamp(path, stamp):
    stamp.unlink()


def wrong_stamp(path, stamp):
    stamp.write_text("0" * 64)


def empty_stamp(path, stamp):
    stamp.write_text("")


DAMAGES = [cut_off, flipped_byte, emptied, gone, no_stamp, wrong_stamp, empty_stamp]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_was_damaged_is_built_again(folder, damage):
    make = Maker()
    path = kept("thing", "key", ".so", make)
    damage(path, path.with_name(path.name + ".sha256"))
    assert kept("thing", "key", ".so", make).read_bytes() == make.content
    assert make.calls == 2
    kept("thing", "key", ".so", make)
    assert make.calls == 2, "it is whole again"
    assert names(folder) == ["thing-key.so", "thing-key.so.sha256"]


def test_a_rebuilt_file_takes_the_place_of_the_old_one_and_never_writes_into_it(folder):
    """A library that another process has loaded is memory of that process."""
    path = kept("thing", "key", ".so", Maker(b"old"))
    no_stamp(path, path.with_name(path.name + ".sha256"))
    with open(path, "rb") as held:
        kept("thing", "key", ".so", Maker(b"new"))
        assert held.read() == b"old"
    assert path.read_bytes() == b"new"


def fails(path):
    raise ValueError("boom\nand a long story after it")


def fails_half_way(path):
    path.write_bytes(b"half")
    raise OSError(28, "No space left on device: boom")


def fails_without_a_word(path):
    raise RuntimeError


def fails_at_length(path):
    raise RuntimeError("boom " * 1000)


def takes_its_file_away(path):
    path.unlink()


def cannot(path):
    path.write_bytes(b"half")
    raise CannotBuild("boom, in its own words")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (fails, "the build failed: ValueError: boom"),
        (fails_half_way, "the build failed: OSError: .*boom"),
        (fails_without_a_word, "the build failed: RuntimeError: RuntimeError"),
        (fails_at_length, "boom boom"),
        (takes_its_file_away, "the build failed: FileNotFoundError"),
        (cannot, "^boom, in its own words$"),
    ],
)
def test_a_build_that_fails_leaves_nothing_behind_and_other_builds_alone(folder, make, words):
    good = Maker()
    before = kept("thing", "other", ".so", good)
    held = names(folder)
    for _ in range(2):
        with pytest.raises(CannotBuild, match=words) as error:
            kept("thing", "key", ".so", make)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 300
    assert names(folder) == held
    assert kept("thing", "other", ".so", good) == before
    assert good.calls == 1
    kept("thing", "key", ".so", good)  # and it can still be built
    assert good.calls == 2


def test_a_build_that_is_interrupted_leaves_nothing_behind(folder):
    def interrupted(path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept("thing", "key", ".so", interrupted)
    assert names(folder) == []


def test_a_build_that_fails_anew_leaves_no_damaged_file_in_use(folder):
    good = Maker()
    path = kept("thing", "key", ".so", good)
    flipped_byte(path, None)
    with pytest.raises(CannotBuild):
        kept("thing", "key", ".so", fails)
    assert kept("thing", "key", ".so", good).read_bytes() == good.content


def test_a_disk_that_is_full_at_the_last_moment_leaves_no_half_of_a_build(folder, monkeypatch):
    write_text = Path.write_text

    def full(self, text, *args, **kwargs):
        write_text(self, text[: len(text) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CannotBuild, match="No space left"):
        kept("thing", "key", ".so", Maker())
    monkeypatch.undo()
    assert [name for name in names(folder) if name != "thing-key.so"] == []


# ------------------------------------------------------------------ folders that keep nothing


def assert_built_elsewhere(folder, make, key="key"):
    path, ((message, _),) = heard(lambda: kept("thing", key, ".so", make))
    assert path.read_bytes() == make.content
    assert path.name == f"thing-{key}.so"
    assert folder not in path.parents
    assert "set NANOGPT_CACHE" in message
    assert str(folder) in message
    assert "\n" not in message
    return message


def test_a_folder_that_cannot_be_made_costs_the_keeping_not_the_build(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a regular file")
    folder = tmp_path / "file" / "cache"
    monkeypatch.setenv("NANOGPT_CACHE", str(folder))
    make = Maker()
    assert "Not a directory" in assert_built_elsewhere(folder, make)
    assert heard(lambda: kept("thing", "key", ".so", make))[1] == [], "built for this process"
    assert make.calls == 1
    with (
        pytest.warns(UserWarning, match="NANOGPT_CACHE"),
        pytest.raises(CannotBuild, match="ValueError: boom"),
    ):
        kept("thing", "another", ".so", fails)
    monkeypatch.setenv("NANOGPT_CACHE", str(tmp_path / "file"))
    assert_built_elsewhere(tmp_path / "file", make, key="another")


def test_a_folder_that_cannot_be_written_still_gives_what_it_holds(folder, monkeypatch):
    make = Maker()
    path = kept("thing", "key", ".so", make)
    original = tempfile.TemporaryFile

    def refuse(*args, dir=None, **kwargs):
        if dir == folder:
            raise PermissionError(13, "Permission denied")
        return original(*args, dir=dir, **kwargs)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert heard(lambda: kept("thing", "key", ".so", make)) == (path, [])
    assert make.calls == 1
    assert "Permission denied" in assert_built_elsewhere(folder, make, key="another")


def test_nothing_of_another_users_is_loaded(folder, monkeypatch):
    good = Maker()
    kept("thing", "key", ".so", good)
    before = names(folder)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert not toolchain._intact(folder / "thing-key.so")
    assert "belongs to another user" in assert_built_elsewhere(folder, good)
    assert good.calls == 2
    assert_built_elsewhere(folder, good, key="new")
    assert names(folder) == before, "nothing was written there"


def test_the_owner_of_the_folder_counts_before_what_lies_in_it(folder, monkeypatch):
    """Whoever owns the folder may exchange a file of mine between the check and its opening."""
    kept("thing", "key", ".so", Maker())
    stat = Path.stat

    def of_another(self, **options):
        found = list(stat(self, **options))
        found[4] += self == folder  # st_uid
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", of_another)
    assert "belongs to another user" in assert_built_elsewhere(folder, Maker(b"mine"))


def test_what_cannot_be_kept_is_gone_when_the_process_ends(tmp_path, folder, monkeypatch):
    folder.write_text("a regular file")
    at_exit = []
    monkeypatch.setattr(
        atexit, "register", lambda call, *words, **more: at_exit.append((call, words, more))
    )
    assert_built_elsewhere(folder, Maker())
    assert names(tmp_path / "tmp") != []
    for call, words, more in at_exit:
        call(*words, **more)
    assert names(tmp_path / "tmp") == []


@pytest.mark.parametrize("named", ["~nosuch/builds", None], ids=["~nosuch", "no home"])
def test_without_a_home_a_build_is_not_kept(monkeypatch, tmp_path, named):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("NANOGPT_CACHE")
    if named:
        monkeypatch.setenv("NANOGPT_CACHE", named)
    path, ((message, _),) = heard(lambda: kept("thing", "key", ".so", Maker()))
    assert path.read_bytes() == Maker().content
    assert f"{named or 'the cache folder'} cannot keep builds" in message


def test_what_a_killed_build_left_is_removed_by_the_next_one(folder):
    folder.mkdir(mode=0o700)
    left, young = folder / ".thing-key.so.1-2.so", folder / ".thing-key.so.3-4.so"
    for path in (left, young):
        path.write_text("half")
    os.utime(left, (1, 1))
    kept("thing", "key", ".so", Maker())
    assert names(folder) == [young.name, "thing-key.so", "thing-key.so.sha256"]


# ------------------------------------------------------------------ compilers


def test_an_unbalanced_quotation_mark_in_cxx_cannot_build(monkeypatch):
    monkeypatch.setenv("CXX", 'g++ "-O2')
    with pytest.raises(CannotBuild, match="CXX='g.. \"-O2' cannot be read .No closing quotation"):
        compiler()


def answering(tmp_path) -> Path:
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int answer() { return N; }\n')
    return source


def test_without_a_compiler_it_says_what_to_set(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    config = shared_model().config
    for call in (
        compiler,
        machine,
        lambda: library(64, 4, 65),
        lambda: native.Native(config),
        lambda: Compiled(config),
    ):
        with pytest.raises(
            CannotBuild, match=r"no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\).*set CXX"
        ) as error:
            call()
        assert "\n" not in str(error.value)
    found = script(tmp_path / "clang++", "exit 0")
    assert compiler() == [found], "that there was none is not remembered"
    assert compiler() == [found]


def test_the_named_compiler_is_the_one_and_the_first_of_three_otherwise(monkeypatch, tmp_path):
    paths = {name: script(tmp_path / name, "exit 0") for name in ("clang++", "g++", "mine")}
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "mine")
    assert compiler() == [paths["mine"]]
    monkeypatch.delenv("CXX")
    toolchain.compiler.cache_clear()
    assert compiler() == [paths["g++"]]
    paths["c++"] = script(tmp_path / "c++", "exit 0")
    toolchain.compiler.cache_clear()
    assert compiler() == [paths["c++"]]


def test_a_named_compiler_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/cxx")
    with pytest.raises(CannotBuild, match=r"no C\+\+ compiler \(/nowhere/cxx\).*CXX"):
        library(64, 4, 65)


def test_a_compiler_that_cannot_be_run_cannot_build(monkeypatch, tmp_path, folder):
    """A program of another machine, or a file that is none."""
    (tmp_path / "cxx").write_bytes(b"\x7fELF this is no program")
    (tmp_path / "cxx").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "cxx"))
    with pytest.raises(CannotBuild) as error:
        library(64, 4, 65)
    assert "\n" not in str(error.value)
    assert names(folder) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "echo 'native.cpp: In function' >&2; echo 'native.cpp:1: error: boom' >&2; exit 1",
            "error: boom",
        ),
        ("exit 3", "exit 3"),
        (f"{LAST}; echo half > $out; echo 'error: boom' >&2; exit 1", "error: boom"),
        (f"{LAST}; echo half > $out; kill -9 $$", "exit -9"),
    ],
    ids=["words", "silent", "half a file", "killed"],
)
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing_behind(
    monkeypatch, tmp_path, folder, text, words
):
    path = script(tmp_path / "cxx", text)
    monkeypatch.setenv("CXX", path)
    good = kept("thing", "other", ".so", Maker())
    for _ in range(2):
        with pytest.raises(CannotBuild) as error:
            library(64, 4, 65)
        assert str(error.value).endswith(words)
        assert str(error.value).startswith(f"{path} cannot compile native.cpp: ")
        assert "\n" not in str(error.value)
    assert names(folder) == [good.name, good.name + ".sha256"]


def test_a_compiler_is_told_the_numbers_and_asked_again_without_what_it_does_not_know(
    monkeypatch, tmp_path
):
    log = tmp_path / "log"
    monkeypatch.setenv(
        "CXX",
        script(
            tmp_path / "cxx",
            f"""echo "$@" >> {log}
case "$*" in *-march=native*|*-mcpu=native*) echo "error: what?" >&2; exit 1;; esac
{LAST}; echo built > "$out" """,
        ),
    )
    compile_cpp(SOURCE, tmp_path / "out.so", {"C": 64, "BITS": 8})
    assert (tmp_path / "out.so").read_text() == "built\n"
    calls = log.read_text().splitlines()
    assert len(calls) == 3
    for call in calls:
        assert {"-DC=64", "-DBITS=8", "-shared", "-fPIC", str(SOURCE)} <= set(call.split())
        assert not {"-ffast-math", "-Ofast"} & set(call.split())
    assert [("native" in call.split("-O3")[1].split("-D")[0]) for call in calls] == [
        True,
        True,
        False,
    ]


def test_a_compiler_that_fails_for_every_processor_is_quoted_from_the_first_time(
    monkeypatch, tmp_path
):
    count = tmp_path / "count"
    monkeypatch.setenv(
        "CXX",
        script(
            tmp_path / "cxx",
            f"""echo x >> {count}
echo "error: number $(wc -l < {count})" >&2; exit 1""",
        ),
    )
    with pytest.raises(CannotBuild, match="error: number 1$"):
        compile_cpp(SOURCE, tmp_path / "out.so", {})
    assert count.read_text() == "x\n" * 3


@pytest.mark.slow
def test_a_file_with_an_error_is_told_in_the_compilers_words(tmp_path, folder):
    source = tmp_path / "wrong.cpp"
    source.write_text("int broken( {\n")
    with pytest.raises(CannotBuild, match=r"cannot compile wrong.cpp: .*error:") as error:
        kept("wrong", "key", ".so", lambda out: compile_cpp(source, out, {}))
    assert "\n" not in str(error.value)
    assert names(folder) == []


@pytest.mark.slow
def test_a_real_library_is_built_kept_and_loaded(tmp_path, folder):
    source, calls = answering(tmp_path), []

    def make(out):
        calls.append(out)
        compile_cpp(source, out, {"N": 42})

    for _ in range(2):
        assert ctypes.CDLL(str(kept("answer", "key", ".so", make))).answer() == 42
    assert len(calls) == 1


@pytest.mark.slow
def test_a_loaded_library_leaves_denormal_numbers_on_and_moves_no_rounding(tmp_path):
    """What -ffast-math links in sets the processor to call them 0, for the whole process."""
    source = answering(tmp_path)
    compile_cpp(source, tmp_path / "answer.so", {"N": 1})
    try:
        assert ctypes.CDLL(str(tmp_path / "answer.so")).answer() == 1
        assert torch.tensor(1e-40) * 1 != 0
        assert 5e-324 * 1.0 != 0
    finally:
        torch.set_flush_denormal(False)


def test_the_compiler_is_asked_only_once_in_a_process(monkeypatch, tmp_path):
    count = tmp_path / "count"
    path = tmp_path / "cxx"
    path.write_text(f'#!/bin/sh\necho x >> {count}\necho "fake 1.0"\n')
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    assert len({key_of(source="text") for _ in range(5)}) == 1
    assert machine()["compiler"] == ["fake 1.0"]
    assert count.read_text() == "x\n"


@pytest.mark.slow
def test_a_library_that_was_kept_serves_another_process(tmp_path, folder):
    """Its key must be the same there, in whatever order that process walks through a set."""
    code = "from nanogpt.engines import toolchain; print(toolchain.key_of(source='text', C=3, H=1))"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(toolchain.__file__).parents[2],
        check=True,
    )
    assert done.stdout.strip() == key_of(H=1, C=3, source="text")
