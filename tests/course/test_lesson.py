"""The reader's own code: kept when it is right, judged again when it is used, never lost."""

import copy
import linecache
import subprocess
import sys

import pytest
import torch
from conftest import seeded, tiny_model, tokens
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient
from notebook_fixtures import NOTEBOOKS, book
from server_fixtures import until

from nanogpt import DynamicCache, StaticCache, complete
from nanogpt.comparison import forced_logits
from nanogpt.course import check
from nanogpt.course import lesson as mine
from nanogpt.course.blanks import BLANKS
from nanogpt.course.editing import execute
from nanogpt.course.finding import objection
from nanogpt.course.lesson import FILLED_IN
from nanogpt.course.solutions import lesson_names
from nanogpt.files import ROOT
from nanogpt.sampling import draw_noise, sample
from nanogpt.site.nbfile import exercise, solution, tagged

REAL_CORPUS = True

RIGHT = solution("visible")
WRONG = RIGHT.replace("<=", "<")


@pytest.fixture(autouse=True)
def lesson(tmp_path, monkeypatch):
    """A reader's folder, and nobody's code in it yet."""
    monkeypatch.setenv("NANOGPT_MINE", str(tmp_path))
    monkeypatch.delenv("NANOGPT_HEADLESS", raising=False)
    monkeypatch.setattr(mine, "_runs", True)
    return tmp_path / "lesson.py"


def answer(text: str, name: str = "visible", **more):
    """What a cell of this text defines, checked as in its notebook."""
    scope = lesson_names() | more
    execute(text, f"<cell {len(linecache.cache)}>", scope)
    return check(scope[name])


def test_a_right_answer_is_kept_in_a_module_and_used_elsewhere(lesson, capsys):
    above = '"""A cell."""\nimport math\n\n\n@cache\ndef help():\n    return math.pi'
    uses = RIGHT.replace("return", "assert help() > 3\n    return")
    own = answer(f"from functools import cache\n{above}\n\n\n{uses}\n\nprint(help())")
    assert "your visible runs; it is kept in" in capsys.readouterr().out
    text = lesson.read_text(encoding="utf-8")
    scope = {}
    assert uses in text
    assert "print(help())" not in text
    scope["__file__"] = str(lesson)
    exec(compile(text, "lesson.py", "exec"), scope)
    assert {"Head", "KVCache", "sample", "math", "help"} <= set(scope)
    assert mine.mine("visible").__code__.co_code == own.__code__.co_code
    assert capsys.readouterr().out == f"your visible from {lesson}\n"


def test_a_better_answer_replaces_one_that_is_put_aside(lesson):
    one_step = solution("one_step")
    answer(RIGHT)
    answer(one_step, "one_step")
    lesson.write_text(f"{lesson.read_text(encoding='utf-8')}MORE = 1", encoding="utf-8")
    texts = [RIGHT.replace("return ", f"x{i} = ") + f"\n    return x{i}" for i in range(2)]
    for text in (*texts, texts[1]):
        answer(text)
    kept = lesson.read_text(encoding="utf-8")
    assert kept.count("def visible") == kept.count("def one_step") == 1
    assert kept.index(one_step) < kept.index(texts[1])
    assert kept.endswith("    main()\nMORE = 1\n")
    earlier = (lesson.parent / "earlier.py").read_text(encoding="utf-8")
    assert earlier.index(RIGHT) < earlier.index(texts[0])
    assert earlier.count("def ") == 2


@pytest.mark.release
def test_two_notebooks_that_keep_in_the_same_instant_lose_nothing(lesson, monkeypatch):
    """While this one is about to write, another process does the same: it waits."""
    other = """if True:
        import sys, time, pathlib
        from nanogpt.course import lesson as mine
        from nanogpt.site import nbfile
        sleep = time.sleep
        time.sleep = lambda seconds: (pathlib.Path(sys.argv[1]).touch(), sleep(seconds))
        print(mine.keep("one_step", nbfile.solution("one_step")))"""
    waits = lesson.with_name("waits")
    others = []
    write_whole = mine.write_whole

    def write(path, data):
        others.append(subprocess.Popen([sys.executable, "-c", other, waits], cwd=ROOT))
        until(lambda: waits.exists() or others[0].poll() is not None, 300)
        write_whole(path, data)

    monkeypatch.setattr(mine, "write_whole", write)
    answer(RIGHT)
    assert [x.wait() for x in others] == [0]
    kept = lesson.read_text(encoding="utf-8")
    assert kept.count("def visible") == kept.count("def one_step") == 1


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (None, "the solution's visible runs"),
        (RIGHT, "your visible from"),
        (f"\ufeff{RIGHT}", "your visible from"),
        (RIGHT.replace("return", "exit(0)"), "raised SystemExit: 0"),
        (WRONG, "lesson.py does not pass its check: a query"),
        (f"{RIGHT}\n1 +", "stops at line 4 (SyntaxError"),
        (f"import gone\n{RIGHT}", "stops at line 1 (ModuleNotFoundError"),
        (RIGHT.replace("k_pos[None", "gone[None"), "NameError"),
        (f"# caf\udce9\n{RIGHT}", "is not UTF-8 in line 1: save the file as UTF-8"),
    ],
)
def test_a_wrong_answer_goes_on_with_what_is_right(kept, said, lesson, capsys):
    if kept:
        kept = kept.encode(errors="surrogateescape")
        lesson.write_bytes(kept)
    for text in (WRONG, 'def visible(q_pos, k_pos):\n    """To do."""'):
        found = answer(text)
        printed = capsys.readouterr().out
        assert printed.startswith(("Not yet: ", "You solved visible before. "))
        assert said in printed
        assert ("From here on the solution's" in printed) is (said != "your visible from")
        assert objection(BLANKS["visible"], found) is None
    now = lesson.read_bytes() if lesson.exists() else None
    assert now == kept, "nothing of the reader's is changed"


def test_an_answer_that_cannot_be_kept_still_runs_in_its_notebook(lesson, capsys):
    text = "def visible(q_pos, k_pos):\n    return helper(q_pos[:, None], k_pos[None, :])"
    assert answer(text, helper=lambda a, b: (b <= a) & (b >= 0)).__name__ == "visible"
    assert not lesson.exists()
    said = capsys.readouterr().out
    assert "not kept, because it fails with only the imports, defs" in said
    assert "your code raised NameError" in said
    lesson.parent.joinpath("earlier.py").mkdir()
    for other in (RIGHT, RIGHT.replace("return ", "return  ")):
        answer(other)
    assert RIGHT in lesson.read_text(encoding="utf-8")
    assert "your visible runs, but is not kept: " in capsys.readouterr().out


def test_an_answer_is_not_kept_in_a_lesson_that_stops_which_is_said(lesson, capsys):
    lesson.write_text("1 +\n", encoding="utf-8")
    answer(RIGHT)
    assert f"is not kept, because {lesson} stops: fix or move it" in capsys.readouterr().out
    assert lesson.read_text(encoding="utf-8") == "1 +\n"


def test_a_lesson_that_never_ends_is_executed_once(lesson, capsys, monkeypatch):
    """For all checks of a kernel, which otherwise wait for its time limit again and again."""
    runs = lesson.with_name("runs")
    monkeypatch.setattr(mine, "LESSON_SECONDS", 0.2)
    loop = f"open({str(runs)!r}, 'a').write('x')\nwhile True:\n    pass\n"
    lesson.write_text(loop, encoding="utf-8")
    for text in (RIGHT, WRONG):
        answer(text)
    assert "is not kept, because" in capsys.readouterr().out
    assert runs.read_text(encoding="utf-8") == "x"


def test_a_lesson_that_stops_in_a_section_is_mended_by_the_answer_to_its_blank(lesson, capsys):
    answer(RIGHT)
    text = lesson.read_text(encoding="utf-8")
    lesson.write_text(text.replace("return (k_pos", "return ((k_pos"), encoding="utf-8")
    answer(RIGHT)
    assert lesson.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("use", ["auto", "true", "false"])
def test_a_headless_run_takes_the_solutions_unless_it_is_told(use, lesson, monkeypatch, capsys):
    own = f"{RIGHT}\n"
    lesson.write_text(own, encoding="utf-8")
    monkeypatch.setenv("NANOGPT_HEADLESS", "1")
    mine.choose(use)
    answer(f"{FILLED_IN}\n{RIGHT}")
    mine.mine("visible")
    printed = capsys.readouterr().out
    assert printed.count("your visible from") == 2 * (use == "true")
    assert printed.count("the solution's visible") == 2 * (use != "true")
    if use != "true":
        answer(RIGHT.replace("return ", "return  "))
    assert lesson.read_text(encoding="utf-8") == own


def test_names_and_choices_that_do_not_exist_are_named():
    with pytest.raises(mine.LessonError, match="is called gone: there is attention_weights"):
        mine.mine("gone")
    with pytest.raises(ValueError, match="mine='maybe': choose auto"):
        mine.choose("maybe")


@pytest.mark.parametrize("seed", range(4))
def test_the_solutions_write_what_the_package_writes(seed):
    """Short forms: the solutions check no arguments, and give the same tokens.

    The package's static cache returns no slots behind the newest token, so its sums are shorter.
    """
    scope = lesson_names()
    plain = tiny_model()
    own = tiny_model(head=scope["Head"])
    prompt = tokens(1, 4, seed=seed)
    noise = draw_noise(9, 1, 13, seeded(seed))
    full = complete(plain, prompt, 9, noise=noise)
    for ours, theirs in (("KVCache", DynamicCache), ("StaticKVCache", StaticCache)):
        loop = scope["generate_with_cache"](own, prompt, noise, scope[ours])
        assert torch.equal(torch.cat([prompt, *loop], dim=1), full)
        logits = [forced_logits(own, full, 4, scope[ours]), forced_logits(plain, full, 4, theirs)]
        torch.testing.assert_close(*logits)
        assert theirs is StaticCache or torch.equal(*logits)
        assert torch.equal(scope["sample"](logits[0][0], noise[0]), sample(logits[1][0], noise[0]))


# ------------------------------------------------------------------ a reader's walk, in kernels


PICTURES = ("# @title A picture", "# @title A figure")


def stepped(number: int, fill) -> dict[str, str]:
    """What the cells of a notebook print when a reader fills in the blanks that `fill` takes."""
    nb = copy.deepcopy(book(NOTEBOOKS[number]))
    parameters = next(cell for cell in nb.cells if tagged(cell, "parameters"))
    parameters.source += '\nprofile, steps = "smoke", 4'
    # A picture takes a second, and test_series.py draws them all. 01's names the final loss.
    drawn = [cell for cell in nb.cells if cell.source.startswith(PICTURES) and cell.id != "curve"]
    nb.cells = [cell for cell in nb.cells if cell not in drawn]
    blank = [i for i, cell in enumerate(nb.cells) if tagged(cell, "blank")]
    for n, i in enumerate(blank):
        if fill(n):
            nb.cells[i].source = solution(exercise(nb.cells[i])).replace(
                "\n    ", "\n    # as I see it\n    ", 1
            )
    where = {"metadata": {"path": str(ROOT / "notebooks")}}
    # Asked to end, a kernel would take another 3 seconds.
    NotebookClient(nb, resources=where, shutdown_kernel="immediate").execute()
    code = (cell for cell in nb.cells if cell.cell_type == "code")
    return {x.id: "".join(o.get("text", "") for o in x.outputs) for x in code}


@pytest.mark.release
@pytest.mark.parametrize("every", [1, 2], ids=["all", "every second"])
def test_a_reader_walks_through_01_and_02(every, lesson, tmp_path, monkeypatch):
    monkeypatch.setenv("NANOGPT_OUT", str(tmp_path / "out"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    kept = []
    for number in (1, 2) if every == 1 else (2,):
        printed = stepped(number, lambda n: n % every == 0)
        names = [name for name, one in BLANKS.items() if int(one.notebook) == number]
        for n, name in enumerate(names):
            (judged,) = (text for text in printed.values() if f" {name} runs" in text)
            right = n % every == 0
            assert judged.startswith("Right: " if right else "Not yet: ")
            assert (f"your {name} runs; it is kept in" in judged) is right
            kept += [name] * right
    assert mine.read_lesson().check().yours == kept
    assert ("your " in printed["attend"]) is ("attention_weights" in kept)
    assert printed["run-both"].count("True") == 2
    assert printed["compare"].count("✓ all 100 tokens equal") == 2


# ------------------------------------------------------------------ what a cell may hold


def test_a_constant_beside_the_def_is_kept_and_one_that_nothing_uses_is_not(lesson):
    text = "LOWEST = 0\nUNUSED = print('no')\n" + RIGHT.replace(">= 0", ">= LOWEST")
    answer(text)
    kept = lesson.read_text(encoding="utf-8")
    assert "LOWEST = 0\n" in kept
    assert "UNUSED" not in kept
    assert mine.read_lesson().check().yours == ["visible"]


def test_a_cell_with_a_magic_is_found_in_the_history(lesson, monkeypatch):
    """In a shell as a kernel has it: what it runs is not what was typed."""
    monkeypatch.setenv("IPYTHONDIR", str(lesson.parent))
    shell = InteractiveShell.instance()
    try:
        for cell in ("from nanogpt.course import check", f"%%time\n{RIGHT}"):
            assert shell.run_cell(cell, store_history=True).success
        assert shell.run_cell("visible = check(visible)", store_history=True).success
    finally:
        shell.history_manager.end_session()
        InteractiveShell.clear_instance()
    assert RIGHT in lesson.read_text(encoding="utf-8")
    assert "%%time" not in lesson.read_text(encoding="utf-8")


def test_a_name_that_is_gone_from_the_lesson_is_said(lesson, capsys):
    answer(RIGHT)
    lesson.write_text(lesson.read_text(encoding="utf-8").replace(RIGHT, ""), encoding="utf-8")
    mine.mine("visible")
    assert "Your visible is gone from" in capsys.readouterr().out


def test_a_lesson_is_judged_with_gradients_wherever_it_is_asked_for(lesson):
    lesson.write_text(solution("Head"), encoding="utf-8")
    for state in (torch.no_grad, torch.inference_mode):
        with state():
            assert mine.Lesson(lesson.read_text(encoding="utf-8"), lesson).check().broken == {}


def test_the_lecture_s_own_buffer_loads_into_a_model_and_out_of_it():
    class Triangle(lesson_names()["Head"]):
        def __init__(self, config):
            super().__init__(config)
            self.register_buffer("tril", torch.ones(config.block_size, config.block_size).tril())

    plain = tiny_model()
    own = tiny_model(head=Triangle)
    own.load_state_dict(plain.state_dict())
    plain.load_state_dict(own.state_dict())
    assert all(module.tril.sum() > 0 for module in own.modules() if isinstance(module, Triangle))


# ------------------------------------------------------------------ checked when asked for


def test_a_name_is_checked_once_and_after_what_it_uses(lesson, monkeypatch):
    checked = []
    monkeypatch.setattr(
        mine, "objection", lambda one, answer: checked.append(answer.__name__) and None
    )
    names = ("visible", "attention_weights", "Head", "fold", "sample")
    text = "\n\n\n".join(map(solution, names))
    found = mine.Lesson(text).check(["Head"])
    assert checked == ["attention_weights", "visible", "Head"] or checked == [
        "visible",
        "attention_weights",
        "Head",
    ]
    found.check(["Head", "sample"])
    assert checked[3:] == ["sample"]
    assert found.yours == ["attention_weights", "visible", "Head", "sample"]


def test_users_of_a_wrong_answer_are_checked_with_the_solution_in_its_place(lesson):
    found = mine.Lesson(f"{WRONG}\n\n\n{solution('Head')}", lesson).check(["Head"])
    assert found.yours == ["Head"]
    assert list(found.broken) == ["visible"]


def test_a_class_that_inherits_from_a_wrong_answer_is_checked_on_the_solution(lesson):
    wrong = solution("Head").replace("visible(pos, k_pos)", "visible(pos, k_pos) > 1")
    between = "class Middle(Head):\n    pass"
    masked = solution("MaskedHead").replace("(Head)", "(Middle)")
    found = mine.Lesson(f"{wrong}\n\n\n{between}\n\n\n{masked}", lesson).check(["MaskedHead"])
    assert found.yours == ["MaskedHead"]
    assert list(found.broken) == ["Head"]
    assert found.scope["MaskedHead"].__mro__[2] is BLANKS["Head"].solution


def test_a_lesson_of_an_earlier_version_with_an_import_for_each_name_still_runs(lesson):
    imports = "".join(
        f"from nanogpt.series.solutions import {name}  # until you write it\n"
        for name in ("attention_weights", "visible", "KVCache", "Head")
    )
    lesson.write_text(f"{imports}\n\n# %% What you add below this line stays\n", encoding="utf-8")
    answer(RIGHT)
    assert mine.read_lesson().check().yours == ["visible"]
    assert mine.read_lesson().broken == {}
