"""Requests in which bugs of serving show, for every backend; and bugs of the blocks."""

from copy import deepcopy

import torch
from conftest import seeded
from decoding_fixtures import build, text
from serving_fixtures import FORMS, Watched, run

from nanogpt.decoding.generate import generate
from nanogpt.serving import blocks
from nanogpt.serving.blocks import BlockManager, block_hash
from nanogpt.serving.request import Request


def generated(asked, form="batched", dtype=torch.float64, engine=None):
    source = {"generator": seeded(asked.seed)} | ({"engine": engine} if engine else {})
    model, prompt = build(dtype, **FORMS[form]), asked.prompt[None]
    return [int(t) for t in generate(model, prompt, asked.max_new_tokens, asked.sampling, **source)]


def beginnings():
    """Texts [X][Z], [W][Y] and [X][Y] of blocks of 4, and [X][X]."""
    w, x, y, z = (text(4, seed=seed)[0] for seed in range(4))
    pairs = [(x, z), (w, y), (x, y), (x, x)]
    return [Request(torch.cat(pair), 8, seed=i, id=i) for i, pair in enumerate(pairs)]


def serve_beginnings(engine, dtype=torch.float64, native=None):
    """One after another, so that later ones find the blocks of earlier ones; the last together."""
    requests = beginnings()
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


def freed_while_shared(self, table):
    for block in table:
        self.ref_counts[block] = 0
        self.block_of.pop(self.hash_of.pop(block, b""), None)
        if block not in self.empty:
            self.empty.append(block)


def never_shared(self, block):
    self.kept.pop(block, None)
    self.ref_counts[block] = 1  # as if it were taken


BLOCK_BUGS = {  # what is replaced, where, by what
    "a block is freed while shared": (BlockManager, "_release", freed_while_shared),
    "who shares is not counted": (BlockManager, "_share", never_shared),
    "a hash without its parent": (blocks, "block_hash", lambda _, own: block_hash(b"", own)),
}
