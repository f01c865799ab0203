"""The pool of blocks: nothing is lost, nothing is given twice, and what is kept can be found."""

import random

import pytest

from nanogpt.serving.blocks import ROOT, BlockPool, block_hash


def names(*texts):
    """The chained hashes of a text whose blocks these are."""
    chain = [ROOT]
    for tokens in texts:
        chain.append(block_hash(chain[-1], tokens))
    return chain[1:]


def filled(pool, hashes):
    blocks = [pool.take() for _ in hashes]
    for block, name in zip(blocks, hashes, strict=True):
        pool.publish(block, name)
    return blocks


def test_a_hash_is_of_the_tokens_and_of_all_before_them():
    a = names([1, 2], [3, 4])
    assert a == names([1, 2], [3, 4])
    assert a[1] not in names([3, 4], [3, 4])
    assert len({*a, *names([2, 1], [3, 4]), *names([12], [34]), *names([1, 2, 3, 4])}) == 7


def test_what_nobody_uses_is_found_until_its_place_is_needed_the_longest_unused_first():
    pool = BlockPool(4)
    old, new = names([1], [2]), names([8], [9])
    blocks = filled(pool, old)
    pool.release(blocks)
    pool.release(filled(pool, new))
    pool.audit([])
    assert pool.available == 4
    assert pool.find(old) == blocks
    for block in blocks:  # a text uses the old ones again: now the others are unused longer
        pool.share(block)
    pool.release(blocks)
    pool.take()
    assert (len(pool.find(old)), len(pool.find(new))) == (2, 1)  # of a text, the end goes first
    pool.take()
    assert (len(pool.find(old)), len(pool.find(new))) == (2, 0)


def test_empty_blocks_are_taken_before_kept_ones_and_a_full_pool_says_so():
    pool = BlockPool(3)
    kept = names([1])
    pool.release(filled(pool, kept))
    taken = [pool.take(), pool.take()]
    assert pool.find(kept)
    taken.append(pool.take())
    assert not pool.find(kept)
    with pytest.raises(IndexError, match="all 3 blocks are held"):
        pool.take()
    pool.audit([taken])
    pool.release(taken)
    assert pool.available == 3
    pool.audit([])


def test_of_equal_blocks_the_first_is_found_and_the_other_is_given_back_empty():
    pool, same = BlockPool(3), names([1])
    first, second = filled(pool, same), filled(pool, same)
    assert pool.find(same) == first
    pool.release(second)
    assert pool.find(same) == first
    pool.audit([first])


@pytest.mark.parametrize("reuse", [True, False])
def test_random_use_loses_nothing(reuse):
    draw = random.Random(5)
    pool, held = BlockPool(9, reuse), []
    for _ in range(600):
        wanted = names(*([draw.randrange(2)] for _ in range(draw.randint(1, 4))))
        found = pool.find(wanted) if reuse else []
        unused = sum(pool.users[block] == 0 for block in found)
        if draw.random() < 0.6 and len(wanted) - len(found) + unused <= pool.available:
            for block in found:
                pool.share(block)
            held.append(found + filled(pool, wanted[len(found) :]))
            assert not reuse or len(pool.find(wanted)) == len(wanted)
        elif held:
            pool.release(held.pop(draw.randrange(len(held))))
        pool.audit(held)
    assert reuse == bool(pool.block_of)


def test_an_audit_finds_a_block_that_was_lost_or_is_held_by_nobody():
    pool = BlockPool(3)
    block = pool.take()
    with pytest.raises(AssertionError, match="blocks held"):
        pool.audit([])
    pool.audit([[block]])
    pool.empty.pop()
    with pytest.raises(AssertionError, match="blocks lost"):
        pool.audit([[block]])
