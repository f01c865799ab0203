"""The copy of a model's modules in which a generation runs."""

from collections import namedtuple

import pytest
import torch
from conftest import FORMS, has_cache, name, state_of, tiny_model, tokens
from torch import nn

from nanogpt.cache import DynamicCache, cache_owners, enable_kv_cache, kv_cache
from nanogpt.model import GPT
from nanogpt.replica import replica

Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_a_replica_shares_weights_and_has_its_own_mode_and_caches(per_head):
    model = tiny_model(per_head).train()
    enable_kv_cache(model)
    before = state_of(model)
    copied = replica(model)
    assert not any(module.training for module in copied.modules())
    assert not has_cache(copied)
    for mine, theirs in zip(copied.parameters(), model.parameters(), strict=True):
        assert mine is theirs
    assert not set(copied.modules()) & set(model.modules())
    enable_kv_cache(copied)
    copied.train()
    assert state_of(model) == before


def test_a_module_used_twice_becomes_two_with_a_cache_each():
    model = tiny_model()
    model.blocks[1] = model.blocks[0]
    copied = replica(model)
    assert copied.blocks[0] is not copied.blocks[1]
    assert len(cache_owners(copied)) == 2 * len(cache_owners(model))
    with pytest.raises(ValueError, match="used in two places"), kv_cache(model):
        pass


def run_kept(self, x, pos):
    """A block that reaches its attention through `kept`, which the test sets."""
    x = x + self.reach()(self.ln1(x), pos)
    return x + self.ffwd(self.ln2(x))


# Ways of keeping an unregistered reference that PyTorch users know: object.__setattr__ for a parent
# or a sibling, and a list around a module so that its parameters are not registered twice.
FOLLOWED = {
    "an attribute": (lambda sa: sa, lambda kept: kept),
    "a list": (lambda sa: [sa], lambda kept: kept[0]),
    "a tuple": (lambda sa: (sa,), lambda kept: kept[0]),
    "a dict": (lambda sa: {"sa": sa}, lambda kept: kept["sa"]),
}


@pytest.mark.parametrize("how", FOLLOWED)
def test_a_reference_in_a_plain_attribute_follows_to_the_copy(how):
    keep, reach = FOLLOWED[how]
    model = tiny_model()
    for block in model.blocks:
        block.__dict__["kept"] = keep(block.sa)
        forward = {"forward": run_kept, "reach": lambda self: reach(self.kept)}
        block.__class__ = type("Own", (type(block),), forward)
    copied = replica(model)
    for block in copied.blocks:
        assert reach(block.kept) is block.sa
    caches = enable_kv_cache(copied, DynamicCache)
    copied(tokens(1, 3), pos=torch.arange(3))
    assert [cache.length for cache in caches] == [3] * len(caches)


# The kinds that SUPPORT.md names.
REFUSED = {
    "a bound method": lambda sa: sa.forward,
    "a namedtuple": lambda sa: Pair(sa, None),
    "a closure": lambda sa: lambda x, pos: sa(x, pos),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_reference_that_a_copy_cannot_follow_is_refused_by_name(how):
    model = tiny_model()
    model.blocks[1].kept = REFUSED[how](model.blocks[1].sa)
    with pytest.raises(ValueError, match=r"^Block.kept is a \w+ that refers.*nn.ModuleList$"):
        replica(model)


def test_a_module_outside_the_model_is_kept():
    model = tiny_model()
    teacher = tiny_model()
    looped = []
    looped.append(looped)  # and a list that contains itself is no endless search
    model.kept = [teacher]
    model.looped = [looped]
    assert replica(model).kept == [teacher]


def test_a_compiled_model_is_copied_without_its_compiled_call():
    """Witness: model.compile(), which sets a call of the original."""
    model = tiny_model()
    model._compiled_call_impl = model._call_impl
    assert "_compiled_call_impl" not in vars(replica(model))


def test_a_forward_set_on_an_instance_is_refused():
    """Witness: accelerate sets one for its hooks."""
    model = tiny_model()
    model.blocks[0].sa.forward = model.blocks[0].sa.forward
    with pytest.raises(ValueError, match="has another forward, .*: define it in a class"):
        replica(model)


def test_a_replica_of_a_model_without_parts_and_with_an_empty_list():
    model = tiny_model()
    model.extra = nn.ModuleList()
    model.missing = None
    model.register_module("nothing", None)
    copied = replica(model)
    assert isinstance(copied, GPT)
    assert (len(copied.extra), copied.missing, copied.nothing) == (0, None, None)
