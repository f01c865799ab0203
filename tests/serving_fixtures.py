"""Random workloads for a batch engine, and what each of their requests gives alone."""

import functools
import random
from collections import Counter
from copy import deepcopy

import torch
from conftest import seeded
from decoding_fixtures import V, build, text
from shapes import COMBINED

from nanogpt.engines.generation import generate
from nanogpt.sampling import PLAIN, SamplingParams
from nanogpt.serving.backend import SamplingBackend
from nanogpt.serving.batch import BatchEngine
from nanogpt.serving.modules import ModuleBackend
from nanogpt.serving.sequence import Request

FORMS = {  # of 2 layers: one alone hides what a chunk may see
    "heads": {"per_head": True, "n_head": 2},
    "batched": {},
    "shared": COMBINED["the keeper"] | {"n_kv_head": 2},
    "windows": {"n_kv_head": 1, "window": 5, "sinks": 2, "full_every": 2},
    "gates": COMBINED["Gemma 2"],
}
SAMPLINGS = [PLAIN, SamplingParams(0.7), SamplingParams(top_k=4), SamplingParams(1.3, top_p=0.8)]
SAMPLINGS += [SamplingParams(greedy=True)]
BEGINNINGS = [text(24, seed=seed)[0] for seed in (1, 2)]
KINDS = 60  # different requests, of which all workloads consist


def request(kind: int) -> Request:
    """Request number `kind`: half of them begin as others do."""
    draw = random.Random(kind)
    tail = text(draw.choice([1, 1, 2, 3, 7]), seed=kind)[0]
    begin = BEGINNINGS[kind % 2][: draw.choice([0, 0, 4, 8, 9, 12])]
    prompt = begin if kind % 7 == 0 and len(begin) else torch.cat([begin, tail])
    n_new = draw.randint(1, 12)
    return Request(prompt, n_new, SAMPLINGS[kind % 5], kind, id=kind)


def generated(asked, form="batched", dtype=torch.float64, engine=None):
    source = {"generator": seeded(asked.seed)} | ({"engine": engine} if engine else {})
    model = build(dtype, **FORMS[form])
    prompt = asked.prompt[None]
    return [int(t) for t in generate(model, prompt, asked.max_new_tokens, asked.sampling, **source)]


@functools.cache
def alone(form: str, kind: int, dtype=torch.float64, engine=None) -> list[int]:
    """The tokens that `generate` gives this request."""
    return generated(request(kind), form, dtype, engine)


class Watched(BatchEngine):
    """Counts what happens, keeps all logits, and checks after every step what must hold."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.events = Counter()
        self.logits = {}
        self.block_len = self.block_manager.block_len

    def _append(self, batch, drawn):
        scheduler = self.scheduler
        read = [seq.num_scheduled_tokens for seq in batch]
        assert 0 < sum(read) <= scheduler.budget
        assert len(scheduler.running) <= scheduler.max_running
        self.events += Counter(
            {
                "tokens": sum(read),
                "chunks": sum(not seq.draws for seq in batch),
                "mixed": len({n == 1 for n in read}) == 2,
                "preempted": sum(seq.num_scheduled_tokens > 0 for seq in scheduler.waiting),
                "hits": sum(0 < seq.num_cached_tokens >= seq.num_computed_tokens for seq in batch),
                "several": max(map(len, drawn)) > 1,
            }
        )
        if isinstance(self.backend, SamplingBackend):  # its logits come step by step
            rows = iter(self.backend.logits[: sum(map(len, drawn)), :V].clone())
            for step in range(max(map(len, drawn))):
                going = [
                    seq for seq, tokens in zip(batch, drawn, strict=True) if step < len(tokens)
                ]
                self._keep(going, rows)
        return super()._append(batch, drawn)

    def _draw(self, batch, logits):
        self._keep(batch, iter(logits))
        return super()._draw(batch, logits)

    def _keep(self, batch, rows):
        for seq in batch:
            self.logits.setdefault(seq.request.id, []).append(next(rows))

    def step(self):
        out = super().step()
        self.audit()
        assert len(self.alive) == len(self.scheduler.waiting) + len(self.scheduler.running)
        return out


def settings(draw: random.Random, requests: list[Request]) -> dict:
    """Budgets from 1 token to all, pools from the smallest that can hold each request alone."""
    block_len = draw.choice([1, 2, 3, 4, 8])
    longest = max(len(r.prompt) + r.max_new_tokens - 1 for r in requests)
    smallest = -(-longest // block_len)
    return {
        "block_len": block_len,
        "n_blocks": draw.choice([smallest, smallest + 1, smallest + 2, 4 * smallest]),
        "budget": draw.choice([1, 2, 3, 5, 8, 17, None]),
        "max_running": draw.choice([1, 2, 16, 16]),
        "reuse": draw.random() < 0.7,
    }


def run(engine: BatchEngine, arrivals: dict[int, list], aborts: dict[int, list], tokens=()) -> dict:
    """The tokens of each request. Keys of both tables are steps; it ends when all is done.

    `tokens` are those that came before, where requests run already.
    """
    tokens = dict(tokens)
    step = 0
    while engine.busy or arrivals or aborts:
        for asked in arrivals.pop(step, ()):
            engine.add(asked)
            tokens[asked.id] = []
        for name in aborts.pop(step, ()):
            if name in engine.alive:
                engine.abort(name)
                engine.events["aborted"] += 1
        for output in engine.step():
            assert output.index == len(tokens[output.request.id])
            tokens[output.request.id].append(output.token)
            assert output.finished == (
                len(tokens[output.request.id]) == output.request.max_new_tokens
            )
        step += 1
        assert step < 2000, "the engine does not come to an end"
    assert not any(engine.block_manager.ref_counts)
    return tokens


def check_workload(
    form: str, seed: int, backend=ModuleBackend, dtype=torch.float64, engine=None
) -> Watched:
    """Serve a random workload, and compare every request with what it gives alone."""
    draw = random.Random(f"{form} {seed}")
    kinds = draw.sample(range(KINDS), draw.randint(2, 6))
    requests = {kind: request(kind) for kind in kinds}
    arrivals = {}
    aborts = {}
    for kind in kinds:
        start = draw.choice([0, 0, 0, 1, 6])
        arrivals.setdefault(start, []).append(requests[kind])
        if draw.random() < 0.15:
            aborts.setdefault(start + draw.randint(0, 6), []).append(kind)
    aborted = {kind for names in aborts.values() for kind in names}
    chosen = settings(draw, list(requests.values()))
    served = Watched(build(dtype, **FORMS[form]), backend=backend, **chosen)
    tokens = run(served, arrivals, aborts)
    for kind, got in tokens.items():
        want = alone(form, kind, dtype, engine)
        whole = want[: len(got)] if kind in aborted else want
        assert got == whole, f"request {kind} of workload {form} {seed} with {chosen}"
    return served


# ------------------------------------------------------------------ requests in which bugs show


def serve_beginnings(engine, dtype=torch.float64, native=None):
    """Texts [X][Z], [W][Y], [X][Y] and [X][X] of blocks of 4, one after another; [X][Y] together.

    So later ones find the blocks of earlier ones.
    """
    w, x, y, z = (text(4, seed=seed)[0] for seed in range(4))
    pairs = [(x, z), (w, y), (x, y), (x, x)]
    requests = [Request(torch.cat(pair), 8, seed=i, id=i) for i, pair in enumerate(pairs)]
    together = [Request(requests[2].prompt, 8, seed=seed, id=seed) for seed in (10, 11, 12)]
    arrivals = {20 * i: [asked] for i, asked in enumerate(requests)} | {99: together}
    tokens = run(engine, arrivals, {})
    for asked in [*requests, *together]:
        assert tokens[asked.id] == generated(asked, "batched", dtype, native), (
            f"request {asked.id} got other tokens"
        )


@torch.no_grad()
def numbers_that_are_none(**engine):
    """A text of NaN leaves its blocks to others, and shares them with a text that is like it."""
    model = deepcopy(build(torch.float32))
    model.token_embedding_table.weight[0] = torch.nan
    model.lm_head.bias[0] = -1e4  # this token is not drawn
    bad = [Request(torch.zeros(8, dtype=torch.long), 5, id=f"bad {i}") for i in (0, 1)]
    good = [Request(text(n, seed=3)[0].clamp(min=1), 9, id=n) for n in (9, 2)]
    served = Watched(model, block_len=4, n_blocks=8, **engine)
    tokens = run(served, {0: bad[:1], 6: bad[1:], 12: good[:1], 14: good[1:]}, {})
    for asked in good:
        own = Watched(model, block_len=4, **engine)
        assert run(own, {0: [asked]}, {}) == {asked.id: tokens[asked.id]}
        got, want = (torch.stack(one.logits[asked.id]) for one in (served, own))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
