"""Grading a folder: every file is a row, whatever it does; mistakes are those of the checks."""

import csv
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanogpt.cli import main
from nanogpt.course import grade, grade_one, grade_report, program
from nanogpt.course.blanks import BLANKS
from nanogpt.course.editing import edited
from nanogpt.course.finding import objection
from nanogpt.course.grade import Grade
from nanogpt.course.outcomes import ExerciseResult, Outcome
from nanogpt.course.submissions import Submission, submissions
from nanogpt.files import ROOT

REAL_CORPUS = True
NAMES = list(BLANKS)
LIMITED = Path("/proc/self/statm").exists()  # where memory can be limited


def answer(name: str, wrong: bool = False) -> str:
    """The text of an answer: the solution, or one with the first mistake of its page."""
    blank = BLANKS[name]
    edits = next(iter(blank.mistakes.values())) if wrong else []
    return blank.text_of(*(edits[0] if isinstance(edits, tuple) else edits))


def lesson(*wrong: str) -> str:
    """A whole lesson.py as the notebooks keep it, right but for a mistake in these."""
    text = program.begin()
    for name in NAMES:
        text, _ = program.merge(text, answer(name, name in wrong), name, NAMES)
    return text


def judged(text: str, names=NAMES, seconds: float = 20) -> dict[str, ExerciseResult]:
    """The results of a lesson that is judged in this process; "" has that of the whole."""
    return dict(grade_one.judge_text(text, list(names), seconds))


# ------------------------------------------------------------------ one lesson


@pytest.mark.release
def test_a_whole_lesson_passes_and_an_untouched_one_is_not_there():
    passed = ExerciseResult(Outcome.PASSED)
    assert judged(lesson()) == dict.fromkeys([*NAMES, ""], passed)
    missing = dict.fromkeys(NAMES, ExerciseResult(Outcome.MISSING))
    assert judged(program.begin()) == missing | {"": passed}


@pytest.mark.release
# Each judges all exercises: bases of other classes, what others call, and some that stand alone.
@pytest.mark.parametrize("name", ["KVCache", "Head", "visible", "margin", "fastest", "fold"])
def test_a_mistake_is_the_sentence_of_its_check_and_spoils_no_other_exercise(name):
    """What uses a wrong answer is judged with the solution in its place."""
    blank = BLANKS[name]
    edits = next(iter(blank.mistakes.values()))
    expected = objection(blank, edited(blank, *(edits[0] if isinstance(edits, tuple) else edits)))
    results = judged(lesson(name))
    assert expected
    sentences = {one: result.sentence for one, result in results.items() if result.sentence}
    assert sentences == {name: expected.words}


def test_exercises_are_named_by_themselves_or_by_their_notebook():
    assert grade.exercises(["01", "fold"]) == ["attention_weights", "one_step", "fold"]
    with pytest.raises(
        ValueError, match="no exercise is called '00': choose from the notebooks 01,"
    ):
        grade.exercises(["00"])


def test_only_the_exercises_that_count_are_judged_with_the_solutions_around_them():
    assert judged(lesson("attention_weights"), ["Head"])["Head"].outcome is Outcome.PASSED
    assert judged(lesson("Head"), ["MaskedHead"])["MaskedHead"].outcome is Outcome.PASSED


STOPS = {  # a lesson: where and why it stops
    "x = (\n": "stops at line 1 (SyntaxError: '(' was never closed)",
    "import os\nexit(3)\n": "stops at line 2 (SystemExit: 3)",
    "1 / 0": "stops at line 1 (ZeroDivisionError: division by zero)",
    "import nothing_of_the_kind": "stops at line 1 (ModuleNotFoundError: No module named",
    "while True:\n    pass\n": "stops at line",
}


@pytest.mark.parametrize("text", STOPS)
def test_a_lesson_that_stops_says_where(text):
    (whole,) = judged(text, seconds=0.2).values()
    assert whole.sentence.startswith(STOPS[text])


BORROWED = {  # an answer: what it takes from the package
    "import nanogpt\ndef visible(q, k):\n    return nanogpt.attention.visible(q, k)": (
        "visible",
        "nanogpt.attention.visible",
    ),
    "from nanogpt.attention import visible as theirs\ndef other(*a):\n    return theirs(*a)\n"
    "def visible(q, k):\n    return other(q, k)": ("visible", "nanogpt.attention.visible"),
    "from nanogpt.attention import visible": ("visible", "nanogpt.attention.visible"),
    "from nanogpt.cache import DynamicCache\nclass KVCache(DynamicCache):\n    pass": (
        "KVCache",
        "nanogpt.cache.DynamicCache",
    ),
    "import nanogpt.course.solutions as s\nsample = lambda *a: s.sample(*a)": (
        "sample",
        "nanogpt.course.blanks.sample.sample",
    ),
    BLANKS["MaskedHead"].source: ("MaskedHead", ""),  # its parent is another blank
    BLANKS["MyDraft"].source: ("MyDraft", ""),
}


@pytest.mark.parametrize("text", BORROWED, ids=range(len(BORROWED)))
def test_an_answer_that_only_uses_the_package_is_marked(text):
    name, expected = BORROWED[text]
    result = judged(text, [name])[name]
    assert result.outcome is (Outcome.BORROWED if expected else Outcome.PASSED)
    assert expected in result.sentence


# ------------------------------------------------------------------ the files of a folder

MOODLE = "Ada Lovelace_1234_assignsubmission_file_"
FILES = {  # a path in the folder: the name it gets, and a word of why it is not opened
    "anna.py": ("anna", None),
    "carl/anything.py": ("carl", None),
    "dora/mine/lesson.py": ("dora", None),
    "section/eve/lesson.py": ("section/eve", None),
    "section/fred/lesson.py": ("section/fred", None),
    "gina/report.txt": ("gina", "contains no lesson.py"),
    "link.py": ("link", "a link"),
    "same.py": ("same.py", None),
    "same/lesson.py": ("same/lesson.py", None),
    "folder.py/lesson.py": ("folder.py", None),
    f"{MOODLE}/lesson.py": ("Ada Lovelace", None),  # Moodle, a folder for each learner
    "Ben B_77_assignsubmission_file_lesson.py": ("Ben B", None),  # Moodle, without folders
    "hugo/ps1/lesson.py": ("hugo", None),  # nbgrader
    "hugo/ps1/timestamp.txt": ("hugo", None),
    "ida/outputs/mine/lesson.py": ("ida", None),  # where README says it is
    "jan/repo/nanogpt/__init__.py": ("jan", None),  # GitHub Classroom: a clone
    "jan/repo/nanogpt/course/lesson.py": ("jan", None),
    "jan/repo/nanogpt/course/grade.py": ("jan", None),
    "jan/repo/tests/course/test_lesson.py": ("jan", None),
    "jan/repo/outputs/mine/lesson.py": ("jan", None),
    "kim/nanogpt/__init__.py": ("kim", "a clone without outputs/mine/lesson.py"),
    "kim/tests/test_a.py": ("kim", "a clone without outputs/mine/lesson.py"),
    "lea/lesson.py.txt": ("lea", None),
    "mia/LESSON.PY": ("mia", None),
    "nils/lesson (1).py": ("nils", None),
    "olga/lesson (1).py": ("olga/lesson (1)", None),
    "olga/lesson (2).py": ("olga/lesson (2)", None),
    "otto.py.txt": ("otto", None),
    "paul.zip": ("paul", "unpack it"),
    "Pia_78_assignsubmission_file_work.ZIP": ("Pia", "unpack it"),
    "rita/work.zip": ("rita", "unpack it"),
    "sam.ipynb": ("sam", "ask for outputs/mine/lesson.py"),
    "tina/02.ipynb": ("tina", "ask for outputs/mine/lesson.py"),
    "uwe/.venv/pyvenv.cfg": ("uwe", "contains no lesson.py"),
    "uwe/env/pyvenv.cfg": ("uwe", "contains no lesson.py"),
    "uwe/env/lib/lesson.py": ("uwe", "contains no lesson.py"),
}
ASIDE = (".hidden.py", "__pycache__/a.py", "__MACOSX/anna.py", "dora/mine/earlier.py", "notes.txt")


def test_the_files_of_a_folder_are_found_and_named_one_for_each_learner(tmp_path):
    for path in [*FILES, *ASIDE]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if path == "link.py":
            (tmp_path / path).symlink_to("/etc/hostname")
        else:
            (tmp_path / path).write_text("", encoding="utf-8")
    found, others = submissions(tmp_path)
    reasons = dict(FILES.values())
    assert sorted(one.name for one in found) == sorted(reasons)
    for one in found:
        assert (reasons[one.name] or "") in (one.problem or ""), one
        assert bool(reasons[one.name]) == bool(one.problem), one
        assert "nanogpt/" not in str(one.path)
    assert others == ["notes.txt"]


def test_nbgrader_s_course_folder_is_understood(tmp_path):
    for path in ("submitted/anna/ps1/lesson.py", "submitted/ben/ps1/lesson.py", "source/a.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("", encoding="utf-8")
    found, _ = submissions(tmp_path)
    assert [one.name for one in found] == ["anna", "ben"]


@pytest.mark.parametrize("words", [[], ["nowhere"], ["empty"], ["full", "--only", "Hed"]], ids=str)
def test_a_command_that_cannot_begin_says_why_in_a_line(words, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.py").write_text("", encoding="utf-8")
    folder = [str(tmp_path / word) for word in words[:1]]
    assert main(["grade", *folder, *words[1:]]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1


UNREADABLE = {  # the bytes of a file, and why it is not judged
    "UTF-16": "x = 1".encode("utf-16"),
    "Windows": "x = 1\n# \u00fcber\n".encode("cp1252"),
}


@pytest.mark.parametrize("encoding", UNREADABLE)
def test_a_file_in_another_encoding_is_not_run(encoding, tmp_path, monkeypatch):
    monkeypatch.setattr(grade, "_run", None)
    path = tmp_path / "a.py"
    path.write_bytes(UNREADABLE[encoding])
    one = grade.judge_one(Submission("a", path), NAMES, grade.FileLimits(), None)
    line = 1 if encoding == "UTF-16" else 2
    assert one.problem == f"is not UTF-8 in line {line}: save the file as UTF-8"


def test_a_file_that_may_not_be_read_is_a_line(tmp_path, monkeypatch):
    path = tmp_path / "a.py"
    path.write_text("", encoding="utf-8")

    def closed(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", closed)
    one = grade.judge_one(Submission("a", path), NAMES, grade.FileLimits(), None)
    assert one.problem == "Permission denied"


# ------------------------------------------------------------------ the report


def graded(name: str, *sentences: str, problem: str | None = None) -> Grade:
    results = {
        exercise: ExerciseResult(Outcome.MISTAKE if words else Outcome.PASSED, words)
        for exercise, words in zip(("Head", "KVCache"), sentences, strict=False)
    }
    return Grade(Submission(name, Path(name)), results, problem, 1.0)


CLASS = [
    graded("anna", "", ""),
    graded("ben", "off by 0.5 at [3]", "keeps 6 of 7"),
    graded("carl", "the mask lets the future in", "keeps 64 of 65"),
    graded("dora", "the mask lets the future in", ""),
    graded("eve", "off by 2e-3 at [1, 2]", ""),
    graded("fred", "the mask lets the future in", ""),
    graded("=evil\x1b[31m", problem="stops at line 1"),
]


def test_mistakes_are_counted_by_kind_the_most_frequent_first():
    head, cache = grade_report.mistakes(CLASS, ["Head", "KVCache"])
    assert head.splitlines() == [
        "Head: a mistake in 5 of 6 answers",
        "  3 × the mask lets the future in",
        "      carl, dora, fred",
        "  2 × off by 0.5 at [3]",
        "      ben, eve",
    ]
    assert cache.splitlines()[1:] == ["  2 × keeps 6 of 7", "      ben, carl"]


def test_a_mistake_is_counted_by_its_name_whatever_else_is_said_of_it():
    sentences = ["In the line `a`: the mask is wrong.", "With 5 keys perhaps the mask is wrong."]
    grades = [
        Grade(
            Submission(name, Path(name)),
            {"Head": ExerciseResult(Outcome.MISTAKE, words, "the mask")},
        )
        for name, words in zip(("anna", "ben"), sentences, strict=True)
    ]
    (head,) = grade_report.mistakes(grades, ["Head"])
    assert head.splitlines()[1:] == ["  2 × the mask", "      anna, ben"]


def test_an_exercise_that_nobody_handed_in_has_no_column():
    missing = {name: ExerciseResult(Outcome.MISSING) for name in NAMES}
    one = Grade(Submission("anna", Path("a")), missing)
    assert grade.handed_in([one], NAMES) == NAMES
    one.results["fold"] = ExerciseResult(Outcome.PASSED)
    one.results["Head"] = ExerciseResult(Outcome.MISTAKE, "no")
    assert grade.handed_in([one], NAMES) == ["Head", "fold"]


def test_the_table_has_a_row_for_each_and_nothing_that_a_terminal_obeys():
    text = grade_report.report(CLASS, ["Head", "KVCache"])
    rows = text.splitlines()
    assert rows[1].split() == ["anna", "2/2", "1.0", "+", "+"]
    assert rows[3].split() == ["carl", "0/2", "1.0", "x", "x"]
    assert "not graded: stops at line 1" in rows[7]
    assert "\x1b" not in text


def test_the_csv_has_each_sentence_whole_and_no_formula(tmp_path):
    data = grade_report.as_csv(CLASS, ["Head", "KVCache"])
    rows = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"))))
    assert [row["name"] for row in rows][-1].startswith("'=evil?")
    assert (rows[2]["passed"], rows[2]["of"], rows[2]["KVCache"]) == ("0", "2", "keeps 64 of 65")
    assert rows[0]["Head"] == "passed"
    assert rows[-1]["not graded because"] == "stops at line 1"


def test_a_csv_of_somebody_else_is_kept(tmp_path, capsys):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "a.py").write_bytes(b"\xff")
    points = tmp_path / "points.csv"
    points.write_text("name,points\n", encoding="utf-8")
    command = ["grade", str(tmp_path / "class"), "--csv", str(points)]
    assert main(command) == 2
    assert points.read_text(encoding="utf-8") == "name,points\n"
    assert str(points) in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 1
    ours = points.read_bytes()
    assert main(command) == 2, "marks may have been added to it"
    assert points.read_bytes() == ours


# ------------------------------------------------------------------ processes

LOUD = """
import os, sys
print("NOISE")
os.write(1, b"NOISE")
os.write(2, b"NOISE")
with open({log!r}, "a") as file:
    file.write("x")
"""
STRAY = """
import subprocess, sys
stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
with open({log!r}, "a") as file:
    file.write(str(stray.pid))
"""
EACH_FILE = """import os
for fd in range(3, 99):
    try:
        {}
    except OSError:
        pass
"""
HOSTILE = {  # what a lesson does to its surroundings before its answer
    "scribbles": EACH_FILE.format("os.write(fd, b'nothing of the kind\\n')"),
    "closes": EACH_FILE.format("os.close(fd)"),
    "climbs": "import shutil\nshutil.rmtree('..', ignore_errors=True)\n",
}
CLOSED = "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True:\n    pass\n"
ENDS = "def visible(q_pos, k_pos):\n    import os\n    os._exit(0)\n"


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie, which nobody has waited for, does not."""
    status = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        return (
            status.exists()
            and status.read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z"
        )
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.release
def test_a_folder_of_good_wrong_broken_and_hostile_files(tmp_path, capfd):
    """Each is a row; none stops another; each runs once."""
    texts = {
        "right": lesson(),
        "wrong": lesson(*NAMES),
        "loud": LOUD.format(log=str(tmp_path / "loud.log")) + answer("visible"),
        "stray": STRAY.format(log=str(tmp_path / "stray.log")),
        "exit": "exit()",
        "ends": ENDS,
        "asks": "input()",
        "greedy": "x = bytearray(2 * 10**10)",
        "crash": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    } | {name: text + answer("visible") for name, text in HOSTILE.items()}
    folder = tmp_path / "class"
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    (folder / "binary.py").write_bytes(bytes(range(256)))  # not UTF-8
    table = tmp_path / "table.csv"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["grade", str(folder), "--csv", str(table)]) == 1
    said = capfd.readouterr().out
    assert "NOISE" not in said
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert (tmp_path / "loud.log").read_text(encoding="utf-8") == "x", "executed once"
    assert not alive(int((tmp_path / "stray.log").read_text(encoding="utf-8")))
    rows = {}
    with open(table, encoding="utf-8-sig", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert list(rows) == sorted([*texts, "binary"])
    assert [rows["right"][name] for name in NAMES] == ["passed"] * len(NAMES)
    for name in NAMES:
        why = rows["wrong"]["not graded because"]
        assert rows["wrong"][name] not in ("passed", "not there", "not graded", ""), why
        assert name in said
    assert (rows["loud"]["visible"], rows["loud"]["Head"]) == ("passed", "not there")
    assert rows["loud"]["passed"] == "1"
    assert "SystemExit" in rows["exit"]["not graded because"]
    assert "EOFError" in rows["asks"]["not graded because"]
    assert "SIGSEGV" in rows["crash"]["not graded because"]
    assert "UTF-8" in rows["binary"]["not graded because"]
    assert "exit code 0" in rows["ends"]["visible"]
    assert rows["ends"]["Head"] == "not graded"
    if LIMITED:
        assert "MemoryError" in rows["greedy"]["not graded because"]
    bad = {"binary", "exit", "asks", "crash", "ends"} | ({"greedy"} if LIMITED else set())
    bad |= {"scribbles", "closes"}
    assert rows["climbs"]["visible"] == "passed"
    assert {name for name, row in rows.items() if row["not graded because"]} == bad
    assert f"{len(rows) - len(bad)} of {len(rows)} files were graded" in said


@pytest.mark.release
def test_loops_that_never_end_end(tmp_path):
    loop = tmp_path / "loop.py"
    loop.write_text("def visible(q_pos, k_pos):\n    while True:\n        pass\n", encoding="utf-8")
    closed = tmp_path / "closed.py"  # it turns the limit of its own process off
    closed.write_text(CLOSED, encoding="utf-8")
    found, _ = submissions(tmp_path)
    limits = grade.FileLimits(seconds=0.5)
    by_name = {one.submission.name: one for one in grade.grade(found, NAMES, limits, 2)}
    assert "did not finish within 0.5 seconds" in by_name["loop"].results["visible"].sentence
    assert by_name["loop"].results["Head"].outcome is Outcome.MISSING
    assert by_name["loop"].problem is None
    assert "did not finish" in by_name["closed"].problem


@pytest.mark.release
def test_ctrl_c_says_how_many_were_judged_and_leaves_nothing(tmp_path):
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "a.py").write_text("", encoding="utf-8")
    begun = tmp_path / "begun"
    text = f"import os, time\nopen({str(begun)!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)"
    (folder / "b.py").write_text(text, encoding="utf-8")
    (folder / "c.py").write_text("", encoding="utf-8")
    command = [sys.executable, "-m", "nanogpt", "grade", str(folder), "--workers", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*command, "--csv", str(tmp_path / "t.csv")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    while not (begun.exists() and begun.read_text(encoding="utf-8")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "stopped: 1 of 3 files were graded, and nothing was written"
    assert not (tmp_path / "t.csv").exists()
    assert not alive(int(begun.read_text(encoding="utf-8")))
