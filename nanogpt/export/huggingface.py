"""Our architectures as models that Hugging Face's transformers has: a config, and named tensors.

The lecture's is OPT (Zhang et al. 2022, arXiv 2205.01068) with zero biases for queries, keys and
values. That of the recipe `sprint` is NanoChat, Karpathy's later model, whose
rotation turns the other way. Nothing here needs transformers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..config.shapes import GPTConfig
from ..model.convert import check_standard, convert_state
from ..model.gpt import GPT

SPRINT = {"rms_norm": True, "rope": True, "qk_norm": True, "relu2": True, "bias": False}
RESIDUAL = 1e-9  # of a fold that is exact but for rounding, in float64

Exported = tuple[dict, dict[str, Tensor]]


class ExportError(ValueError):
    """A model or a folder that cannot be used; the message names what is in the way."""


def form_of(config: GPTConfig) -> Callable[[dict, GPTConfig], Exported]:
    """`opt` or `nanochat`, whichever holds this shape. Raises ExportError naming what has none."""
    more = config.beyond_lecture
    free = {name: x for name, x in more.items() if name not in {*SPRINT, "rope_base", "n_kv_head"}}
    if not more:
        return opt
    if not free and all(getattr(config, name) == value for name, value in SPRINT.items()):
        return nanochat
    fields = ", ".join(f"{name}={value}" for name, value in (free or more).items())
    raise ExportError(
        f"{fields}: no form of this export has it. The lecture's architecture can be exported, "
        f"and that of the recipe `sprint`"
    )


def exported(model: GPT) -> Exported:
    """config.json and the tensors, float32 on the CPU. Raises ExportError for what has no form."""
    check_standard(model)
    form = form_of(model.config)
    state = {name: w.detach().cpu().float() for name, w in model.state_dict().items()}
    if model.config.per_head:
        state = convert_state(state, model.config, per_head=False)
    if form is opt:
        d = fold_head_bias(state["lm_head.weight"], state["lm_head.bias"])
        state["ln_f.bias"] = (state["ln_f.bias"] + d).float()
    config, tensors = form(state, model.config)
    config |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config |= {"tie_word_embeddings": False, "dtype": "float32"}
    return config, {name: w.contiguous().clone() for name, w in tensors.items()}


def fold_head_bias(weight: Tensor, bias: Tensor) -> Tensor:
    """The vector d by which a bias of the head moves into the norm before it.  (V, C), (V,) -> (C,)

    OPT has no bias in its head. The head's input is norm(x) · g + b, so W d is
    added to the logits when d is added to b. Softmax does not see a constant, so W d = bias + λ1 is
    enough. That has a solution for any bias where V <= C + 1. Raises ExportError where there is
    none but for rounding. float64.
    """
    (V, C), wanted = weight.shape, bias.double()
    system = torch.cat([weight.double(), -torch.ones(V, 1, dtype=torch.float64)], dim=1)
    found = torch.linalg.lstsq(system, wanted[:, None], driver="gelsd").solution[:, 0]
    apart = float((system @ found - wanted).abs().max())
    if apart > RESIDUAL * max(1.0, float(found.abs().max())):
        raise ExportError(
            f"the head's bias does not move into the last norm: logits would be {apart:.2g} off. "
            f"That works up to a vocabulary of width + 1 = {C + 1}, and this one has {V}"
        )
    return found[:C]


def _norm(ours: str, theirs: str, state: dict) -> dict[str, Tensor]:
    return {f"{theirs}.{part}": state[f"{ours}.{part}"] for part in ("weight", "bias")}


def opt(state: dict, c: GPTConfig) -> Exported:
    """OPTForCausalLM. Its table of positions begins with two rows that no token uses."""
    table, top = state["position_embedding_table.weight"], "model.decoder"
    out = {
        f"{top}.embed_tokens.weight": state["token_embedding_table.weight"],
        f"{top}.embed_positions.weight": torch.cat([torch.zeros(2, c.n_embd), table]),
        "lm_head.weight": state["lm_head.weight"],
        **_norm("ln_f", f"{top}.final_layer_norm", state),
    }
    for i in range(c.n_layer):
        ours, theirs = f"blocks.{i}", f"{top}.layers.{i}"
        for name, rows in zip("qkv", state[f"{ours}.sa.qkv.weight"].chunk(3), strict=True):
            out[f"{theirs}.self_attn.{name}_proj.weight"] = rows
            out[f"{theirs}.self_attn.{name}_proj.bias"] = torch.zeros(c.n_embd)
        out |= _norm(f"{ours}.sa.proj", f"{theirs}.self_attn.out_proj", state)
        out |= _norm(f"{ours}.ln1", f"{theirs}.self_attn_layer_norm", state)
        out |= _norm(f"{ours}.ln2", f"{theirs}.final_layer_norm", state)
        out |= _norm(f"{ours}.ffwd.net.0", f"{theirs}.fc1", state)
        out |= _norm(f"{ours}.ffwd.net.2", f"{theirs}.fc2", state)
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": c.vocab_size,
        "hidden_size": c.n_embd,
        "num_hidden_layers": c.n_layer,
        "num_attention_heads": c.n_head,
        "ffn_dim": 4 * c.n_embd,
        "max_position_embeddings": c.block_size,
        "dropout": 0.0,
    }, out


def nanochat(state: dict, c: GPTConfig) -> Exported:
    """NanoChatForCausalLM, without its soft cap on logits.

    It rotates by -θ where we rotate by θ. The second coordinate of each point, negated in queries
    and keys alike, turns one into the other.
    """
    half = c.head_size // 2
    flip = torch.cat([torch.ones(half), -torch.ones(half)])
    heads = (c.n_head, c.kv_heads, c.kv_heads)
    out = {
        "model.embed_tokens.weight": state["token_embedding_table.weight"],
        "lm_head.weight": state["lm_head.weight"],
    }
    for i in range(c.n_layer):
        ours, theirs = f"blocks.{i}", f"model.layers.{i}"
        parts = state[f"{ours}.sa.qkv.weight"].split([n * c.head_size for n in heads])
        for name, rows, n in zip("qkv", parts, heads, strict=True):
            signs = flip.repeat(n)[:, None] if name != "v" else 1.0
            out[f"{theirs}.self_attn.{name}_proj.weight"] = rows * signs
        out[f"{theirs}.self_attn.o_proj.weight"] = state[f"{ours}.sa.proj.weight"]
        out[f"{theirs}.mlp.fc1.weight"] = state[f"{ours}.ffwd.net.0.weight"]
        out[f"{theirs}.mlp.fc2.weight"] = state[f"{ours}.ffwd.net.2.weight"]
    return {
        "architectures": ["NanoChatForCausalLM"],
        "model_type": "nanochat",
        "vocab_size": c.vocab_size,
        "hidden_size": c.n_embd,
        "intermediate_size": 4 * c.n_embd,
        "num_hidden_layers": c.n_layer,
        "num_attention_heads": c.n_head,
        "num_key_value_heads": c.kv_heads,
        "max_position_embeddings": c.block_size,
        "rms_norm_eps": torch.finfo(torch.float32).eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_base},
        "final_logit_softcapping": None,
    }, out
