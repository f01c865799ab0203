"""Continuous batching: a queue, the running sequences, and steps that sample a token for each."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from ..config import check_int, check_switch, check_type
from ..model import LanguageModel
from ..sampling import sample
from .backend import BackendType, LogitsBackend, SamplingBackend
from .memory import fitting_blocks
from .modules import ModuleBackend, flat_step
from .sequence import BlockManager, Logprob, Output, Request, Sequence

NO_LIMIT = 2**31  # tokens in a step
_MOST = 2**24  # limit for blocks, block_len and sequences: all are counted in Python


class Scheduler:
    """First come, first served; a step mixes decoding sequences with prompt chunks.

    A decoding sequence reads one token; a newly admitted sequence reads its prompt: all of it, or
    as much as the step's `budget` leaves. Running sequences, oldest first, come before waiting
    ones, so a new prompt never delays them. At most `max_running` hold blocks at a time.
    """

    def __init__(self, block_manager: BlockManager, budget: int, max_running: int):
        self.block_manager = block_manager
        self.budget = budget
        self.max_running = max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def schedule(self) -> list[Sequence]:
        """The sequences of the next step, each with its num_scheduled_tokens."""
        batch = []
        budget = self.budget
        # 1. Those that run come first, oldest first: each reads one token, or the next chunk of its
        #    prompt. The list is copied because the youngest loses its blocks if an older one needs
        #    them, and is then no longer running.
        for seq in list(self.running):
            n = min(seq.pending, budget)
            if n and seq.running and self._reserve(seq, n):
                batch.append(seq)
                budget -= n
        # 2. What is left of the budget goes to those that wait, in order of arrival.
        while budget and self.waiting and len(self.running) < self.max_running:
            seq = self.waiting[0]
            # If the first does not fit, none behind it is tried: short ones could overtake it
            # forever.
            if not self.block_manager.admit(seq):
                break
            # It begins to read its prompt in this step, after the prefix that it shares.
            seq.running = True
            self.running.append(self.waiting.popleft())
            n = min(seq.pending, budget)
            self._reserve(seq, n)
            batch.append(seq)
            budget -= n
        return batch

    def _reserve(self, seq: Sequence, n: int) -> bool:
        """Schedule n tokens, preempting the youngest if needed. False if `seq` is preempted itself.

        No tokens are lost: the youngest goes back to the front of the queue and is read again.
        """
        while not self.block_manager.extend(seq, seq.num_computed_tokens + n):
            # Out of blocks. The one that arrived last has read the least, on the whole, so reading
            # it again costs least; and the oldest always gets on, so that some request finishes.
            youngest = self.running.pop()
            self.block_manager.free(youngest)
            youngest.running = False
            self.waiting.appendleft(youngest)
            if youngest is seq:
                return False
        seq.num_scheduled_tokens = n
        return True

    def finish(self, seq: Sequence) -> None:
        """Remove a sequence, running or waiting, and free its blocks."""
        (self.running if seq.running else self.waiting).remove(seq)
        self.block_manager.free(seq)


class BatchEngine:
    """Serves requests with one model. Each gets the tokens that `generate` gives it alone.

    `backend` computes a step: ModuleBackend, or NativeBackend, which also samples. Keys and values
    are stored in `n_blocks` blocks of `block_len` positions (default: enough for `max_running`
    sequences of block_size, but at most half of the available memory). A step reads at most
    `budget` tokens (None: whole prompts), so a small budget splits prompts into chunks. With
    `reuse`, a prompt is read only from where it differs from earlier sequences (prefix caching). A
    model whose class replaces the package's code gets whole prompts, as from `generate`, whatever
    `budget` and `reuse` are. Raises ValueError for a model that the backend does not support, and
    for numbers below 1.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        backend: BackendType = ModuleBackend,
        n_blocks: int | None = None,
        block_len: int = 16,
        budget: int | None = None,
        max_running: int = 64,
        reuse: bool = True,
        scheduler: Callable[..., Scheduler] = Scheduler,
        block_manager: Callable[..., BlockManager] = BlockManager,
    ):
        # 1. Check the arguments, and decide how much memory the keys and values get.
        check_type("model", model, LanguageModel)
        parts = (backend, scheduler, block_manager)
        if not all(map(callable, parts)):
            raise ValueError(f"backend, scheduler, block_manager={parts}: each must be a class")
        check_int("block_len", block_len, 1, _MOST)
        check_int("max_running", max_running, 1, _MOST)
        if n_blocks is None:
            wanted = max_running * -(-model.config.block_size // block_len)
            n_blocks = fitting_blocks(model, block_len, min(wanted, _MOST))
        budget = NO_LIMIT if budget is None else budget
        check_int("n_blocks", n_blocks, 1, _MOST)
        check_int("budget", budget, 1)
        check_switch("reuse", reuse)
        # 2. Build the backend, which reserves all blocks once. If they are all taken, requests wait
        #    or are preempted, but no step needs more memory for keys and values.
        reason = backend.refuses_model(model)
        if reason:
            raise ValueError(reason)
        self.config = model.config
        self.backend: LogitsBackend | SamplingBackend = backend(model, n_blocks, block_len)
        # 3. Code that is not the package's may support a prompt only as a whole, from position 0.
        if self.backend.whole_prompts:
            budget = NO_LIMIT
            reuse = False
        self.block_manager = block_manager(n_blocks, block_len, reuse)
        self.scheduler = scheduler(self.block_manager, budget, max_running)
        self.alive: dict[Hashable, Sequence] = {}  # by the id of the request

    @property
    def positions(self) -> int:
        """Number of positions in all blocks, which limits the length of a text."""
        return self.block_manager.n_blocks * self.block_manager.block_len

    @property
    def busy(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self.alive)

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError if it cannot be served, TypeError for another type.

        After an error nothing has changed.
        """
        # 1. Refuse now what could never be served, before anything has changed.
        check_type("request", request, Request)
        if request.id in self.alive:
            raise ValueError(
                f"request {request.id!r} is already being served: give each request its own id"
            )
        request.check(self.config.vocab_size, self.config.max_positions)
        manager = self.block_manager
        n_prompt = len(request.prompt)
        n_new = request.max_new_tokens
        # The last token is returned and never read, so it needs no slot. A request that fits into
        # all blocks finishes, because in the worst case it runs alone.
        blocks = manager.blocks_for(n_prompt + n_new - 1)
        if blocks > manager.n_blocks:
            raise ValueError(
                f"request {request.id!r}: {n_prompt} + {n_new} tokens need {blocks} blocks of "
                f"{manager.block_len} positions, but there are {manager.n_blocks}: "
                f"ask for fewer tokens, or set n_blocks={blocks} (by default blocks take at most "
                f"half of the available memory)"
            )
        # 2. Queue it. It takes no blocks before the scheduler admits it.
        seq = Sequence(request, request.noise(self.config.vocab_size))
        self.scheduler.waiting.append(seq)
        self.alive[request.id] = seq

    def abort(self, name: Hashable) -> bool:
        """Stop the request with this id and free its blocks. False if it has already ended."""
        seq = self.alive.pop(name, None)
        if seq is None:
            return False
        self.scheduler.finish(seq)
        return True

    def step(self) -> list[Output]:
        """Run one step and return the sampled tokens, in the order of the requests.

        If all sequences decode, a backend that samples runs several steps in one call; the tokens
        are then ordered step by step.
        """
        # 1. Who reads how many tokens in this step? Blocks are taken for all of them.
        batch = self.scheduler.schedule()
        if not batch:
            return []
        # 2. Read these tokens, and sample one for each sequence that has read all of its own. A
        #    backend that samples does both, for several steps if it can; otherwise we sample here.
        if isinstance(self.backend, SamplingBackend):
            most = self.backend.most_steps(len(batch))
            drawn = self.backend.draw(batch, self._steps(batch, most))
            logits = self.backend.logits
        else:
            logits = self.backend.read(flat_step(batch, self.block_manager.block_len))
            drawn = self._draw_each(batch, logits)
        # 3. Keep the log-probabilities that were asked for: the next step may overwrite the logits.
        if any(seq.request.logprobs is not None for seq in batch):
            self._note(batch, drawn, logits)
        # 4. Append the tokens. Before this line no count has changed: a failed step can be retried.
        return self._append(batch, drawn)

    def _steps(self, batch: list[Sequence], most: int) -> list[int]:
        """How many tokens each sequence samples in one call; 0 inside a prompt. Takes the blocks.

        At most `most`, and more than 1 only if all running sequences decode. No other sequence can
        be admitted before one of them finishes. Finished sequences skip the remaining steps.
        """
        # 1. Several steps in one call are possible only if nobody could be admitted between them.
        #    The youngest may still be reading its prompt, so it is asked first.
        running = len(self.scheduler.running)
        if most > 1 and len(batch) == running and all(s.pending == 1 for s in reversed(batch)):
            # 2. As many as the blocks allow; a sequence stops at the end of its own text.
            remaining = [seq.request.max_new_tokens - seq.num_new_tokens for seq in batch]
            for steps in range(min(most, max(remaining)), 1, -1):
                drawn = [min(steps, n) for n in remaining]
                if self.block_manager.extend_all(batch, drawn):
                    return drawn
        # 3. Otherwise one token for those that have read everything, none inside a prompt.
        return [int(seq.draws) for seq in batch]

    def _draw_each(self, batch: list[Sequence], logits: Tensor) -> list[list[int]]:
        """For each sequence, the token sampled from its last row; none inside a prompt."""
        # 1. The logits hold `wanted` rows of each sequence, of which the last predicts a new token.
        #    Inside a prompt there are none, or only those for its log-probabilities.
        seqs = []
        rows = []
        row = -1
        for seq in batch:
            row += seq.wanted
            if seq.draws:
                seqs.append(seq)
                rows.append(row)
        # 2. Sample all of these rows together, and hand the tokens back to their sequences.
        chosen = logits if len(rows) == len(logits) else logits[rows]
        tokens = iter(self._draw(seqs, chosen))
        drawn = []
        for seq in batch:
            drawn.append([next(tokens)] if seq.draws else [])
        return drawn

    def _draw(self, batch: list[Sequence], logits: Tensor) -> list[int]:
        """Sample a token for each sequence, with its own noise.  (W, V) -> W"""
        # 1. Stop tokens of texts that are still too short cannot be sampled.
        barred = [(row, seq.barred) for row, seq in enumerate(batch) if seq.barred]
        if barred:
            logits = logits.clone()  # the original logits are returned as log-probabilities
            for row, tokens_of_row in barred:
                logits[row, list(tokens_of_row)] = -torch.inf
        # 2. Sample once for each group of equal settings. Noise belongs to a request and a
        #    position: a token is the same in any group.
        alike = defaultdict(list)
        for row, seq in enumerate(batch):
            alike[seq.request.sampling].append(row)
        tokens = [0] * len(batch)
        for sampling, rows in alike.items():
            noise = None
            if not sampling.greedy:
                noise = torch.stack([batch[row].next_noise for row in rows]).to(logits.device)
            chosen = logits if len(rows) == len(batch) else logits[rows]
            # Greedy sampling needs no noise, but `sample` is annotated to require it.
            sampled = sample(chosen, noise, sampling)[:, 0].tolist()  # type: ignore[arg-type]
            for row, token in zip(rows, sampled, strict=True):
                tokens[row] = token
        return tokens

    def _note(self, batch: list[Sequence], drawn: list[list[int]], logits: Tensor) -> None:
        """Record the requested log-probabilities: a row of logits predicts the token that follows.

        Rows are ordered step by step, and within a step sequence by sequence.
        """
        # 1. Which rows of the logits are whose? In the first step as many as a sequence wanted, in
        #    each later one a row for each sequence that still samples.
        rows: dict[Sequence, list[int]] = {seq: [] for seq in batch}
        n_rows = 0
        for step in range(max(1, *map(len, drawn))):
            for seq, tokens in zip(batch, drawn, strict=True):
                n = int(step < len(tokens)) if step else seq.wanted
                rows[seq] += range(n_rows, n_rows + n)
                n_rows += n
        # 2. Look up each row's own token: for a prompt's token the next one of the prompt, for the
        #    last row the token just sampled.
        for seq, tokens in zip(batch, drawn, strict=True):
            n_top = seq.request.logprobs
            if n_top is not None:
                predicted = [*seq.tokens, *tokens][seq.num_shown_tokens + 1 :][: len(rows[seq])]
                chosen = logits[rows[seq], : self.config.vocab_size]
                seq.logprobs += _logprobs(chosen.cpu(), predicted, n_top)

    def audit(self) -> None:
        """Raises AssertionError if a block was lost, or is held by a sequence that is gone."""
        assert not any(seq.block_table for seq in self.scheduler.waiting), (
            "a waiting sequence has blocks"
        )
        self.block_manager.audit(self.scheduler.running)

    def _append(self, batch: list[Sequence], drawn: list[list[int]]) -> list[Output]:
        """Append the sampled tokens to their sequences, and remove finished sequences."""
        columns = []  # of the outputs: one for each sequence
        ended = []
        for seq, tokens in zip(batch, drawn, strict=True):
            # 1. Where does the text end? A call of several steps goes on after a stop token, until
            #    all of its steps are done.
            request = seq.request
            first = seq.num_new_tokens
            n_kept = len(tokens)
            for i, token in enumerate(tokens, first):
                if request.ends_with(token, i):
                    n_kept = i - first + 1
                    break
            if n_kept < len(tokens):  # the rest was sampled after the end
                seq.logprobs = seq.logprobs[: n_kept - len(tokens)]
                tokens = tokens[:n_kept]
            stopped = n_kept > 0 and request.ends_with(tokens[-1], first + n_kept - 1)
            # 2. Count what was read and sampled. All sampled tokens but the last were also read.
            #    Blocks that are full now can be shared from here on.
            seq.tokens += tokens
            seq.num_new_tokens += len(tokens)
            read = seq.num_scheduled_tokens + max(0, len(tokens) - 1)
            self.block_manager.advance(seq, read)
            seq.num_shown_tokens = max(seq.num_shown_tokens, seq.num_computed_tokens)
            # 3. What the caller gets: each token, its number, and whether it is the last.
            last = first + n_kept - 1 if stopped else request.max_new_tokens - 1
            columns.append([Output(request, t, i, i == last) for i, t in enumerate(tokens, first)])
            if tokens and seq.logprobs:
                first = len(seq.logprobs) - len(tokens) + 1  # the first also gets the prompt's
                shares = [seq.logprobs[:first], *zip(seq.logprobs[first:])]
                pairs = zip(columns[-1], shares, strict=True)
                columns[-1] = [output._replace(logprobs=tuple(share)) for output, share in pairs]
                seq.logprobs = []
            if seq.num_new_tokens > last:
                ended.append(seq)
        # 4. Remove finished sequences: the next step can give their blocks to others.
        for seq in ended:
            self.scheduler.finish(self.alive.pop(seq.request.id))
        # 5. From one column for each sequence to one row for each step, as if each step had been
        #    a call of its own.
        outputs: list[Output] = []
        for step in zip_longest(*columns):
            outputs += filter(None, step)  # None: a sequence that sampled fewer tokens
        return outputs


def _logprobs(logits: Tensor, tokens: list[int], n_top: int) -> list[Logprob]:
    """For each row, the sampled token and the n_top most likely tokens.  (T, V), T -> T"""
    values = logits.double().log_softmax(-1)
    top = values.topk(min(n_top, values.shape[-1]))
    drawn = values[range(len(tokens)), tokens].tolist()
    rows = zip(tokens, drawn, top.indices.tolist(), top.values.tolist(), strict=True)
    return [Logprob(token, value, dict(zip(*pair, strict=True))) for token, value, *pair in rows]


def serve(model: LanguageModel, requests: Iterable[Request], **settings: Any) -> Iterator[Output]:
    """Serve requests, yielding their tokens as they are sampled.

        for output in serve(model, requests):
            print(output.request.id, tokenizer.decode([output.token]))

    `settings` are those of BatchEngine. The requests are checked at the call, and queued in order
    of arrival, without waiting for their arrival times. Steps run as tokens are consumed. Raises
    ValueError.
    """
    engine = BatchEngine(model, **settings)
    check_type("requests", requests, Iterable)
    for request in sorted(requests, key=lambda request: getattr(request, "arrival", 0.0)):
        engine.add(request)
    return _run(engine)


def _run(engine: BatchEngine) -> Iterator[Output]:
    """The outputs of all steps, one after another, until all requests have finished."""
    while engine.busy:
        yield from engine.step()
