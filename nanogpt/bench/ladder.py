"""The ladder: every engine on the same tokens, interleaved, compared with the machine's limits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypedDict

import torch
from torch import Tensor

from ..config import check_int
from ..decoder.config import DecoderConfig, beyond_lecture
from ..decoder.model import Decoder
from ..decoder.pack import as_decoder
from ..decoder.standard import check_standard
from ..engines.base import Engine
from ..engines.compiled import Compiled, Graph, GraphLoop
from ..engines.eager import Batched, Flat, PerHead, Uncached, as_heads
from ..engines.generation import complete
from ..engines.native import Native, Native8
from ..engines.toolchain import CannotBuild
from ..model import GPT, LanguageModel
from ..sampling import draw_noise
from ..timing import Summary, summary
from .roofline import Breakdown, Limits, LimitsData, breakdown, work
from .tables import time_interleaved

Peer = Callable[[Tensor], Tensor]  # noise (n, V) -> the n tokens sampled after token 0


@dataclass(frozen=True)
class Rung:
    """One rung of the ladder: an engine, and the inputs to its roofline."""

    number: str
    label: str
    engine: type[Engine] | None  # None: a peer
    itemsize: int | None = None  # bytes per weight; None: the model's dtype


class RungRow(TypedDict, total=False):
    """One rung's result: why it is unavailable, or how fast it is."""

    rung: str
    label: str
    unavailable: str
    build_seconds: float  # to build its engine, unless one was reused
    tokens_per_second: Summary
    speedup: Summary  # the ratio to the first rung, pair by pair
    equal: bool  # whether its tokens equal the first rung's
    split: Breakdown


class Best(TypedDict):
    """Our fastest rung with unquantized weights and equal tokens."""

    rung: str
    share_of_bound: Summary


class LadderResult(TypedDict):
    """The result of `ladder` as plain data."""

    n_params: int
    n_new: int
    repeats: int
    limits: LimitsData
    rungs: list[RungRow]
    best: Best | None


EAGER = (
    Rung("1", "per-Head, no cache", Uncached),
    Rung("2", "per-Head, cache by torch.cat", PerHead),
    Rung("3", "batched heads, torch.cat", Batched),
    Rung("4", "flat step, eager", Flat),
)
BUILT = {
    "cpu": (
        Rung("5", "compiled step", Compiled),
        Rung("6", "native loop", Native),
        Rung("7", "native loop, 8-bit weights", Native8, itemsize=1),
    ),
    "cuda": (
        Rung("5", "CUDA graph of a step", Graph),
        Rung("6", "CUDA graph of 16 steps", GraphLoop),
    ),
}


def rungs(device: torch.device) -> tuple[Rung, ...]:
    """The ladder on this kind of device, slowest first."""
    return EAGER + BUILT["cuda" if device.type == "cuda" else "cpu"]


def ladder(
    model: LanguageModel,
    *,
    n_new: int = 255,
    repeats: int = 5,
    seed: int = 42,
    only: str | None = None,
    peers: dict[str, Peer] | None = None,
) -> LadderResult:
    """Time every rung on this model: batch 1, a prompt of one token, n_new sampled tokens.

    The rungs and the `peers` are interleaved, repeat by repeat, after one warm-up each. The time
    includes noise and checks. `only` selects rungs, for example "1356". The machine's limits are
    measured between the turns. Raises ValueError.
    """
    check_int("n_new", n_new, 2, model.config.block_size)
    packed = as_decoder(model.eval())
    heads = model if isinstance(model, GPT) else as_heads(packed)
    limits = Limits(model, n_new)
    built: dict[Rung, RungRow] = {}
    runs: dict[Rung, Callable[[], Tensor]] = {}
    for rung in chosen_rungs(limits.device, only):
        if rung.engine is None:
            continue
        engine, built[rung] = build_engine(rung.engine, model)
        if engine:
            form = heads if rung.engine in (Uncached, PerHead) else packed
            runs[rung] = _generation(form, n_new, seed, engine)
    if not runs:
        reason = next(iter(built.values()))["unavailable"]
        raise ValueError(f"nothing to time: rungs {only} cannot be built here ({reason})")
    for label, decode in (peers or {}).items():
        rung = Rung("–", label, None)
        built[rung] = {}
        runs[rung] = _peer_generation(model, n_new, seed, decode)
    seconds, tokens = time_interleaved(runs, repeats, limits.device, limits.measure)
    base = next(iter(runs))
    equal = {rung: torch.equal(text, tokens[base]) for rung, text in tokens.items()}
    bounds = limits.as_dict()
    rows = []
    for rung, how in built.items():
        row: RungRow = {"rung": rung.number, "label": rung.label, **how}
        if rung in seconds:
            turns = seconds[rung]
            row["tokens_per_second"] = summary(n_new / s for s in turns)
            pairs = zip(seconds[base], turns, strict=True)
            row["speedup"] = summary(a / b for a, b in pairs)
            row["equal"] = equal[rung]
            row["split"] = _split(model, rung, median(turns) / n_new, n_new, bounds)
        rows.append(row)
    same = {rung: turns for rung, turns in seconds.items() if equal[rung]}
    return {
        "n_params": model.n_params,
        "n_new": n_new,
        "repeats": repeats,
        "limits": bounds,
        "rungs": rows,
        "best": _best(same, n_new, limits),
    }


def chosen_rungs(device: torch.device, only: str | None) -> list[Rung]:
    """The rungs selected by `only`, for example "1356"; None: all. Raises ValueError."""
    known = {rung.number: rung for rung in rungs(device)}
    if only is not None and (not only or set(only) - set(known)):
        raise ValueError(
            f"there are no rungs {only}: choose from {''.join(known)}, for example 1356"
        )
    return [rung for number, rung in known.items() if only is None or number in only]


def build_engine(
    kind: type[Engine], model: LanguageModel, capacity: int | None = None
) -> tuple[Engine | None, RungRow]:
    """Build an engine of this class. Returns it with its build time, or None with the reason.

    `capacity` is the maximum number of tokens in a text; None: block_size.
    """
    weight = model.lm_head.weight
    refusal = kind.refuses(model.config)
    if refusal:
        return None, {"unavailable": str(refusal)}
    try:
        engine = kind(model.config, capacity=capacity, dtype=weight.dtype, device=weight.device)
    except CannotBuild as error:
        return None, {"unavailable": str(error)}
    return engine, {"build_seconds": engine.build_seconds}


def sharpened(model: GPT | Decoder) -> GPT | Decoder:
    """Scale up the matrices in place, so that even an untrained model's output is not uniform."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(4)
    return model


def _generation(
    model: LanguageModel, n_new: int, seed: int, engine: Engine
) -> Callable[[], Tensor]:
    """One generation by an engine, from a prompt of one token."""
    prompt = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    generator = torch.Generator()

    def run() -> Tensor:
        generator.manual_seed(seed)
        return complete(model, prompt, n_new, engine=engine, generator=generator)

    return run


def _peer_generation(
    model: LanguageModel, n_new: int, seed: int, peer: Peer
) -> Callable[[], Tensor]:
    """One generation by another program; sampling its noise is timed, as for an engine."""
    prompt = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    generator = torch.Generator()

    def run() -> Tensor:
        generator.manual_seed(seed)
        noise = draw_noise(n_new, 1, model.config.vocab_size, generator).to(prompt.device)
        return torch.cat([prompt, peer(noise[:, 0])[None]], dim=1)

    return run


def _split(
    model: LanguageModel, rung: Rung, seconds: float, n_new: int, limits: LimitsData
) -> Breakdown:
    itemsize = model.lm_head.weight.element_size()
    need = work(
        model.config,
        n_new,
        cached=rung.engine is not Uncached,
        itemsize=rung.itemsize or itemsize,
        kv_itemsize=itemsize,
    )
    return breakdown(seconds, need, limits["read"]["median"], limits["peak"]["median"])


def _best(seconds: dict[Rung, list[float]], n_new: int, limits: Limits) -> Best | None:
    """Our fastest unquantized rung, and its share of the roofline bound, turn by turn."""
    full = [rung for rung in seconds if rung.engine and rung.itemsize is None]
    if not full:
        return None
    best = min(full, key=lambda rung: median(seconds[rung]))
    pairs = zip(seconds[best], limits.bounds(), strict=True)
    return {"rung": best.number, "share_of_bound": summary(n_new / s / b for s, b in pairs)}


# ------------------------------------------------------------------ other programs
# They decode our weights with our noise, argmax(probs / noise), so that their tokens can be
# compared with ours. Float32 on the CPU.

JaxArray = Any  # a jax.Array: jax is an optional dependency
JaxWeights = dict[str, JaxArray]


def jax_scan(model: Decoder) -> dict[str, Peer]:
    """The whole loop in one `lax.scan` over a static cache, compiled on the first call.

    `model` is a Decoder with the lecture's architecture. XLA uses one thread if torch does, unless
    JAX has already run. Raises ImportError without jax, ValueError for another architecture.
    """
    if torch.get_num_threads() == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    import jax

    check_standard(model)
    extras = beyond_lecture(model.config)
    if extras:
        raise ValueError(
            f"--peer jax supports only the lecture's architecture, and this model has {extras}"
        )
    weights = {name: jax.dlpack.from_dlpack(w.detach()) for name, w in model.state_dict().items()}
    loop = jax.jit(partial(_loop, model.config))

    def decode(noise: Tensor) -> Tensor:
        return torch.tensor(jax.device_get(loop(weights, jax.dlpack.from_dlpack(noise)))).long()

    return {"JAX, the loop in lax.scan": decode}


def _loop(c: DecoderConfig, w: JaxWeights, noise: JaxArray) -> JaxArray:
    """The n tokens, traced by JAX.  (n, V) -> (n,)"""
    from jax import lax, nn
    from jax import numpy as jnp

    positions = jnp.arange(len(noise))

    def step(carry: tuple[Any, Any], now: tuple[Any, Any]) -> tuple[Any, Any]:
        token, caches = carry
        pos, noise_row = now
        longer = []  # the caches with this token
        x = w["token_embedding_table.weight"][token] + w["position_embedding_table.weight"][pos]
        for i, (keys, values) in enumerate(caches):
            at = f"blocks.{i}"
            qkv = _linear(w, f"{at}.sa.qkv", _norm(w, f"{at}.ln1", x))
            q, k, v = qkv.reshape(3, c.n_head, c.head_size)
            keys = keys.at[:, pos].set(k)  # (H, n, hs)
            values = values.at[:, pos].set(v)
            longer.append((keys, values))
            scores = jnp.einsum("hd,htd->ht", q, keys) * c.head_size**-0.5
            shares = nn.softmax(jnp.where(positions <= pos, scores, -jnp.inf))
            mixed = jnp.einsum("ht,htd->hd", shares, values)
            x = x + _linear(w, f"{at}.sa.proj", mixed.reshape(-1))
            inner = nn.relu(_linear(w, f"{at}.ffwd.up", _norm(w, f"{at}.ln2", x)))
            x = x + _linear(w, f"{at}.ffwd.down", inner)
        probs = nn.softmax(_linear(w, "lm_head", _norm(w, "ln_f", x)))
        token = jnp.argmax(probs / noise_row)
        return (token, longer), token

    cache = jnp.zeros((c.n_head, len(noise), c.head_size))
    return lax.scan(step, (0, [(cache, cache)] * c.n_layer), (positions, noise))[1]


def _linear(w: JaxWeights, name: str, x: JaxArray) -> JaxArray:
    return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0.0)


def _norm(w: JaxWeights, name: str, x: JaxArray) -> JaxArray:
    x = x - x.mean()
    return x / ((x * x).mean() + 1e-5) ** 0.5 * w[f"{name}.weight"] + w[f"{name}.bias"]


def hugging_face(exported: tuple[dict[str, Any], dict[str, Tensor]]) -> dict[str, Peer]:
    """Peers that run these weights in transformers.

    `exported` is a config and tensors from the export. Raises ImportError without transformers.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config, weights = exported
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    theirs.load_state_dict(weights)
    return peers_of(theirs.eval())


def peers_of(theirs: Any) -> dict[str, Peer]:
    """transformers' `generate` with its dynamic and static cache; a logits processor adds noise."""
    prompt = torch.zeros(1, 1, dtype=torch.int64)

    def decode(noise: Tensor, **cache: str) -> Tensor:
        def race(tokens: Tensor, logits: Tensor) -> Tensor:
            return logits.softmax(-1) / noise[tokens.shape[1] - 1]

        text: Tensor = theirs.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=len(noise),
            logits_processor=[race],
            **cache,
        )
        return text[0, 1:]

    return {
        "Hugging Face, dynamic cache": decode,
        "Hugging Face, static cache": partial(decode, cache_implementation="static"),
    }
