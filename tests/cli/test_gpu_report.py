"""The GPU report with pretended steps, which need no GPU: limits, saved states, resuming."""

import fcntl
import json
import time

import pytest

from nanogpt.cli import COMMANDS, MODULES, bench, common, gpu_report, main, notebooks, train
from nanogpt.cli.gpu_report import REPORT_STEPS, Ended, ReportStep, outcome, run_report
from nanogpt.files import ROOT

LONG = 60  # seconds: longer than any test waits


def step(name, code="", seconds=LONG):
    """A step that appends its name to OUT/ran and runs some code."""
    first = f"import sys; print({name!r}, file=open(sys.argv[1] + '/ran', 'a')); "
    return ReportStep(name, ("-c", first + code, "OUT"), seconds, f"{name}.json")


def ended(out, one):
    found = outcome(out, one)
    return found and found.ended


def ran(out):
    path = out / "ran"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def test_each_step_is_saved_and_the_report_says_what_is_left(tmp_path, capsys):
    steps = [step("good"), step("bad", "print('the reason'); sys.exit(3)"), step("last")]
    assert not run_report(tmp_path, steps, 1000)
    assert ran(tmp_path) == ["good", "bad", "last"]
    assert [ended(tmp_path, one) for one in steps] == [Ended.PASSED, Ended.FAILED, Ended.PASSED]
    assert "the reason" in (tmp_path / "steps" / "bad.log").read_text(encoding="utf-8")
    state = json.loads((tmp_path / "steps" / "good.json").read_text(encoding="utf-8"))
    assert (state["name"], state["ended"], state["limit"]) == ("good", "passed", LONG)
    said = capsys.readouterr().out
    assert "left: bad; the same command goes on with them" in said
    assert "steps/bad.log" in said
    assert "good.json" in said


def test_a_second_call_runs_what_never_ran_and_then_what_failed(tmp_path):
    bad = step("bad", "sys.exit(1)")
    run_report(tmp_path, [step("good"), bad], 1000)
    (tmp_path / "ran").unlink()
    assert run_report(tmp_path, [step("good"), step("bad"), step("new")], 1000)
    assert ran(tmp_path) == ["new", "bad"]


def test_a_step_that_does_not_fit_leaves_its_time_to_a_shorter_one(tmp_path):
    steps = [step("long", seconds=2 * LONG), step("short", seconds=LONG)]
    assert not run_report(tmp_path, steps, 1.5 * LONG)
    assert ran(tmp_path) == ["short"]
    assert ended(tmp_path, steps[0]) is None
    assert run_report(tmp_path, steps, 3 * LONG)


# A parent that ends at SIGTERM, and a child that ignores it; both hold a lock.
STUBBORN = """
import fcntl, subprocess, sys, time
lock = open(sys.argv[1] + '/lock', 'w'); fcntl.flock(lock, fcntl.LOCK_EX)
child = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'
subprocess.Popen([sys.executable, '-c', child], pass_fds=[lock.fileno()])
if len(sys.argv) > 2: sys.exit(0)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("more", "how"), [((), Ended.OUT_OF_TIME), (("leave",), Ended.PASSED)], ids=["stuck", "left"]
)
def test_a_step_ends_with_all_processes_that_it_started(more, how, tmp_path):
    stubborn = ReportStep("stubborn", ("-c", STUBBORN, "OUT", *more), LONG if more else 2)
    run_report(tmp_path, [stubborn], 1000)
    assert ended(tmp_path, stubborn) is how
    with open(tmp_path / "lock", "w") as lock:
        for _ in range(400):  # a killed process may take a moment to end
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.05)
    pytest.fail("a child still holds its lock")


def test_a_stopped_report_ends_its_step_and_keeps_the_earlier_ones(tmp_path, monkeypatch):
    class Stopped(gpu_report.subprocess.Popen):
        def wait(self, timeout=None):
            if timeout == LONG - 1:
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(gpu_report.subprocess, "Popen", Stopped)
    steps = [step("good"), step("stopped", "import time; time.sleep(600)", LONG - 1)]
    with pytest.raises(KeyboardInterrupt):
        run_report(tmp_path, steps, 1000)
    assert [ended(tmp_path, one) for one in steps] == [Ended.PASSED, None]


def parsed(words):
    """The options of a command of ours, parsed."""
    name = max((name for name in COMMANDS if words[: len(name.split())] == name.split()), key=len)
    module = {"bench": bench, "notebooks": notebooks, "train": train}[
        MODULES.get(name.split()[0], name.split()[0])
    ]
    parser = common.Parser(name, "")
    module.CALLS[name][0](parser)
    return parser.parse_args(words[len(name.split()) :])


@pytest.mark.parametrize("one", REPORT_STEPS, ids=lambda one: one.name)
def test_every_step_is_a_command_that_exists(one):
    kind, *words = one.command[1:]
    if kind == "pytest":
        assert words == ["-m", "gpu"]
        return
    args = parsed(words)
    if hasattr(args, "notebooks"):
        (number,) = args.notebooks
        assert len(list((ROOT / "notebooks").glob(f"{number}_*.ipynb"))) == 1
        return
    assert args.device == "cuda"
    if hasattr(args, "json"):
        assert args.json == f"OUT/{one.output}"


def test_the_steps_have_names_of_their_own_and_the_tests_come_first():
    names = [one.name for one in REPORT_STEPS]
    assert len(names) == len(set(names))
    assert names[0] == "tests"
    assert all(one.seconds <= 12 * 60 for one in REPORT_STEPS), "else it would never run"


def test_without_a_gpu_the_command_says_so_in_a_line(capsys):
    assert main(["bench", "gpu"]) == 2
    assert "no CUDA device was found" in capsys.readouterr().err
