"""The C++ forward pass itself, without an engine around it."""

import ctypes
from array import array

import torch

from nanogpt.engines.decoder_library import CCache, CSequence, CTurn, Packed, up


class Runner:
    """Reads texts through run_steps, in whatever chunks a test asks for."""

    def __init__(self, packed: Packed, block_len: int = 16, blocks: int = 80, threads: int = 1):
        self.packed = packed
        self.threads = threads
        self.block_len = block_len
        lib = packed.lib
        # Where nobody writes there is no number: who reads it shows.
        self.kv = [torch.full((n,), torch.nan) for n in packed.cache_sizes(blocks, block_len)]
        if block_len % packed.lanes:
            for memory in self.kv:
                memory.zero_()
        self.cache = CCache(*(memory.data_ptr() for memory in self.kv), blocks, block_len)
        self.work = lib.new_work()
        self.free = torch.randperm(blocks, generator=torch.Generator().manual_seed(3)).tolist()
        self.texts = []

    def add(self, tokens) -> int:
        text = array("q", tokens)
        table = array("q", [self.free.pop() for _ in range(-(-len(text) // self.block_len))])
        address, where = (numbers.buffer_info()[0] for numbers in (text, table))
        sequence = CSequence(address, where, None, 0, len(text), 0, 1.0, 1.0)
        self.texts.append((text, table, sequence))
        return len(self.texts) - 1

    def read(self, *parts) -> list[torch.Tensor]:
        """The logits of each (text, start, end), all in one step."""
        V = self.packed.config.vocab_size
        turns = (CTurn * len(parts))()
        for turn, (text, start, end) in zip(turns, parts, strict=True):
            turn.sequence = ctypes.addressof(self.texts[text][2])
            turn.start = start
            turn.count = turn.wanted = end - start
        n = sum(end - start for _, start, end in parts)
        logits = torch.empty(n, up(V, self.packed.lanes))
        lib = self.packed.lib
        where = [self.packed.address, ctypes.addressof(self.cache), self.work]
        lib.run_steps(
            *where, ctypes.addressof(turns), len(parts), 1, 0, logits.data_ptr(), None, self.threads
        )
        return list(logits[:, :V].split([end - start for _, start, end in parts]))

    def close(self):
        self.packed.lib.delete_work(self.work)


def logits_in_three_ways(packed, text, other, block_len=16, threads=1):
    """Token by token; in one prefill; in chunks, beside chunks of another text."""
    runner = Runner(packed, block_len, threads=threads)
    n = len(text)
    one = runner.add(text)
    yield torch.cat([runner.read((one, i, i + 1))[0] for i in range(n)])
    yield runner.read((runner.add(text), 0, n))[0]
    first, second = runner.add(text), runner.add(other)
    rows = []
    begin = read = 0
    for size in (1, 5, 2, 17, 40, 3, n):
        end = min(n, begin + size)
        more = min(len(other), read + 3)
        parts = [(first, begin, end), (second, read, more)]
        parts = [part for part in parts if part[1] < part[2]]
        if begin < end:
            rows.append(runner.read(*parts)[0])
        begin, read = end, more
    yield torch.cat(rows)
    runner.close()


def text_of(c, n, seed=1):
    return torch.randint(c.vocab_size, (n,), generator=torch.Generator().manual_seed(seed))
