"""A learner's walk through a notebook, in JupyterLab, in a browser."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request

import pytest
from browsers import BROWSED, WIDE
from notebook_fixtures import NOTEBOOKS, book
from server_fixtures import until

from nanogpt.course.blanks import BLANKS
from nanogpt.files import ROOT
from nanogpt.site.nbfile import exercise, solution, tagged

pytestmark = BROWSED
TOKEN = "walk"
LAB = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--allow-root"]
LAB += [f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True"]
LAB += ["--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
PATIENCE = 600  # seconds, for a cell on a machine that has more to do
OPENED = "[...window.jupyterapp.shell.widgets('main')][0]?.content?.widgets?.length > 3"
# The cells of the open notebook, its kernel, and how one cell is run.
TOOLS = """
window.panel = () => [...window.jupyterapp.shell.widgets("main")][0];
window.kernel = () => panel().sessionContext.session.kernel;
window.at = (id) => panel().content.widgets.findIndex((cell) => cell.model.id === id);
window.cell = (id) => panel().content.widgets[at(id)].model;
window.write = (id, text) => cell(id).sharedModel.setSource(text);
window.run = (id) => {
  panel().content.activeCellIndex = at(id);
  panel().content.deselectAll();
  return window.jupyterapp.commands.execute("notebook:run-cell");
};
window.printed = (id) => cell(id).outputs.toJSON().map((output) =>
  [output.text ?? "", ...(output.traceback ?? [])].flat().join("\\n")).join("");
"""


class Lab:
    """An open notebook in JupyterLab."""

    def __init__(self, browser) -> None:
        self.browser = browser  # a page of Playwright's

    def write(self, id: str, text: str) -> None:
        """Replace the text of a cell."""
        self.browser.evaluate(f"write({json.dumps(id)}, {json.dumps(text)})")

    def run(self, *ids: str) -> str:
        """Run cells, and return what the last one prints, errors included."""
        for id in ids:
            self.browser.evaluate(f"run({id!r})")
        return self.printed(ids[-1])

    def printed(self, id: str) -> str:
        return self.browser.evaluate(f"printed({id!r})")

    def restart(self) -> None:
        """Restart the kernel, as the menu does once it has asked."""
        self.browser.evaluate("panel().sessionContext.restartKernel()")
        self.until("kernel()?.connectionStatus === 'connected' && kernel().status === 'idle'")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        until(lambda: self.browser.evaluate(f"Boolean({condition})"), PATIENCE)


@pytest.fixture
def lab(tmp_path, monkeypatch, chromium):
    """A function that opens a notebook of the series, copied into an empty folder."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("NANOGPT_MINE", str(tmp_path / "mine"))
    monkeypatch.setenv("NANOGPT_OUT", str(tmp_path / "out"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("NANOGPT_HEADLESS", raising=False)
    with contextlib.ExitStack() as stack:

        def start(number: int) -> Lab:
            shutil.copy(NOTEBOOKS[number], folder)
            with socket.socket() as one:
                one.bind(("127.0.0.1", 0))
                port = one.getsockname()[1]
            address = f"http://127.0.0.1:{port}"
            log = stack.enter_context(open(tmp_path / "lab.log", "w", encoding="utf-8"))
            command = [*LAB, f"--port={port}", f"--ServerApp.root_dir={folder}"]
            server = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(server.wait)
            stack.callback(server.terminate)
            until(lambda: answers(f"{address}/api?token={TOKEN}") or server.poll(), PATIENCE)
            context = stack.enter_context(chromium.new_context(viewport=WIDE))
            browser = context.new_page()
            name = NOTEBOOKS[number].name
            browser.goto(f"{address}/lab/tree/{name}?token={TOKEN}&reset")
            page = Lab(browser)
            # The page may load again on its way, and forgets then what it was asked.
            page.until("window.jupyterapp?.started")
            page.until(f"location.search === '' && {OPENED}")
            browser.evaluate(f"() => {{ {TOOLS} }}")
            page.until("panel().sessionContext.session?.kernel?.status === 'idle'")
            browser.locator(".jp-Notebook .jp-Cell").first.click()
            page.until("window.jupyterapp.shell.currentWidget === panel()")
            return page

        yield start


def answers(address: str) -> bool:
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(address, timeout=5).status == 200
    return False


def code_cells(number: int) -> list:
    return [cell for cell in book(NOTEBOOKS[number]).cells if cell.cell_type == "code"]


def own(name: str) -> str:
    """An answer of a learner's: right, and not the very text of the solution."""
    return solution(name).replace("\n    ", "\n    # as I see it\n    ", 1)


def test_a_learner_s_walk_through_the_cache(lab):
    """Own answers, a wrong one with its hints, a restart in the middle, a cell run too early."""
    page = lab(2)
    cells = code_cells(2)
    ids = [cell.id for cell in cells]
    parameters = next(cell for cell in cells if tagged(cell, "parameters"))
    page.write(parameters.id, f'{parameters.source}\nprofile = "smoke"')
    blanks = {exercise(cell): cell.id for cell in cells if tagged(cell, "blank")}
    checks = {name: ids[ids.index(id) + 1] for name, id in blanks.items()}
    # To the first blank, which stays empty; then a wrong answer, hints, and a right one.
    said = page.run(*ids[: ids.index(checks["visible"]) + 1])
    assert "visible is still empty" in said
    assert "From here on the solution's visible runs." in said
    page.write(blanks["visible"], own("visible").replace("<=", "<"))
    said = page.run(blanks["visible"], checks["visible"])
    assert "Not yet: a query does not see the key of its own position" in said
    page.write(checks["visible"], "hint()\nhint()\nhint()")
    said = page.run(checks["visible"])
    assert [line for line in BLANKS["visible"].hints if line not in said] == []
    page.write(checks["visible"], "visible = check(visible)")
    for name, id in blanks.items():
        page.write(id, own(name))
    # All own answers.
    for id in ids[ids.index(blanks["visible"]) :]:
        said = page.run(id)
        assert "Error" not in said, (id, said)
        if id in checks.values():
            assert "Right: " in said
            assert "it is kept in" in said
    assert page.printed("run-both").count("True") == 2
    # A restart: a cell that is run too early says which cell makes what it lacks.
    page.restart()
    page.run("setup")
    said = page.run("run-both")
    assert "NameError" in said
    assert "is defined in the" in said
    # What was solved is known, also where the blank is empty again.
    page.write(blanks["visible"], 'def visible(q_pos, k_pos):\n    """To do."""')
    said = page.run(*ids[: ids.index(checks["visible"]) + 1])
    assert "You solved visible before" in said


def test_a_training_that_is_interrupted_says_how_far_it_got_on_the_whole_page(lab):
    page = lab(1)
    cells = code_cells(1)
    ids = [cell.id for cell in cells]
    parameters = next(cell for cell in cells if tagged(cell, "parameters"))
    page.write(parameters.id, f'{parameters.source}\nprofile, steps = "smoke", 100_000')
    page.run(*ids[: ids.index("train")])
    page.browser.evaluate("void run('train')")
    page.until("printed('train').includes('step')")
    page.browser.evaluate("kernel().interrupt()")
    page.until("kernel().status === 'idle' && printed('train').includes('of 100,000')")
    assert "The rest of this notebook uses these" in page.printed("train")
    for id in ids[ids.index("train") + 1 :]:
        said = page.run(id)
        assert "Error" not in said, (id, said)
