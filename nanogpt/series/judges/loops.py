"""The judges of sample and generate_with_cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ...config import GPTConfig
from ...generation import complete
from ...model import GPT
from ...sampling import draw_noise
from .common import Objection, drawn, need, objects, shape_of, untouched

# ------------------------------------------------------------------ sample


@objects
def sample(answer) -> None:
    """The winner of probability / noise in each row, whatever the logits and their number."""
    _check_three(answer)
    _check_shares(answer)
    for number, (B, V, size, shift) in enumerate(
        [
            (5, 65, 1, 0),
            (40, 65, 0.2, 0),
            (7, 300, 4, 0),
            (3, 17, 1, 900),
            (6, 65, 12, -900),
            (2, 3000, 0.3, 0),
        ]
    ):
        for dtype in (torch.float32, torch.float64):
            logits = size * drawn(B, V, seed=number, dtype=dtype)
            logits += shift * torch.arange(1, B + 1)[:, None]  # each row at a level of its own
            noise = draw_noise(50, B, V, torch.Generator().manual_seed(number)).to(dtype)
            for row in noise[: 50 if dtype == torch.float32 else 5]:
                _check_race(answer, logits, row)


def _check_three(answer) -> None:
    """One row of three candidates, and mistakes in the form of the answer."""
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    noise = torch.tensor([[1.0, 0.2, 9.0]])
    token = untouched(answer, logits=logits, noise=noise)
    need(
        isinstance(token, Tensor) and token.shape == (1, 1),
        "each row needs one token, as a tensor (B, 1); for one row of three yours is "
        f"{shape_of(token)}.",
    )
    need(
        not token.is_floating_point(),
        f"a token is an integer, the index that argmax gives; yours is {token.dtype}.",
    )
    need(
        not any(answer(logits, noise) != token for _ in range(20)),
        "the same noise gave two tokens: it draws numbers of its own.",
    )
    unused = answer(logits, torch.tensor([[9.0, 9.0, 0.01]])) == token
    need(not unused or token == 2, "another noise gave the same token: is the noise used?")
    need(
        token != 2,
        "with the noise 1.0, 0.2, 9.0 token 2 is the last: the largest probability / noise wins.",
    )


def _check_shares(answer) -> None:
    """How often each of three candidates wins."""
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    many = draw_noise(20_000, 1, 3, torch.Generator().manual_seed(0))[:, 0]  # (20000, 3)
    drawn_tokens = untouched(answer, logits=logits.repeat(20_000, 1), noise=many)
    need(
        drawn_tokens.shape == (20_000, 1),
        f"20,000 rows need (20000, 1) tokens; yours are {shape_of(drawn_tokens)}.",
    )
    share = [round((drawn_tokens == token).float().mean().item(), 2) for token in range(3)]
    need(
        max(share) < 1,
        f"of 20,000 draws all are token {drawn_tokens[0].item()}: is the noise used?",
    )
    need(min(share) > 0, f"of 20,000 draws token {share.index(min(share))} is never one: all race.")
    need(
        all(abs(a - b) < 0.02 for a, b in zip(share, (0.5, 0.3, 0.2), strict=True)),
        f"for the probabilities 0.5, 0.3 and 0.2 the shares of 20,000 draws are {share}: is it a "
        "softmax, and the noise as it comes?",
    )


def _check_race(answer, logits: Tensor, noise: Tensor) -> None:
    """Raise Objection where another token wins, and the race is not too close to call."""
    tokens = untouched(answer, logits=logits, noise=noise)
    race = logits.double().log_softmax(-1) - noise.double().log()
    two = race.topk(2).values
    clear = two[:, 0] - two[:, 1] > 1e-3
    wrong = (tokens != race.argmax(-1, keepdim=True))[:, 0] & clear
    if not wrong.any():
        return
    B, V = logits.shape
    row = int(wrong.nonzero()[0, 0])
    rank = int((logits[row] > logits[row, race[row].argmax()]).sum()) + 1
    case = f"of {B} rows of {V} candidates, row {row} is drawn wrong"
    if logits.abs().max() > 500:
        raise Objection(
            f"{case}: its logits are around {logits[row].mean():.0f}, and only their differences "
            "count. exp() of them overflows or is 0; softmax takes each row's own maximum out "
            "first."
        )
    raise Objection(
        f"{case}: the winner is number {rank} by its logit. All {V} race, each row with its own "
        "noise, as it comes, at temperature 1."
    )


# ------------------------------------------------------------------ generate_with_cache


class Loose:
    """A cache that takes any positions below its capacity, and counts how many are built."""

    built = 0

    def __init__(self, capacity):
        Loose.built += 1
        self.held = []
        self.capacity = capacity

    def update(self, *new):
        last = int(new[2].max())
        need(
            last < self.capacity,
            f"the caches are made for {self.capacity} tokens, and one at position {last} has to be "
            "read: kv_cache(model, cache) makes them for the whole block.",
        )
        self.held.append(new)
        k, v, pos = zip(*self.held, strict=True)
        return torch.cat(k, 1), torch.cat(v, 1), torch.cat(pos)


class Watched(GPT):
    """A GPT that notes the tokens that it reads."""

    def forward(self, idx, targets=None, pos=None):
        where = None if pos is None else pos.tolist()
        self.read.append((idx.clone(), where, self.caching, torch.is_grad_enabled()))
        return super().forward(idx, targets, pos)


def _watched(block_size: int) -> Watched:
    shape = {"vocab_size": 11, "block_size": block_size, "n_layer": 1, "n_head": 2, "n_embd": 8}
    model = Watched(GPTConfig(**shape)).eval()
    model.load_state_dict({name: 5 * tensor for name, tensor in model.state_dict().items()})
    model.read = []
    return model


# Texts, prompt, new tokens, block size.
TEXTS = [(1, 5, 4, 16), (3, 7, 12, 30), (2, 1, 20, 20), (1, 3, 238, 240)]


@objects
def generate_with_cache(answer) -> None:
    """The tokens of the plain pass, each token read once at its own position, to capacity."""
    for B, T, n, block_size in TEXTS:
        _check_text(answer, B, T, n, block_size)
    model = _watched(16)
    prompt, noise = _prompt_and_noise(1, 3, 8)
    steps = answer(model, prompt, noise, Loose)
    next(steps)
    read = sum(tokens.shape[1] for tokens, *_ in model.read)
    need(
        read == 3,
        f"before the first token is handed out the model reads {read} tokens, and the prompt has "
        "3: `yield` each token as soon as it is drawn, and read it after that.",
    )
    steps.close()
    need(
        not model.caching,
        "a reader who stops in the middle leaves the caches on: `with kv_cache(model, cache):` "
        "removes them.",
    )
    _check_past(answer)
    model.train()
    list(answer(model, prompt, noise, Loose))
    need(model.training, "the model came in training mode, and your loop left it in eval mode.")
    need(
        torch.is_grad_enabled(),
        "after your loop gradients are off for all code that follows: @torch.no_grad() above the "
        "function turns them on again.",
    )


def _check_past(answer) -> None:
    """More tokens than the block holds: an error, and no text that ends in silence."""
    model = _watched(16)
    prompt, noise = _prompt_and_noise(1, 3, 20)
    tokens: list[Tensor] = []
    try:
        tokens.extend(answer(model, prompt, noise, Loose))
    except Objection:
        raise
    except Exception:
        return
    raise Objection(
        f"a block of 16 holds 14 new tokens after a prompt of 3. Asked for 20, it hands out "
        f"{len(tokens)} and ends in silence: let the error of the model come through."
    )


def _prompt_and_noise(B: int, T: int, n: int) -> tuple[Tensor, Tensor]:
    prompt = torch.randint(11, (B, T), generator=torch.Generator().manual_seed(B + T))
    return prompt, draw_noise(n, B, 11, torch.Generator().manual_seed(n))


def _check_text(answer, B: int, T: int, n: int, block_size: int) -> None:
    """One prompt, its tokens, and the passes of the model for them."""
    model = _watched(block_size)
    prompt, noise = _prompt_and_noise(B, T, n)
    Loose.built = 0

    def collect(prompt, noise):
        steps = answer(model, prompt, noise, Loose)
        need(
            hasattr(steps, "__next__"),
            f"it returns {type(steps).__name__}: hand out each token with `yield`.",
        )
        return list(steps)

    case = f"for a prompt of {T} tokens"
    try:
        tokens = untouched(collect, prompt=prompt, noise=noise)
    except (ValueError, IndexError) as error:
        _check_read(model, prompt, n, case)
        if T + n - 1 < block_size:
            raise
        raise Objection(
            f"{case} and {n} new ones, which a block of {block_size} holds, it stops ({error}): "
            "is the last token read, which nobody needs?"
        ) from None
    _check_read(model, prompt, n, case)
    need(not model.training, "the model came in eval mode, and your loop left it in training mode.")
    _check_tokens(tokens, model, prompt, noise)


def _check_tokens(tokens: list, model: Watched, prompt: Tensor, noise: Tensor) -> None:
    """Raise Objection unless these are the tokens of the plain pass, and the caches are off."""
    B, T = prompt.shape
    n = len(noise)
    case = f"for a prompt of {T} tokens"
    need(
        Loose.built > 0,
        f"{case} another cache is built than the class that came in: kv_cache(model, cache).",
    )
    heads = model.config.n_head
    need(
        Loose.built <= heads,
        f"{case} {Loose.built} caches are built for {heads} heads: one with-block around all steps "
        "keeps what was read.",
    )
    shapes = {getattr(token, "shape", None) for token in tokens}
    need(
        len(tokens) == n and shapes == {(B, 1)},
        f"{n} rows of noise for {B} texts give {n} tokens of shape ({B}, 1); yours are "
        f"{len(tokens)}, of {_shapes(shapes)}.",
    )
    off = "`with kv_cache(model, cache):` removes them."
    need(not model.caching, f"the caches are still on after the last token: {off}")
    right = complete(model, prompt, n, noise=noise)[:, T:]
    wrong = (torch.cat(tokens, dim=1) != right).nonzero()
    if len(wrong):
        text, step = min(wrong.tolist(), key=lambda pair: pair[1])
        raise Objection(
            f"{case} and {B} texts, token {step} of text {text} is another one: the last logits, "
            "and the noise of that very step and text?"
        )


def _shapes(shapes: set) -> str:
    return ", ".join(str(tuple(x)) if x is not None else "no tensor" for x in shapes)


def _check_read(model: Watched, prompt: Tensor, n: int, case: str) -> None:
    """Raise Objection unless every token but the last was read once, at its own position."""
    T = prompt.shape[1]
    done = 0
    for step, seen in enumerate(model.read):
        done += _check_pass(seen, prompt, step, done, case)
    again = len(model.read) > 1 and torch.equal(model.read[1][0], prompt[:, -1:])
    need(
        not (again and done == T + n),
        f"{case} the second pass reads the prompt's last token again: that one is read already, "
        "and "
        "the prefill's own logits decide the first new token.",
    )
    need(
        done <= T + n - 1,
        f"{case} the model reads {done} tokens, where {T + n - 1} are enough: nobody needs the "
        "logits behind the last one.",
    )


def _check_pass(seen: tuple, prompt: Tensor, step: int, done: int, case: str) -> int:
    """Raise Objection unless a pass read the next tokens, where they stand.  -> how many"""
    tokens, where, caching, grad = seen
    T = prompt.shape[1]
    count = tokens.shape[1]
    need(
        caching,
        f"{case}, at step {step} no cache is on: put the loop into `with kv_cache(model, cache):`.",
    )
    need(
        done + count <= max(T, step + T),
        f"{case}, at step {step} the model reads {count} tokens; new to it is {max(1, T - done)}.",
    )
    right = [*range(done, done + count)]
    wrong = where if where is None or isinstance(where[0], int) else where[0]
    need(
        wrong == right,
        f"{case}, at step {step} it says {where}, and its tokens stand at {right}.",
    )
    again = done < T and not torch.equal(tokens[:, : T - done], prompt[:, done : done + count])
    need(
        not again,
        f"{case}, at step {step} the model reads other tokens than the prompt's next ones.",
    )
    need(
        not grad,
        f"{case}, at step {step} PyTorch records it for gradients: put @torch.no_grad() above "
        "the function.",
    )
    return count
