"""Many requests at once: one step reads tokens of all that run, and draws a token for each."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from itertools import chain, zip_longest

import torch
from torch import Tensor

from ..config.checks import check_int
from ..decoding.sampling import sample
from ..model.gpt import GPT
from .blocks import BlockPool
from .modules import ModuleBackend
from .request import Output, Request, Sequence
from .scheduler import Scheduler
from .step import Step
from .texts import Plan


class BatchEngine:
    """Serves requests with one model. Each gets the tokens that `generate` gives it alone.

    `backend` computes a step: ModuleBackend, or a faster one. Keys and values lie in `n_blocks`
    blocks of `block_len` positions (default: enough for `max_running` texts of block_size). A step
    reads at most `budget` tokens (None: whole prompts), so a small one cuts prompts in chunks. With
    `reuse` a prompt is read from where it stops being the beginning of an earlier text. Raises
    ValueError for a model that the backend does not compute, and for numbers below 1.
    """

    def __init__(
        self,
        model: GPT,
        *,
        backend=ModuleBackend,
        n_blocks: int | None = None,
        block_len: int = 16,
        budget: int | None = None,
        max_running: int = 64,
        reuse: bool = True,
        scheduler=Scheduler,
    ):
        check_int("block_len", block_len, 1)
        check_int("max_running", max_running, 1)
        if why := backend.supports(model):
            raise ValueError(why)
        if n_blocks is None:
            n_blocks = max_running * -(-model.config.block_size // block_len)
        self.config, self.device = model.config, model.lm_head.weight.device
        self.texts = scheduler(BlockPool(n_blocks, reuse), block_len, budget, max_running)
        self.backend = backend(model, n_blocks, block_len)
        self.alive: dict[Hashable, Sequence] = {}  # by the id of the request

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.alive)

    def add(self, request: Request) -> None:
        """Take a request. Raises ValueError when it cannot be served; nothing has changed then."""
        if not isinstance(request, Request):
            raise ValueError(f"{request!r} is not a Request: pass Request(prompt, max_new_tokens)")
        if request.id in self.alive:
            raise ValueError(f"request {request.id!r} is served already: give each its own id")
        request.check(self.config.vocab_size, self.config.positions)
        text = Sequence(request, request.draw(self.config.vocab_size))
        self.texts.add(text)
        self.alive[request.id] = text

    def abort(self, request: Request | Hashable) -> None:
        """Stop a request, given or named by its id, and free its blocks. Raises ValueError."""
        name = request.id if isinstance(request, Request) else request
        if name not in self.alive:
            raise ValueError(f"request {name!r} is not served: it has finished, or was aborted")
        self.texts.finish(self.alive.pop(name))

    def step(self) -> list[Output]:
        """Read one step, and return the tokens that it gave, in the order of the requests.

        A backend that draws takes several steps in one call where all texts decode: the tokens
        come step by step.
        """
        plan = self.texts.schedule()
        if not plan:
            return []
        if getattr(self.backend, "draws", False):
            drawn = self.backend.draw(plan, self._steps(plan))
        else:
            drawing = [text for text, n in plan if n == text.pending]
            tokens = iter(
                self._draw(drawing, self.backend.read(flat_step(plan, self.texts.block_len)))
            )
            drawn = [[next(tokens)] if n == text.pending else [] for text, n in plan]
        return self._append(plan, drawn)  # up to here a step that fails can be tried again

    def _steps(self, plan: Plan) -> list[int]:
        """How many tokens each text of the plan draws in one call; 0 inside a prompt."""
        ahead = self.texts.ahead(plan, self.backend.most_steps(len(plan)))
        if ahead == 1:
            return [int(n == text.pending) for text, n in plan]
        return [min(ahead, text.left) for text, _ in plan]

    def _draw(self, texts: list[Sequence], logits: Tensor) -> list[int]:
        """A token for each text, from its own noise.  (W, V) -> W"""
        alike = defaultdict(list)
        for row, text in enumerate(texts):
            alike[text.request.sampling].append(row)
        tokens = [0] * len(texts)
        for sampling, rows in alike.items():
            noise = None
            if not sampling.greedy:
                noise = torch.stack([texts[row].noise[texts[row].n_new] for row in rows])
                noise = noise.to(logits.device)
            own = logits if len(rows) == len(texts) else logits[rows]
            drawn = sample(own, noise, sampling)[:, 0].tolist()
            for row, token in zip(rows, drawn, strict=True):
                tokens[row] = token
        return tokens

    def _append(self, plan: Plan, drawn: list[list[int]]) -> list[Output]:
        """What each text of the plan has drawn joins it; who has all its tokens leaves."""
        read, columns = [], []  # of the outputs: a column for each text
        for (text, n), own in zip(plan, drawn, strict=True):
            text.tokens += own
            read.append((text, n + len(own) - 1 if own else n))  # all but the last were read, too
            request, index, last = text.request, text.n_new, text.request.max_new_tokens - 1
            columns.append([Output(request, t, i, i == last) for i, t in enumerate(own, index)])
            text.n_new += len(own)
        self.texts.advance(read)
        for own in columns:
            if own and own[-1].finished:
                self.texts.finish(self.alive.pop(own[-1].request.id))
        return [output for step in zip_longest(*columns) for output in step if output]


def flat_step(plan: Plan, block_len: int) -> Step:
    """The tokens that are to be read, one after another, and where their texts' blocks lie."""
    tokens = [t for text, n in plan for t in text.tokens[text.computed : text.computed + n]]
    facts = [x for text, n in plan for x in (n, text.computed, text.shared, text.pending)]
    counts, starts, shared, pending = _tensor(facts).view(-1, 4).unbind(1)  # (S,) each
    first = counts.cumsum(0) - counts  # where each text begins in the step
    text = torch.arange(len(plan)).repeat_interleave(counts)  # (N,)
    positions = torch.arange(len(tokens)) - (first - starts)[text]
    longest = max(len(text.blocks) for text, _ in plan)
    padded = [text.blocks + [-1] * (longest - len(text.blocks)) for text, _ in plan]
    tables = _tensor(list(chain.from_iterable(padded))).view(len(plan), longest)
    slots = tables[text, positions // block_len] * block_len + positions % block_len
    slots[positions < shared[text]] = -1  # held by a block that texts share
    wanted = (first + counts - 1)[counts == pending]
    return Step(_tensor(tokens), text, positions, slots, tables, wanted)


def _tensor(numbers: list[int]) -> Tensor:
    """The same as torch.tensor(numbers), several times faster."""
    return torch.frombuffer(array("q", numbers), dtype=torch.int64)


def serve(model: GPT, requests: Iterable[Request], **settings) -> Stream:
    """Tokens of all requests, as they come: an iterator of Output.

        for output in serve(model, requests):
            print(output.request.id, tokenizer.decode([output.token]))

    `settings` are those of BatchEngine. The requests are checked here, at the call, and taken in
    the order of their arrival, without waiting for its time. Raises ValueError.
    """
    engine = BatchEngine(model, **settings)
    for request in sorted(_checked(requests), key=lambda request: request.arrival):
        engine.add(request)
    return Stream(engine)


def _checked(requests: Iterable[Request]) -> list[Request]:
    requests = list(requests)
    for request in requests:
        if not isinstance(request, Request):
            raise ValueError(f"{request!r} is not a Request: pass Request(prompt, max_new_tokens)")
    return requests


class Stream(Iterator[Output]):
    """The tokens of an engine's requests. Steps are read when the next token is asked for."""

    def __init__(self, engine: BatchEngine):
        self.engine, self._ready = engine, []

    def __next__(self) -> Output:
        while not self._ready:
            if not self.engine.busy:
                raise StopIteration
            self._ready = self.engine.step()[::-1]
        return self._ready.pop()

    def abort(self, request: Request | Hashable) -> None:
        """Stop a request: no more of its tokens come. Raises ValueError if it is not served."""
        self.engine.abort(request)
        name = request.id if isinstance(request, Request) else request
        self._ready = [output for output in self._ready if output.request.id != name]
