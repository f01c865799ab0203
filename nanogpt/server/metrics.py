"""What a server counts, as the text that Prometheus reads."""

from __future__ import annotations

from collections import Counter

from .engine_thread import Load

OUTCOMES = {  # how a request can end
    "completed": "answered whole",
    "aborted": "the client went away",
    "timeout": "it took longer than its limit",
    "refused": "too many at once, or the server was ending",
    "invalid": "the request was wrong",
    "failed": "the engine failed",
}


class Metrics:
    """Counters since the start. Used in one thread."""

    def __init__(self):
        self.requests = Counter(dict.fromkeys(OUTCOMES, 0))
        self.prompt_tokens = self.tokens = 0
        self.ttft_sum, self.ttft_count = 0.0, 0

    def first_token(self, seconds: float) -> None:
        """One more request has its first token, so long after its body had arrived."""
        self.ttft_sum += seconds
        self.ttft_count += 1

    def text(self, load: Load) -> str:
        """All numbers, in Prometheus' text format, version 0.0.4."""
        ends = {f'outcome="{name}"': self.requests[name] for name in OUTCOMES}
        parts = [
            _lines("requests_total", "counter", "requests that ended, by how", ends),
            _lines("prompt_tokens_total", "counter", "tokens of prompts taken", self.prompt_tokens),
            _lines("generated_tokens_total", "counter", "tokens drawn", self.tokens),
            _lines("requests_running", "gauge", "requests that hold blocks", load.running),
            _lines("requests_waiting", "gauge", "requests that wait for blocks", load.waiting),
            _lines("blocks_used", "gauge", "blocks that requests hold", load.used),
            _lines("blocks_free", "gauge", "blocks that can be given", load.free),
            "# HELP nanogpt_ttft_seconds from a request's body to its first token",
            "# TYPE nanogpt_ttft_seconds summary",
            f"nanogpt_ttft_seconds_sum {self.ttft_sum:.6f}",
            f"nanogpt_ttft_seconds_count {self.ttft_count}",
        ]
        return "\n".join(parts) + "\n"


def _lines(name: str, kind: str, about: str, values: int | dict[str, int]) -> str:
    values = values if isinstance(values, dict) else {"": values}
    name = f"nanogpt_{name}"
    rows = [f"{name}{{{label}}} {n}" if label else f"{name} {n}" for label, n in values.items()]
    return "\n".join([f"# HELP {name} {about}", f"# TYPE {name} {kind}", *rows])
