"""The block manager: nothing is lost, nothing is given twice, and what is kept can be found."""

import itertools
import random

import pytest
import torch

from nanogpt.serving.sequence import ROOT, BlockManager, Request, Sequence, block_hash


def names(*texts):
    """The chained hashes of a sequence whose blocks these are."""
    chain = [ROOT]
    for tokens in texts:
        chain.append(block_hash(chain[-1], tokens))
    return chain[1:]


def sequence(*tokens):
    return Sequence(Request(torch.tensor(tokens), 1), None)


def held(manager, *tokens):
    """A sequence of these tokens that was admitted and read; a block holds one of them."""
    seq = sequence(*tokens)
    assert manager.admit(seq)
    assert manager.extend(seq, len(tokens))
    manager.advance(seq, seq.pending)
    return seq


def found(manager, *tokens):
    """How many tokens of such a text are there."""
    hashes = manager._hashes(sequence(*tokens))
    return sum(1 for _ in itertools.takewhile(manager.block_of.__contains__, hashes))


def test_a_hash_is_of_the_tokens_and_of_all_before_them():
    a = names([1, 2], [3, 4])
    assert a == names([1, 2], [3, 4])
    assert a[1] not in names([3, 4], [3, 4])
    assert len({*a, *names([2, 1], [3, 4]), *names([12], [34]), *names([1, 2, 3, 4])}) == 7


def test_unused_blocks_are_found_until_their_memory_is_needed_the_least_recently_used_first():
    manager = BlockManager(4, 1)
    old = held(manager, 1, 2)
    new = held(manager, 8, 9)
    blocks = list(old.block_table)
    manager.free(old)
    manager.free(new)
    manager.audit([])
    assert manager.available == 4
    again = held(manager, 1, 2)  # now the others are unused longer
    assert (again.block_table, again.num_cached_tokens) == (blocks, 2)
    manager.free(again)
    held(manager, 5)
    assert (found(manager, 1, 2), found(manager, 8, 9)) == (2, 1)  # the end goes first
    held(manager, 6)
    assert (found(manager, 1, 2), found(manager, 8, 9)) == (2, 0)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 11])
def test_a_text_that_was_read_in_chunks_is_found_whole(chunk):
    text = range(11)
    manager = BlockManager(8, 3)
    seq = sequence(*text)
    assert manager.admit(seq)
    assert manager.extend(seq, len(text))
    while seq.pending:
        manager.advance(seq, min(chunk, seq.pending))
    manager.free(seq)
    again = sequence(*text)
    assert manager.admit(again)
    assert again.num_cached_tokens == 9, "three full blocks of three"


def test_empty_blocks_are_taken_before_kept_ones_and_too_few_change_nothing():
    manager = BlockManager(3, 1)
    manager.free(held(manager, 1))
    both = held(manager, 5, 6)
    assert found(manager, 1)
    assert not manager.admit(sequence(7, 8))
    other = sequence(7)
    assert not manager.extend_all([both, other], [1, 1])
    assert found(manager, 1)
    assert manager.extend(other, 1)
    assert not found(manager, 1)
    assert not manager.extend(both, 3)
    manager.audit([both, other])
    manager.free(both)
    manager.free(other)
    manager.audit([])


def test_of_equal_blocks_the_first_is_found_and_the_other_is_given_back_empty():
    manager = BlockManager(3, 1)
    first = sequence(1)
    second = sequence(1)
    for seq in (first, second):  # neither is read when the other is admitted
        assert manager.admit(seq)
        assert manager.extend(seq, 1)
    for seq in (first, second):
        manager.advance(seq, 1)
    manager.free(second)
    assert held(manager, 1).block_table == first.block_table
    assert len(manager.empty) == 2


@pytest.mark.parametrize("reuse", [True, False])
def test_random_use_loses_nothing(reuse):
    draw = random.Random(5)
    manager = BlockManager(9, 1, reuse)
    alive = []
    for _ in range(600):
        seq = sequence(*(draw.randrange(2) for _ in range(draw.randint(1, 4))))
        if draw.random() < 0.6 and manager.admit(seq):
            manager.extend(seq, len(seq.tokens))
            manager.advance(seq, seq.pending)
            alive.append(seq)
            assert not reuse or found(manager, *seq.tokens) == len(seq.tokens)
        elif alive:
            manager.free(alive.pop(draw.randrange(len(alive))))
        manager.audit(alive)
    assert reuse == bool(manager.block_of)
