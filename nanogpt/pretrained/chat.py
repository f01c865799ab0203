"""Chats as text: messages are checked, and a model's template is rendered in another process."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..console import first_line
from .needs import needed, printable

Message = dict[str, Any]
LONGEST_TEMPLATE = 2**20  # characters
PROGRAM = Path(__file__).with_name("chat_process.py")
# The names under which clients send a model's reasoning; templates read the first, and gpt-oss's
# the second. Source: apply_chat_template of transformers 5.24.
REASONING = ("reasoning_content", "thinking", "reasoning")
_RESERVED = ("messages", "add_generation_prompt")  # arguments, so no variables


def render(
    template: str,
    messages: Sequence[Message],
    answer: bool,
    specials: Mapping[str, str],
    variables: Mapping[str, object] | None = None,
) -> str:
    """Format messages with a model's template; `answer` appends the start of the reply.

    The text is that of transformers' apply_chat_template. A template is a program that came with
    the model: it runs in jinja2's sandbox (of 3.1.6, which closed its known holes), in a process
    with limits of time and memory. `variables` are more names for it, as `chat_template_kwargs` in
    requests; they hide `specials` of the same name. Raises ValueError, in one line, for whatever
    the template raises, and ModuleNotFoundError without jinja2.
    """
    check_messages(messages)
    with needed("a chat template"):
        import jinja2  # noqa: F401 - here it would be reported; in the process nobody would see it
    if len(template) > LONGEST_TEMPLATE:
        raise ValueError(f"the chat template has {len(template):,} characters: too long")
    more = dict(variables or {})
    for name in more:
        if name in _RESERVED or not isinstance(name, str):
            raise ValueError(f"variables={name!r:.60}: not a name that a chat template leaves free")
    names = {"tools": None, "documents": None, **specials, **more}
    names["messages"] = [as_templates_read(message) for message in messages]
    names["add_generation_prompt"] = answer
    try:
        request = json.dumps({"template": template, "variables": names})
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"messages and variables of a chat must be plain data ({first_line(error)})"
        ) from error
    reply = _renderer.ask(request)
    if "text" not in reply:
        raise ValueError(
            f"the model's chat template refuses these messages ({printable(reply['error'])}): "
            f"correct them, or encode plain text"
        )
    return reply["text"]


def check_messages(messages: Any) -> None:
    """Raise ValueError unless these are messages: dictionaries with a role and a content.

    A content is a text, a list of parts, or null; a message that only calls tools needs none. Any
    other field is the template's.
    """
    if isinstance(messages, (str, dict)) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(
            f"messages={messages!r:.60}: pass a list such as "
            f'[{{"role": "user", "content": "Hello"}}]'
        )
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"message {message!r:.60}: its role must be a string")
        content = message.get("content", ...)
        if content is ... and message.get("tool_calls"):
            continue
        if not isinstance(content, (str, list, type(None))):
            raise ValueError(
                f"message {message!r:.60}: its content must be a string, a list of parts or null"
            )


def as_templates_read(message: Message) -> Message:
    """A message without its empty fields, its reasoning under the names that templates read.

    Many templates would print "None" for a field that is there and null.
    """
    fields = {name: value for name, value in message.items() if value is not None}
    reasoning = next((fields[name] for name in REASONING if name in fields), None)
    if reasoning is None:
        return fields
    return {"thinking": reasoning, **fields, "reasoning_content": reasoning}


# ------------------------------------------------------------------ the process


class Renderer:
    """The process that renders, started when it is first needed and again whenever it has ended."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # of computing, for one chat
        self.lock = threading.Lock()  # one request at a time; a server asks from several threads
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, request: str) -> dict[str, str]:
        """The answer to a request: its text, or its error. Restarts after a template that failed.

        Whatever interrupts the exchange, such as Ctrl-C, ends the process: half an answer in the
        pipe would be taken for the next one.
        """
        with self.lock:
            process = self._running()
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(request.encode("ascii") + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
                if line.endswith(b"\n"):
                    answer: dict[str, str] = json.loads(line)
                    return answer
            except BrokenPipeError:
                pass  # it has ended, as below
            except BaseException:
                self.end()
                raise
            return {"error": self._reason(process)}

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.process.poll() is not None:
            self.end()  # it was ended between two chats, by somebody else
        if self.process is None:
            paths = json.dumps([str(path) for path in sys.path if path])
            self.process = subprocess.Popen(
                # -I, -S: neither the user's settings nor their start-up files, only these paths
                [sys.executable, "-I", "-S", str(PROGRAM), paths, str(self.seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self.process

    def _reason(self, process: subprocess.Popen[bytes]) -> str:
        """Why a process has ended without an answer."""
        code = process.wait()
        self.end()
        if code == -signal.SIGPROF:
            return f"it computes for more than {self.seconds:g} seconds"
        return f"its process ended with {code}"

    def end(self) -> None:
        """End the process, if there is one, and wait until it has."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()  # closes both pipes

    def forget(self) -> None:
        """In a fork, where the process belongs to the parent: start another if one is needed."""
        if self.process is not None:
            self.process.returncode = 0  # so that nobody here waits for it
        self.process = None
        self.lock = threading.Lock()


_renderer = Renderer(seconds=3.0)  # an ordinary chat takes a tenth of a millisecond
atexit.register(_renderer.end)
os.register_at_fork(after_in_child=lambda: _renderer.forget())
