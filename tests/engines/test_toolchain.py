"""What a compiler made is kept whole under a key of all it depends on, or it is not kept at all."""

import ctypes
import os
import threading
from pathlib import Path

import pytest
import torch
from engine_fixtures import forget, shared_model

from nanogpt.engines import decoder_library, toolchain
from nanogpt.engines.compiled import Compiled
from nanogpt.engines.decoder_library import SOURCE
from nanogpt.engines.native import Native
from nanogpt.engines.toolchain import CannotBuild, cache_folder, compile_cpp, kept_build


def names(folder: Path) -> list[str]:
    """What lies there, beside the locks."""
    return sorted(path.name for path in folder.glob("*") if path.suffix != ".lock")


class Maker:
    """A build that writes these bytes and counts how often it was asked."""

    def __init__(self, content=b"good" * 100):
        self.content = content
        self.calls = 0

    def __call__(self, path):
        self.calls += 1
        path.write_bytes(self.content)


LAST = 'for out in "$@"; do :; done'  # the shell's way to the last argument: the file to write


def stand_in(patch, folder: Path, text: str = f'{LAST}; : > "$out"', name: str = "cxx") -> None:
    """A program in place of the compiler, found by its name. It answers --version as they do."""
    path = folder / name
    path.write_text(
        f'#!/bin/sh\ncase " $* " in *" --version "*) echo "fake 1.0"; exit 0;; esac\n{text}\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    patch.setenv("PATH", str(folder), prepend=os.pathsep)
    patch.setenv("CXX", name)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, request):
    """A cache folder for each test, not made yet, and no compiler unless the test compiles."""
    monkeypatch.setenv("NANOGPT_CACHE", str(tmp_path / "cache"))
    if not request.node.get_closest_marker("slow"):
        stand_in(monkeypatch, tmp_path)
    forget()
    yield tmp_path / "cache"
    forget()


# ------------------------------------------------------------------ where, and under which key


def test_the_folder_is_the_named_one_else_the_users(monkeypatch, tmp_path, folder):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NANOGPT_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("NANOGPT_CACHE", "")
    monkeypatch.setattr(toolchain, "user_cache_dir", lambda name, appauthor: f"/there/{name}")
    assert cache_folder() == Path("/there/nanogpt")
    monkeypatch.setenv("NANOGPT_CACHE", str(folder))
    kept_build("thing", {}, ".so", Maker())
    assert folder.stat().st_mode & 0o777 == 0o700


CPU = "processor : 0\nflags\t: sse avx fma\ncpu MHz : 2000\n\nprocessor : 1\nflags : sse\n\n"


def set_cpu(monkeypatch, text):
    read_text = Path.read_text

    def fake(self, *args, **kwargs):
        return text if str(self) == "/proc/cpuinfo" else read_text(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", fake)


MACHINES = {
    "torch": lambda m, tmp: m.setattr(torch, "__version__", "9.9.9"),
    "compiler": lambda m, tmp: stand_in(m, tmp, name="another"),
    "its flags": lambda m, tmp: m.setenv("CXX", "cxx -O1"),
    "another flag": lambda m, tmp: set_cpu(m, CPU.replace("fma", "avx512f")),
    "an ARM's features": lambda m, tmp: set_cpu(m, CPU.replace("flags\t: sse", "Features\t: sve")),
}


@pytest.mark.parametrize("what", [*MACHINES, None])
def test_a_build_is_of_its_machine(what, monkeypatch, tmp_path):
    set_cpu(monkeypatch, CPU)
    before = kept_build("thing", {"C": 1}, ".so", Maker())
    change = MACHINES.get(what, lambda m, tmp: set_cpu(m, CPU.replace("2000", "3333")))
    change(monkeypatch, tmp_path)
    toolchain.compiler.cache_clear()
    toolchain.machine.cache_clear()
    assert (kept_build("thing", {"C": 1}, ".so", Maker()) == before) is (what is None)


@pytest.fixture
def asked(monkeypatch):
    """A function that asks for a build, and the list of what the builds were of."""
    notes = []

    def stop(*parts):
        notes.append(str(parts[:3]))
        raise CannotBuild("stop")

    def ask(call, *args, **kwargs):
        with pytest.raises(CannotBuild, match="stop"):
            call(*args, **kwargs)

    monkeypatch.setattr(toolchain, "kept_build", stop)
    return ask, notes


HEADER = decoder_library.decoder_header()


def test_a_native_library_is_of_its_source_and_its_header(asked, monkeypatch, tmp_path):
    ask, notes = asked
    for name in ("decoder.cpp", "kernels.h", "threads.h"):
        text = SOURCE.with_name(name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text, encoding="utf-8")
    copy = tmp_path / "decoder.cpp"
    for source in (SOURCE, copy):
        ask(toolchain.load_library, "decoder", source, HEADER)
    assert len(set(notes)) == 1
    for path in (tmp_path / "kernels.h", copy):
        path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
        ask(toolchain.load_library, "decoder", copy, HEADER)
    ask(toolchain.load_library, "decoder", copy, HEADER + "// another field")
    assert len(set(notes)) == 4


# ------------------------------------------------------------------ kept


def test_each_thing_is_built_once(folder):
    make = Maker()
    parts = ("thing", {"C": 1}, ".so"), ("thing", {"C": 2}, ".so"), ("other", {"C": 1}, ".pt2")
    for one in parts * 2:
        assert kept_build(*one, make).read_bytes() == make.content
    assert make.calls == len(names(folder)) == 3


def test_a_build_that_another_thread_makes_is_waited_for(folder):
    begun = threading.Event()
    gate = threading.Event()
    found = []

    def slow(path):
        begun.set()
        assert gate.wait(60)
        path.write_bytes(b"of the first")

    def ask(make):
        found.append(kept_build("thing", {}, ".so", make).read_bytes())

    second = Maker()
    threads = [threading.Thread(target=ask, args=(make,)) for make in (slow, second)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    gate.set()
    [thread.join() for thread in threads]
    assert found == [b"of the first"] * 2
    assert second.calls == 0


def fails(path):
    path.write_bytes(b"half")
    raise ValueError("boom\nand a long story after it")


def disk_is_full(path):
    path.write_bytes(b"half")
    raise OSError(28, "No space left on device")


def cannot(path):
    raise CannotBuild("boom, in its own words")


def is_interrupted(path):
    path.write_bytes(b"half")
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (fails, CannotBuild, "the build failed: ValueError: boom"),
        (disk_is_full, CannotBuild, "No space left on device.*: set NANOGPT_CACHE"),
        (cannot, CannotBuild, "^boom, in its own words$"),
        (is_interrupted, KeyboardInterrupt, None),
    ],
)
def test_a_build_that_fails_leaves_nothing_behind_and_can_be_tried_again(
    folder, make, error, words
):
    other = kept_build("other", {}, ".so", Maker())
    with pytest.raises(error, match=words) as caught:
        kept_build("thing", {}, ".so", make)
    assert "\n" not in str(caught.value)
    assert names(folder) == [other.name]
    assert kept_build("thing", {}, ".so", Maker()).read_bytes() == Maker().content


@pytest.mark.parametrize("why", ["Permission denied", "File exists", "belongs to another user"])
def test_a_folder_that_cannot_keep_a_build_is_named_with_advice(folder, monkeypatch, why):
    """Whoever owns the folder may exchange a library before it is opened."""

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    if why == "File exists":
        folder.write_text("a regular file", encoding="utf-8")
    else:
        path = kept_build("thing", {}, ".so", Maker())
        uid = os.getuid()
        monkeypatch.setattr(toolchain, "FileLock", refuse)
        assert kept_build("thing", {}, ".so", None) == path, "what it holds is used all the same"
        monkeypatch.setattr(os, "getuid", lambda: uid + (why[0] == "b"))
    name = "thing" if why[0] == "b" else "other"
    with pytest.raises(CannotBuild, match=f"cache cannot keep .*{why}.*: set NANOGPT_CACHE"):
        kept_build(name, {}, ".so", Maker())


# ------------------------------------------------------------------ compilers


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("", r"no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\).*set CXX"),
        ("/nowhere/cxx", r"no C\+\+ compiler \(/nowhere/cxx\)"),
        ("cxx", "cannot be run"),
    ],
)
def test_without_a_compiler_it_says_what_to_set(monkeypatch, tmp_path, folder, named, words):
    (tmp_path / "cxx").write_bytes(b"\x7fELF this is no program")
    (tmp_path / "cxx").chmod(0o755)
    monkeypatch.setenv("CXX", named)
    monkeypatch.setenv("PATH", str(tmp_path))
    config = shared_model().config
    for call in (toolchain.machine, lambda: Native(config), lambda: Compiled(config)):
        with pytest.raises(CannotBuild, match=words) as error:
            call()
        assert "\n" not in str(error.value)
    assert names(folder) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 'a.cpp: In function' >&2; echo 'a.cpp:1: error: boom' >&2; exit 1", "error: boom"),
        (f"{LAST}; echo half > $out; kill -9 $$", "exit -9"),
    ],
    ids=["words", "killed"],
)
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing_behind(
    monkeypatch, tmp_path, folder, text, words
):
    stand_in(monkeypatch, tmp_path, text)
    with pytest.raises(CannotBuild, match=rf"cxx cannot compile decoder.cpp: .*{words}$"):
        decoder_library.decoder_library()
    assert names(folder) == []


def test_a_compiler_is_asked_again_without_the_tuning_that_it_does_not_know(monkeypatch, tmp_path):
    log = tmp_path / "log"
    text = f"""{{ printf '%s\t' "$@"; echo; }} >> "{log}"
case "$*" in *-march=native*|*-mcpu=native*) echo "error: what?" >&2; exit 1;; esac
{LAST}; echo built > "$out" """
    stand_in(monkeypatch, tmp_path, text)
    compile_cpp(SOURCE, tmp_path / "out.so", HEADER)
    assert (tmp_path / "out.so").read_text(encoding="utf-8") == "built\n"
    calls = [set(line.split("\t")) for line in log.read_text(encoding="utf-8").splitlines()]
    assert len(calls) == 3
    assert all({"-shared", "-fPIC", str(SOURCE)} <= call for call in calls)
    assert not any({"-ffast-math", "-Ofast"} & call for call in calls)


@pytest.mark.slow
def test_a_library_is_built_kept_and_loaded_and_moves_no_arithmetic(tmp_path, folder, monkeypatch):
    """Kept in the current folder, too: a name without a slash would be looked for in the system's.

    What -ffast-math links in would set the processor to call denormal numbers 0.
    """
    source = tmp_path / "answer.cpp"
    text = '#include "shared_types.h"\nextern "C" int answer() { return N; }\n'
    source.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANOGPT_CACHE", ".")
    try:
        assert toolchain.load_library("answer", source, "#define N 42\n").answer() == 42
        assert torch.tensor(1e-40) * 1 != 0
    finally:
        torch.set_flush_denormal(False)
    assert any(name.startswith("answer-") for name in names(tmp_path))


def test_a_build_that_does_not_load_is_described_in_one_line(tmp_path, monkeypatch):
    source = tmp_path / "answer.cpp"
    source.write_text("", encoding="utf-8")

    def refuse(*args):
        raise OSError("wrong ELF class\nraised from somewhere")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(CannotBuild, match="loaded .wrong ELF class.: delete it to build"):
        toolchain.load_library("answer", source, "")
