"""The beginner's forgotten nn.ModuleList: blocks in a plain list are refused by every cached path.

Witness: a learner's model whose text was wrong with a cache, without an error. Torch does not find
such blocks, so no cache would be switched on in them, and each step would see only its own token.
"""

import pytest
import torch
from conftest import name, tokens
from torch import nn

import nanogpt
from nanogpt.cache import kv_cache
from nanogpt.comparison import forced_logits
from nanogpt.config import GPTConfig
from nanogpt.model import GPT, Block
from nanogpt.serving.modules import ModuleBackend
from nanogpt.serving.native_steps import NativeBackend

CONFIG = GPTConfig(vocab_size=13, block_size=24, n_layer=2, n_head=2, n_embd=16)


class PlainBlocks(GPT):
    """A GPT as a beginner may write it."""

    def __init__(self):
        super().__init__(CONFIG)
        del self.blocks
        self.blocks = [Block(CONFIG) for _ in range(CONFIG.n_layer)]


def own_class():
    return PlainBlocks().eval()


def in_place():
    """The package's own class, changed after it was built."""
    model = GPT(CONFIG).eval()
    blocks = list(model.blocks)
    del model.blocks
    model.blocks = blocks
    return model


def heads():
    """The heads of one block in a plain list."""
    model = GPT(CONFIG).eval()
    attention = model.blocks[1].sa
    in_list = list(attention.heads)
    del attention.heads
    attention.heads = in_list
    return model


def by_generate(**way):
    """Generation, from a call to its last token."""

    def path(model):
        given = {key: x() if key == "draft" else x for key, x in way.items()}
        list(nanogpt.generate(model, tokens(1, 5), 4, **given))

    return path


def by_hand(model):
    with kv_cache(model, nanogpt.StaticCache):
        pass


def in_exact_mode(model):
    with nanogpt.exact(model), kv_cache(model):
        pass


def by_backend(backend):
    def path(model):
        request = nanogpt.Request(tokens(5), 4)
        list(nanogpt.serve(model, [request], backend=backend))

    return path


def as_a_draft(engine=None):
    def path(model):
        draft = nanogpt.DraftModel(model, k=2, engine=engine)
        target = GPT(CONFIG).eval()
        list(nanogpt.generate(target, tokens(1, 5), 4, draft=draft, engine=engine))

    return path


CACHES = [nanogpt.DynamicCache, nanogpt.StaticCache, nanogpt.RollingCache, nanogpt.PagedCache]
CACHES += [nanogpt.Int8Cache]
ENGINES = [nanogpt.Batched, nanogpt.Flat, nanogpt.Compiled, nanogpt.Native]
MODELS = [own_class, in_place, heads]
OWN_CODE = {  # paths that run the model's own modules
    "kv_cache": by_hand,
    "exact mode": in_exact_mode,
    "compare": lambda model: nanogpt.compare(model, tokens(1, 5), 4, None, nanogpt.DynamicCache),
    "forced logits": lambda model: forced_logits(model, tokens(1, 9), 5, nanogpt.DynamicCache),
    "referee": nanogpt.referee,
    "serve": by_backend(ModuleBackend),
    "prompt lookup": by_generate(draft=nanogpt.PromptLookup),
    "a draft": as_a_draft(),
    "a sliding window": by_generate(past_block="slide"),
    "PerHead": by_generate(engine=nanogpt.PerHead),
    **{cache.__name__: by_generate(cache=cache) for cache in CACHES},
}
PACKED = {  # paths that read the weights of the package's own classes
    "serve natively": by_backend(NativeBackend),
    "a draft of Native": as_a_draft(engine=nanogpt.Native),
    **{engine.__name__: by_generate(engine=engine) for engine in ENGINES},
}


@pytest.mark.parametrize("model", MODELS, ids=name)
@pytest.mark.parametrize("path", OWN_CODE)
def test_attention_in_a_plain_list_is_refused_with_the_cure(path, model):
    with pytest.raises(ValueError, match="use nn.ModuleList instead of a plain list$"):
        OWN_CODE[path](model())


@pytest.mark.parametrize("model", MODELS, ids=name)
@pytest.mark.parametrize("path", PACKED)
def test_a_packed_path_refuses_a_model_of_other_modules(path, model):
    with pytest.raises(ValueError, match="this model has|nn.ModuleList") as refused:
        PACKED[path](model())
    assert "\n" not in str(refused.value)


def test_a_model_without_blocks_is_refused():
    model = GPT(CONFIG).eval()
    model.blocks = nn.ModuleList()
    with pytest.raises(ValueError, match="no module of this GPT has a `cache`"), kv_cache(model):
        pass


def test_blocks_in_a_plain_list_run_without_a_cache():
    model = own_class()
    registered = GPT(CONFIG).eval()
    for mine, theirs in zip(model.blocks, registered.blocks, strict=True):
        mine.eval().load_state_dict(theirs.state_dict())
    found = nanogpt.complete(model, tokens(1, 5), 4, cache=None)
    assert torch.equal(found, nanogpt.complete(registered, tokens(1, 5), 4))
