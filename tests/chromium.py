"""A real browser for the tests: headless Chromium, driven through a pipe. No package, no port."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

NAMES = ("chromium", "google-chrome", "chromium-browser")
NAMED = os.environ.get("CHROMIUM")
BINARY = next(filter(None, map(shutil.which, [NAMED] if NAMED else NAMES)), "")
SWITCHES = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-dev-shm-usage "
    "--disable-background-networking --disable-component-update --disable-sync"
)
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36}
KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
MISSING = "no Chromium: apt-get install chromium, or set CHROMIUM to its path"
BROWSED = [pytest.mark.release, pytest.mark.skipif(not BINARY, reason=MISSING)]


def browsed(test):
    """A test in a browser: of the release run, and skipped without one."""
    for mark in BROWSED:
        test = mark(test)
    return test


class Chromium:
    """One page of headless Chromium. It keeps every request, console message and error.

    Use as a context manager. All but `press` and `write` raise TimeoutError after `patience`
    seconds.
    """

    def __init__(self, folder: Path, patience: float = 180):
        (read, self.commands) = os.pipe()
        (self.answers, write) = os.pipe()
        to, out = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write))
        self.patience = patience
        self.number = 0
        self.tail = b""
        self.events = []
        self.session = None
        # The browser reads commands from its descriptor 3 and answers on 4.
        shell = f'exec "$0" "$@" 3<&{to} 4>&{out}'
        switches = [*SWITCHES.split(), f"--user-data-dir={folder}", "--remote-debugging-pipe"]
        command = ["bash", "-c", shell, BINARY, *switches, "about:blank"]
        nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self.process = subprocess.Popen(command, pass_fds=(to, out), **nowhere)
        for end in (read, write, to, out):
            os.close(end)

    def __enter__(self) -> Chromium:
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attach = self.send("Target.attachToTarget", targetId=page, flatten=True)
        self.session = attach["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)
        os.close(self.commands)
        os.close(self.answers)

    def send(self, method: str, **parameters) -> dict:
        """The browser's answer to one command of its DevTools protocol."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        answer = self._next(lambda message: message.get("id") == self.number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self, wanted) -> dict:
        """The next message that is wanted; the others are kept as events."""
        end = time.monotonic() + self.patience
        while True:
            *whole, self.tail = self.tail.split(b"\0")
            for i, text in enumerate(whole):
                message = json.loads(text)
                if wanted(message):
                    self.tail = b"\0".join([*whole[i + 1 :], self.tail])
                    return message
                self.events.append(message)
            if not select.select([self.answers], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"{BINARY} did not answer in {self.patience} s")
            self.tail += os.read(self.answers, 1 << 20)

    def show(self, width: int, scheme: str = "light") -> None:
        """The width of the window in pixels, and whether the reader prefers light or dark."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def open(self, path: Path) -> None:
        """Load a page from the disk and wait until it has loaded."""
        self.send("Page.navigate", url=f"file://{path}")
        self.loaded()

    def loaded(self) -> None:
        """Wait until the page that is on its way has loaded."""
        self._next(lambda message: message.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str):
        """The value of a JavaScript expression, promises awaited."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.send("Runtime.evaluate", **asked)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        look = f"const look = () => (({condition}) ? done() : setTimeout(look, 20));"
        self.evaluate(f"new Promise((done) => {{ {look} look(); }})")

    def text(self, selector: str) -> str:
        """The text of the first element of a selector."""
        return self.evaluate(f"document.querySelector({selector!r}).textContent")

    def press(self, key: str, on: str | None = None) -> None:
        """Press and release one key of KEYS, where the focus is or `on` a selector's element."""
        if on:
            self.evaluate(f"document.querySelector({on!r}).focus()")
        about = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = "\r" if key == "Enter" else ""
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    def middle(self, element: str) -> dict[str, float]:
        """Where on the screen, after scrolling there, the middle of an expression's element is."""
        self.evaluate(f"{element}.scrollIntoView({{ block: 'center', behavior: 'instant' }})")
        middle = "{ x: box.x + box.width / 2, y: box.y + box.height / 2 }"
        return self.evaluate(f"((box) => ({middle}))({element}.getBoundingClientRect())")

    def point(self, element: str, *then: str) -> None:
        """Move the mouse to the middle of a JavaScript expression's element, `then` press it."""
        at = self.middle(element)
        for kind in ("mouseMoved", *then):
            button = "none" if kind == "mouseMoved" else "left"
            self.send("Input.dispatchMouseEvent", type=kind, button=button, clickCount=1, **at)

    def pointer(self, x: float, y: float, kind: str = "mouseMoved", held: bool = False) -> None:
        """One event of the mouse at a point of the window; `held` is its button, while it moves."""
        about = {"x": x, "y": y, "type": kind}
        if held or kind != "mouseMoved":
            about |= {"button": "left", "clickCount": int(kind != "mouseMoved")}
        self.send("Input.dispatchMouseEvent", **about)

    def click(self, element: str) -> None:
        """Click in the middle of a JavaScript expression's element."""
        self.point(element, "mousePressed", "mouseReleased")

    def tap(self, element: str) -> None:
        """Touch an element as a finger does, on a window that is shown as a phone's."""
        at = self.middle(element)
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[at])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def write(self, text: str) -> None:
        """Type a text where the focus is."""
        self.send("Input.insertText", text=text)

    def faults(self) -> list[str]:
        """What went wrong so far: addresses asked for elsewhere, complaints in the console."""
        found = []
        for event in self.events:
            method = event.get("method")
            about = event.get("params", {})
            if method == "Network.requestWillBeSent":
                url = about["request"]["url"]
                found += [] if url.startswith(("file:", "data:")) else [url]
            elif method == "Runtime.exceptionThrown":
                found.append(about["exceptionDetails"]["text"])
            elif method == "Runtime.consoleAPICalled":
                found.append(str(about["args"]))
            elif method == "Log.entryAdded":
                found.append(about["entry"]["text"])
        return found
