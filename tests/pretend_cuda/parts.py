"""What a pretended CUDA device is made of: its tensors, and what stands in for torch.cuda."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter
from types import SimpleNamespace

import torch
from torch import Tensor

from nanogpt.decoder import own_code, standard

CUDA = torch.device("cuda", 0)
NESTS = (list, tuple, dict)
# Besides elementwise operations, those beside whose tensors a single number may be on the CPU.
TAKE_A_NUMBER = {"fill_", "index_fill_", "index_fill", "_amp_update_scale_"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class CudaTensor(Tensor):
    """A tensor that says it is on cuda:0. `held` are its numbers, on the CPU.

    C++ takes it for a tensor of the CPU, and asks the machine's dispatch mode to compute.
    """

    @staticmethod
    def __new__(cls, held: Tensor):
        shape = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        return Tensor._make_wrapper_subclass(cls, held.size(), dtype=held.dtype, **shape)

    def __init__(self, held: Tensor):
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl
    device, is_cuda, is_cpu = (property(lambda _, x=x: x) for x in (CUDA, True, False))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} of a tensor on cuda, after the pretended device was left")

    def get_device(self) -> int:
        return 0

    def tolist(self) -> list:
        return self.cpu().tolist()

    def numpy(self, *_, **__):
        raise TypeError("can't convert cuda:0 device type tensor to numpy: use Tensor.cpu() first")

    def __format__(self, form: str) -> str:
        return format(self.cpu(), form)

    __array__ = data_ptr = numpy  # the host cannot use an address on the device

    def __deepcopy__(self, memo):
        copy = self.detach().clone().requires_grad_(self.requires_grad)
        copy.__dict__ |= {key: value for key, value in self.__dict__.items() if key != "held"}
        return memo.setdefault(id(self), copy)

    def __repr__(self, **_) -> str:
        return f"cuda:{self.cpu()!r}"


def inside(tree, found: list) -> list:
    """`found`, with every tensor in lists, tuples and dicts added to it."""
    for x in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, NESTS):
            inside(x, found)
    return found


def held(tree):
    """A list, tuple or dict with the numbers of the device's tensors in their place."""
    if isinstance(tree, dict):
        return {key: held([x])[0] for key, x in tree.items()}
    bare = [x.held if type(x) is CudaTensor else x for x in tree]
    bare = [held(x) if isinstance(x, NESTS) else x for x in bare]
    return tuple(bare) if isinstance(tree, tuple) else bare


class Moved(torch.autograd.Function):
    """A copy on the other device, through which gradients find their way back."""

    @staticmethod
    def forward(ctx, x, to_cuda: bool):
        ctx.to_cuda = to_cuda
        copy = held([x])[0].clone()
        return CudaTensor(copy) if to_cuda else copy

    @staticmethod
    def backward(ctx, grad):
        return Moved.apply(grad, not ctx.to_cuda), None


def is_cuda(device) -> bool:
    return device is not None and torch.device(device).type == "cuda"


@dataclass(frozen=True)
class Operation:
    """What the schema of one of torch's operations says about it."""

    name: str
    writes: bool
    is_view: bool
    reshapes: bool  # its argument, in place
    is_random: bool
    takes_a_number: bool

    @staticmethod
    @cache
    def of(func) -> Operation:
        schema = func._schema
        name = schema.name.removeprefix("aten::")
        shared = [r.alias_info for r in schema.returns]
        takes = torch.Tag.pointwise in func.tags or name in TAKE_A_NUMBER | INDEXED
        return Operation(
            name,
            schema.is_mutable,
            not schema.is_mutable and bool(shared) and all(shared),
            torch.Tag.inplace_view in func.tags,
            torch.Tag.nondeterministic_seeded in func.tags,
            takes or name.startswith(("_foreach", "_fused")),
        )


class Stream:
    def __init__(self, machine, *_, **__):
        self.machine = machine

    def wait_stream(self, _): ...

    def is_capturing(self) -> bool:
        return self.machine.graph is not None


class Event:
    """A mark in the queue; its time is known once the host has waited for it."""

    def __init__(self, machine, **_):
        self.machine = machine
        self.at = None
        self.place = None

    def record(self, *_) -> None:
        self.at = perf_counter()
        self.place = self.machine.launches

    def synchronize(self) -> None:
        if self.place > self.machine.finished:
            self.machine.wait("an event")

    def elapsed_time(self, other: Event) -> float:
        if max(self.place, other.place) > self.machine.finished:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return 1e3 * (other.at - self.at)


class Graph:
    """What was called while it was captured, and can be computed again, into the same memory."""

    def __init__(self, machine):
        self.machine = machine
        self.steps = []
        self.before = {}

    def keep_written(self, func, args, kwargs) -> None:
        """Note what this operation will write: a capture computes nothing, so it is put back."""
        named = zip(func._schema.arguments, args, strict=False)
        found = [x for argument, x in named if argument.is_write]
        found += [kwargs.get(a.name) for a in func._schema.arguments if a.is_write]
        for x in inside(found, []):
            memory = x.untyped_storage()
            if memory.data_ptr() not in self.before:
                self.before[memory.data_ptr()] = memory, memory.clone()

    @contextmanager
    def captured(self):
        self.machine.graph = self
        try:
            yield
        finally:
            self.machine.graph = None
            for memory, before in self.before.values():
                memory.copy_(before)

    def replay(self) -> None:
        self.machine.launches += 1
        for func, args, kwargs, out in self.steps:
            again = func(*args, **kwargs)
            if out is not None:
                for mine, new in zip(inside([out], []), inside([again], []), strict=True):
                    mine.copy_(new)


def stand_ins(machine) -> Iterator[tuple[object, dict]]:
    """What is put in the place of torch's own, and where: (object, {name: value}) pairs."""
    autocast = torch.autocast
    grouped = torch._C._group_tensors_by_device_and_dtype

    def by_device(lists, *more):
        found = grouped(lists, *more)
        if not isinstance(next(x for x in lists[0] if x is not None), CudaTensor):
            return found
        return {(CUDA, dtype): group for (_, dtype), group in found.items()}

    def autocast_here(kind, **how):  # with the CPU's list of operations
        return autocast("cpu" if kind == "cuda" else kind, **how)

    kinds = [Tensor, torch.nn.Parameter, CudaTensor]
    # What would be compiled is run as it is: Triton writes kernels for a real GPU only.
    yield torch, {"autocast": autocast_here, "compile": lambda function, **_: function}
    yield torch._C, {"_group_tensors_by_device_and_dtype": by_device}
    yield sys.modules["torch.optim.optimizer"], {"_foreach_supported_types": kinds}
    for module in (standard, own_code):  # to the host no number is in memory, and all are plain
        yield module, {"WEIGHT_CLASSES": tuple(kinds), "in_memory": lambda tensor: True}
    yield torch.cuda, _about() | _queue(machine) | _random(machine.generator)
    yield torch.accelerator, _accelerator(machine)


def _about() -> dict:
    """Of torch.cuda: which devices there are, and what they can do."""
    facts = {"name": "Pretended GPU", "major": 9, "minor": 0, "multi_processor_count": 40}
    return {
        **dict.fromkeys(("_lazy_init", "set_device", "empty_cache"), lambda *_: None),
        "current_device": lambda: 0,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "device": nullcontext,
        "get_device_name": lambda *_: facts["name"],
        "get_device_properties": lambda *_: SimpleNamespace(**facts),
        "get_device_capability": lambda *_: (9, 0),
        "mem_get_info": lambda *_: (8 << 30, 16 << 30),  # bytes: free, of all
        "is_bf16_supported": lambda including_emulation=True: True,
    }


def _queue(machine) -> dict:
    """Of torch.cuda: streams, events, graphs, and the wait for all of them."""
    return {
        "synchronize": lambda *_: machine.synchronize(),
        "Stream": partial(Stream, machine),
        "Event": lambda *_, **how: Event(machine, **how),
        "stream": nullcontext,
        "current_stream": partial(Stream, machine),
        "CUDAGraph": lambda: Graph(machine),
        "graph": lambda graph, *_, **__: graph.captured(),
        "is_current_stream_capturing": lambda: machine.graph is not None,
    }


def _accelerator(machine) -> dict:
    """Of torch.accelerator: what the optimizers ask since torch 2.13, in a CUDA build of it."""
    return {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_stream": partial(Stream, machine),
    }


def _random(generator: torch.Generator) -> dict:
    """Of torch.cuda: the random state of the device."""
    return {
        "get_rng_state": lambda *_: generator.get_state(),
        "set_rng_state": lambda state, *_: generator.set_state(state),
        "manual_seed": generator.manual_seed,
        "manual_seed_all": generator.manual_seed,
    }
