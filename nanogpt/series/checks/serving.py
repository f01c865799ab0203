"""The checks of a server's parts: ragged_mask, block_name and admitted."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ...serving.sequence import ROOT
from .. import solutions
from .exercise import Anew, Answer, Case, Exercise, Pairs
from .observing import Arguments, form

Token = tuple[int, int]  # sequence and position

# ------------------------------------------------------------------ ragged_mask


def run_ragged(answer: Answer, queries: list[Token], keys: list[Token]) -> Pairs:
    """The mask of a step, and what is wrong with it, by kind of key."""
    q_seq, q_pos = torch.tensor(queries).T.contiguous()
    k_seq, k_pos = torch.tensor(keys).T.contiguous()
    given = Arguments(
        q_seq=q_seq.clone(), q_pos=q_pos.clone(), k_seq=k_seq.clone(), k_pos=k_pos.clone()
    )
    mask = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the mask", form(mask)
    yield "the dtype of the mask", str(getattr(mask, "dtype", "none"))
    own = q_seq[:, None] == k_seq
    gap = q_pos[:, None] - k_pos
    yield "a query sees a key of another sequence", bool((mask & ~own).any())
    blind = ~mask & own
    yield "a query does not see the key of its own position", bool((blind & (gap == 0)).any())
    future = mask & own & (gap < 0)
    yield "a query sees a later key of its own sequence, which is the future", bool(future.any())
    yield "a query does not see an earlier key of its own sequence", bool((blind & (gap > 0)).any())
    yield "the mask", mask


def run_two_steps(answer: Answer) -> Pairs:
    """Two steps of the same shapes."""
    keys = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]])
    for seq, pos in ((0, 1), (1, 0)):
        mask = answer(torch.tensor([seq]), torch.tensor([pos]), *keys.clone())
        yield f"the mask of a query at position {pos} of sequence {seq}", mask


def ragged(
    q_seq: Tensor,
    q_pos: Tensor,
    k_seq: Tensor,
    k_pos: Tensor,
    same: Any = lambda q, k: q == k,
    past: Any = lambda q, k: k <= q,
    join: Any = torch.logical_and,
) -> Any:
    """The reference solution. Each comparison of (N, 1) and (1, S) can be replaced."""
    return join(same(q_seq[:, None], k_seq[None, :]), past(q_pos[:, None], k_pos[None, :]))


def ragged_by(**step: Any) -> Answer:
    """ragged with one step replaced."""
    return lambda *given: ragged(*given, **step)


def everywhere(q: Tensor, k: Tensor) -> Tensor:
    return torch.ones(len(q), k.shape[1], dtype=torch.bool)


def keys_by_place(q: Tensor, k: Tensor) -> Tensor:
    return torch.arange(k.shape[1]) <= q


def triangle(q: Tensor, k: Tensor) -> Tensor:
    return everywhere(q, k).tril()


def queries_by_place(q: Tensor, k: Tensor) -> Tensor:
    return k <= torch.arange(len(q))[:, None]


def same_position_anywhere(q_seq: Tensor, q_pos: Tensor, k_seq: Tensor, k_pos: Tensor) -> Any:
    return ragged(q_seq, q_pos, k_seq, k_pos) | (k_pos == q_pos[:, None])


def exchanged(q_seq: Tensor, q_pos: Tensor, k_seq: Tensor, k_pos: Tensor) -> Any:
    return ragged(q_pos, q_seq, k_pos, k_seq)


def to_infinity(same: Tensor, past: Tensor) -> Tensor:
    return torch.zeros(same.shape).masked_fill(~(same & past), float("-inf"))


def kept_by_shape() -> Answer:
    masks: dict[Any, Any] = {}

    def answer(q_seq: Tensor, q_pos: Tensor, k_seq: Tensor, k_pos: Tensor) -> Any:
        new = ragged(q_seq, q_pos, k_seq, k_pos)
        return masks.setdefault(new.shape, new)

    return answer


def positions_of(*lengths: int) -> list[Token]:
    """Sequences 0, 1, 2 … of these lengths, one after the other."""
    return [(seq, pos) for seq, length in enumerate(lengths) for pos in range(length)]


def shuffled(tokens: list[Token], seed: int) -> list[Token]:
    """The same tokens in another order."""
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed))
    return [tokens[i] for i in order.tolist()]


MANY = shuffled(positions_of(*range(1, 25)), seed=0)
RAGGED_MASK = Exercise(
    notebook="09",
    hints=(
        "Sequence 1 is at position 4. Which keys of sequence 0 may it see, and which of its own?",
        "`q_seq[:, None] == k_seq[None, :]` compares every query with every key: (N, 1) and (1, S) "
        "give (N, S). Join it with the rule of notebook 02 by `&`.",
        "return (q_seq[:, None] == k_seq[None, :]) & (k_pos[None, :] <= q_pos[:, None])",
    ),
    right=solutions.ragged_mask,
    cases=[
        Case(run_ragged, queries=[(0, 2), (1, 0), (1, 1)], keys=positions_of(3, 2)),
        Case(run_ragged, queries=[(0, 1)], keys=positions_of(4)),
        Case(run_two_steps),
        Case(run_ragged, queries=[(1, 3), (0, 4)], keys=positions_of(5, 4)),
        Case(
            run_ragged,
            queries=[(0, 5), (1, 0), (1, 1), (1, 2), (1, 3), (2, 4)],
            keys=positions_of(6, 4, 5),
        ),
        Case(run_ragged, queries=[(7, 1), (3, 0)], keys=[(3, 0), (7, 0), (3, 1), (7, 1)]),
        Case(run_ragged, queries=[(5, 2), (1, 1)], keys=[(1, 0), (1, 1), (1, 2)]),
        Case(
            run_ragged,
            queries=[(2**20, 40_000), (1, 70_000)],
            keys=[(1, 2), (2**20, 5), (2**20, 39_999), (2**20, 40_001), (1, 70_001)],
        ),
        Case(run_ragged, queries=shuffled(MANY, seed=1)[:40], keys=MANY),
    ],
    mistakes={
        "sequences are not compared, so a query sees the keys of other sequences: also require "
        "q_seq == k_seq.": ragged_by(same=everywhere),
        "positions are not compared, so a query sees the future: also require k_pos <= q_pos.": (
            ragged_by(past=everywhere)
        ),
        "a query does not see the key of its own position, which this step has just written: <=, "
        "not <.": ragged_by(past=lambda q, k: k < q),
        "a query sees what comes after it, and must see what comes before: <=, not >=.": ragged_by(
            past=lambda q, k: k >= q
        ),
        "a query sees only its own key: it must also see the earlier ones.": ragged_by(
            past=lambda q, k: k == q
        ),
        "the key at position 0 is hidden: every later query of its sequence must see it.": (
            ragged_by(past=lambda q, k: (k <= q) & (k > 0))
        ),
        "the two conditions are joined by `or`: a key must satisfy both, so use &.": ragged_by(
            join=torch.logical_or
        ),
        "the mask is inverted: True is where a query may look.": ragged_by(
            join=lambda same, past: ~(same & past)
        ),
        "a query sees every sequence except its own: ==, not !=.": ragged_by(
            same=lambda q, k: q != k
        ),
        "a query also sees sequences with smaller numbers: ==, not <=.": ragged_by(
            same=lambda q, k: k <= q
        ),
        "a query sees the key at its own position in every sequence: the sequences must also be "
        "equal there.": same_position_anywhere,
        "sequences and positions are swapped: sequences must be equal, positions ordered.": (
            exchanged
        ),
        "all queries are assigned to the first one's sequence: each has its own.": ragged_by(
            same=lambda q, k: (k == q[0]).expand(len(q), -1)
        ),
        "all queries get the last one's position: each has its own.": ragged_by(
            past=lambda q, k: (k <= q[-1]).expand(len(q), -1)
        ),
        "keys are numbered by their index in the list: k_pos has each key's position.": (
            ragged_by(past=keys_by_place)
        ),
        "queries are numbered by their index in the list: q_pos has each query's position.": (
            ragged_by(past=queries_by_place)
        ),
        "tril makes a triangle by index in the list: compare positions.": ragged_by(past=triangle),
        "the mask is transposed: it has a row for each query and a column for each key.": (
            lambda *given: ragged(*given).T
        ),
        "a second step of the same shapes gets the first one's mask: keep nothing between "
        "calls.": Anew(kept_by_shape),
        "the mask holds floats: it must hold booleans.": ragged_by(
            join=lambda same, past: (same & past).float()
        ),
        "the mask holds integers: it must hold booleans.": ragged_by(
            join=lambda same, past: same.long() * past.long()
        ),
        "the mask holds 0 and -inf: it must hold booleans.": ragged_by(join=to_infinity),
        "16 bits are too few for a position: keep 64-bit integers.": ragged_by(
            past=lambda q, k: k.to(torch.int16) <= q.to(torch.int16)
        ),
    },
    advice={
        "the shape of the mask": "It has a row for each query and a column for each key.",
        "the dtype of the mask": "It must hold booleans.",
        "another sequence": "Also compare the sequences: q_seq == k_seq.",
        "the future": "Compare positions: k_pos <= q_pos.",
        "does not see": "It sees the keys of its sequence up to its own position.",
        "the mask of": "Compare sequences and positions, and keep nothing between calls.",
        "must match the size": (
            "q_seq[:, None] has shape (N, 1) and k_seq[None, :] has shape (1, S): compared with "
            "each other, they give (N, S)."
        ),
        "is ambiguous": (
            "Join masks with `&`, element by element, and put each comparison in parentheses."
        ),
    },
    axes=[("query", "key")],
)


# ------------------------------------------------------------------ block_name

Block = list[int]  # the block's tokens


def name_of(answer: Answer, blocks: list[Block]) -> Any:
    """The name of the last of a sequence's blocks."""
    return reduce(lambda parent, block: answer(parent, [*block]), blocks, ROOT)


def run_again(answer: Answer, blocks: list[Block]) -> Pairs:
    """The same block, named twice; its name is a dictionary key."""
    tokens = [*blocks[-1]]
    parent = name_of(answer, blocks[:-1])
    name = answer(parent, tokens)
    yield "your code changes `tokens`, which belong to the caller", tokens != blocks[-1]
    yield "the name cannot be a dictionary key", not hashes(name)
    yield "the same block gets another name the second time", bool(name != name_of(answer, blocks))


def hashes(name: Any) -> bool:
    """Whether a value can be a dictionary key."""
    try:
        hash(name)
    except TypeError:
        return False
    return True


def run_differ(answer: Answer, one: list[Block], other: list[Block]) -> Pairs:
    """The last blocks of two sequences that differ, so their names must differ."""
    same = name_of(answer, one) == name_of(answer, other)
    yield "two different blocks have the same name", bool(same)


def run_places(answer: Answer, size: int) -> Pairs:
    """Blocks that differ in a single token."""
    block = [*range(size)]
    name = name_of(answer, [block])
    for i in range(size):
        other = [*block]
        other[i] += 100
        same = name_of(answer, [other]) == name
        yield f"token {i} of {size} is not in the name", bool(same)


def differ(one: list[Block], other: list[Block]) -> Case:
    """A case with two sequences that differ."""
    return Case(run_differ, one=one, other=other)


def name_by(part: Any) -> Answer:
    """Names that contain the parent's whole name, and this function of the tokens."""
    return lambda parent, tokens: (parent, part(tokens))


def text_of(tokens: Block) -> str:
    return "".join(map(str, tokens))


def in_one_text(parent: Any, tokens: Block) -> str:
    return (parent or "") + ",".join(map(str, tokens))


def parent_alone(parent: Any, tokens: Block) -> Any:
    return parent, len(tokens)


def tokens_of_two(parent: Any, tokens: Block) -> Any:
    return parent[-1:], tuple(tokens)  # which part of the parent's name: its tokens


def without_order(parent: Any, tokens: Block) -> Any:
    before = parent or frozenset()
    return before | {tuple(tokens)}


def sum_of_hashes(parent: Any, tokens: Block) -> int:
    return (parent or 0) ^ hash(tuple(tokens))


def holds_list(parent: Any, tokens: Block) -> Any:
    return parent, tokens


def sorts(parent: Any, tokens: Block) -> Any:
    tokens.sort()
    return parent, tuple(tokens)


def counts() -> Answer:
    names = iter(range(10**9))
    return lambda parent, tokens: next(names)


PARENT = "keys depend on all tokens before them, so the name must contain the parent's whole name"
BLOCK_NAME = Exercise(
    notebook="09",
    hints=(
        "The tokens *the sea* occur in two texts, after different beginnings. Layers above the "
        "first mix what came before into each position. Are the keys of *the sea* the same?",
        "Two things decide: all tokens before the block, and its own tokens in order. The "
        "parent's name stands for everything before. A tuple of both will do. Lists cannot be "
        "dictionary keys.",
        "return (parent, tuple(tokens))",
    ),
    right=solutions.block_name,
    cases=[
        Case(run_again, blocks=[[1, 2]]),
        differ([[1, 2]], [[1, 3]]),
        differ([[1, 2]], [[5, 2]]),
        differ([[1, 2]], [[2, 1]]),
        differ([[9, 9], [3, 4]], [[1, 2], [3, 4]]),
        differ([[9, 9], [1, 2], [3, 4]], [[8, 8], [1, 2], [3, 4]]),
        differ([[1, 2], [3, 4]], [[3, 4], [1, 2]]),
        differ([[1, 2], [3, 4]], [[1, 2], [3, 5]]),
        differ([[1, 23]], [[12, 3]]),
        differ([[1, 2], [34, 5]], [[1, 23], [4, 5]]),
        differ([[1, 4]], [[2, 3]]),
        differ([[1, 1, 2]], [[1, 2, 2]]),
        differ([[1, 2, 3]], [[1, 3, 2]]),
        differ([[0, 0]], [[0, 0], [0, 0]]),
        differ([[1, 2], [5, 5], [5, 5]], [[1, 2], [7, 7], [7, 7]]),
        differ([[3, 257]], [[3, 1]]),
        differ([[50_256, 65_536]], [[50_256, 0]]),
        Case(run_again, blocks=[[3, 257], [70_000, 0]]),
        Case(run_places, size=16),
    ],
    mistakes={
        "the parent is not in the name, so 3 4 after 1 2 and 3 4 after 9 9 get the same one: "
        f"{PARENT}.": lambda parent, tokens: tuple(tokens),
        f"what comes before the parent is lost: {PARENT}.": tokens_of_two,
        "the tokens are not in the name: all blocks with the same parent share one.": parent_alone,
        "the order of the tokens is lost, because they are sorted: 1 2 is not 2 1.": name_by(
            lambda tokens: tuple(sorted(tokens))
        ),
        "a set forgets the order of the tokens, and how often each comes: use a tuple.": name_by(
            frozenset
        ),
        "the order of the blocks is lost: a block after another has its name as its parent.": (
            without_order
        ),
        "hashes are combined with ^, which loses the order of the blocks, and two equal ones "
        "cancel: put parent and tokens into one tuple.": sum_of_hashes,
        "tokens are added up: 1 4 and 2 3 have the same sum. Keep each token separate.": name_by(
            sum
        ),
        "digits run together: 1 23 and 12 3 become the same string. Keep each token "
        "separate.": name_by(text_of),
        "the digits of the parent and of the tokens run together at the seam: put both into a "
        "tuple.": in_one_text,
        "only the first token is in the name: all of them must be.": name_by(
            lambda tokens: tokens[0]
        ),
        "only the last token is in the name: all of them must be.": name_by(
            lambda tokens: tokens[-1]
        ),
        "the last token is not in the name: all of them must be.": name_by(
            lambda tokens: tuple(tokens[:-1])
        ),
        "the name is a list or contains one, which cannot be a dictionary key: use tuples, "
        "tuple(tokens).": holds_list,
        "the same block gets a different name each time, so it would never be found: leave out "
        "counters, random numbers and memory addresses.": Anew(counts),
        "your code sorts the caller's list, but the order of tokens matters: leave it "
        "alone.": sorts,
        "only 8 bits of a token are in the name: 257 and 1 become equal.": name_by(
            lambda tokens: bytes(token % 256 for token in tokens)
        ),
        "bytes() takes numbers up to 255: a tuple takes any.": name_by(bytes),
        "only 16 bits of a token are in the name: keep all of it.": name_by(
            lambda tokens: tuple(token % 65_536 for token in tokens)
        ),
    },
    advice={
        "have the same name": (
            "It must contain all of its own tokens in order, and the parent's name, each separate."
        ),
        "is not in the name": "All tokens of the block must be in it.",
        "dictionary key": "Make it a tuple: a list cannot be a key.",
        "the second time": "Compute it from parent and tokens alone.",
        "your code changes": "Copy the list first.",
        "your code raised": (
            "The parent is ROOT or a name that you returned, and a token is any integer from 0 "
            "on: a tuple takes both."
        ),
    },
)


# ------------------------------------------------------------------ admitted


def run_queue(answer: Answer, needs: list[int], free: int, most: int) -> Pairs:
    """One call."""
    queue = [*needs]
    count = answer(queue, free, most)
    plain = count.item() if hasattr(count, "item") else count  # of a tensor or an array
    yield "the number of requests admitted", plain
    yield "your code changes `needs`, which is the queue itself", queue != needs


def queues(*given: tuple[list[int], int, int]) -> list[Case]:
    """A case for each call."""
    return [Case(run_queue, needs=needs, free=free, most=most) for needs, free, most in given]


def admit(
    needs: list[int],
    free: int,
    most: int,
    fits: Any = lambda need, free: need <= free,
    left: Any = lambda free, need: free - need,
    stops: bool = True,
) -> int:
    """The reference solution. Each step can be replaced."""
    count = 0
    for need in needs:
        if count >= most:
            break
        if fits(need, free):
            count += 1
            free = left(free, need)
        elif stops:
            break
    return count


def admit_by(**step: Any) -> Answer:
    """admit with one step replaced."""
    return lambda *given: admit(*given, **step)


def blocks_taken(needs: list[int], free: int, most: int) -> int:
    return sum(needs[: admit(needs, free, most)])


def blocks_left(needs: list[int], free: int, most: int) -> int:
    return free - blocks_taken(needs, free, most)


def with_refused(needs: list[int], free: int, most: int) -> int:
    return min(len(needs[:most]), admit(needs, free, most) + 1)


def none_or_all(needs: list[int], free: int, most: int) -> int:
    candidates = needs[:most]
    return len(candidates) if sum(candidates) <= free else 0


def first_places(needs: list[int], free: int, most: int) -> int:
    """Overtaking, only among the first `most` of the queue."""
    return admit(needs[:most], free, most, stops=False)


def emptied(needs: list[int], free: int, most: int) -> int:
    count = admit(needs, free, most)
    del needs[:count]
    return count


ADMITTED = Exercise(
    notebook="09",
    hints=(
        "The first request needs 5 blocks and 4 are free; the second one needs 1. How many are "
        "admitted? And how many blocks are free for the second one if the first one fits?",
        "Loop over `needs`, stop (`break`) at the first one that does not fit, and otherwise "
        "subtract its blocks from `free`. `needs[:most]` are those that may run.",
        "for need in needs[:most]: `break` if need > free; otherwise count += 1 and free -= need",
    ),
    right=solutions.admitted,
    cases=queues(
        ([2, 3], 9, 4),
        ([2, 3, 4], 6, 4),
        ([5, 1], 4, 4),
        ([1, 1, 1], 9, 2),
        ([3], 3, 1),
        ([], 5, 5),
        ([2, 9, 1, 1], 4, 3),
        ([1, 1, 1, 1, 1, 1], 4, 5),
        ([4, 3, 2, 1], 8, 4),
        ([1, 2], 0, 3),
        ([1, 2], 9, 0),
        ([2, 2, 2], 5, 2),
        ([7, 1, 1, 1, 1], 7, 3),
        ([1] * 500, 300, 400),
        ([1] * 500, 400, 300),
    ),
    mistakes={
        "each need is compared with all free blocks: those admitted before have taken theirs, "
        "so subtract them.": admit_by(left=lambda free, need: free),
        "a smaller request overtakes one that does not fit: stop there (`break`), because none "
        "may overtake.": admit_by(stops=False),
        "a smaller request among the first `most` overtakes one that does not fit: stop "
        "there.": first_places,
        "`most` is ignored: at most that many may run.": (
            lambda needs, free, most: admit(needs, free, len(needs))
        ),
        "one request too many may run: at most `most` may.": (
            lambda needs, free, most: admit(needs, free, most + 1)
        ),
        "one request too few may run: `most` of them may.": (
            lambda needs, free, most: admit(needs, free, most - 1)
        ),
        "a request that needs exactly the free blocks fits: <=, not <.": admit_by(
            fits=lambda need, free: need < free
        ),
        "`free` is ignored: a request needs blocks to be admitted.": (
            lambda needs, free, most: min(len(needs), most)
        ),
        "a request is admitted as long as any block is free: it needs all of its blocks.": admit_by(
            fits=lambda need, free: free > 0
        ),
        "each request takes one block: it takes as many as it needs.": admit_by(
            left=lambda free, need: free - 1
        ),
        "the one that does not fit is also counted: it waits.": with_refused,
        "all or none are admitted: admit those at the front that fit.": none_or_all,
        "the smallest requests come first: the queue has an order, and none may overtake.": (
            lambda needs, free, most: admit(sorted(needs), free, most)
        ),
        "the queue is read from its end: the first comes first.": (
            lambda needs, free, most: admit(needs[::-1], free, most)
        ),
        "this is the number of blocks they take: count the requests.": blocks_taken,
        "this is the number of blocks left free: count the requests.": blocks_left,
        "these are the needs of the admitted requests: return how many there are.": (
            lambda needs, free, most: needs[: admit(needs, free, most)]
        ),
        "this is the number of waiting requests: count those admitted.": (
            lambda needs, free, most: len(needs) - admit(needs, free, most)
        ),
        "this is whether any is admitted: return how many are.": (
            lambda needs, free, most: admit(needs, free, most) > 0
        ),
        "those admitted are removed from `needs`, which is the queue itself: only count.": emptied,
    },
    advice={
        "the number of requests admitted": (
            "From the front, each takes its blocks from the free ones; stop at the first that does "
            "not fit, and admit at most `most`."
        ),
        "the queue itself": "Only count.",
        "your code raised": "The queue may be empty, and `most` may be more than it has.",
    },
)
