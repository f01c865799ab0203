"""A CUDA device that is not there: its numbers lie on the CPU, and CUDA's rules are kept.

    with PretendCuda() as gpu:
        model = GPT(config).to("cuda")
        complete(model, prompt.to("cuda"), 9)
    gpu.waits  # a Counter: what the host waited for, and in which line

What it shows:
- tensors of two devices in one operation are an error, except for what CUDA allows: a single number
  beside elementwise operations, an index on the CPU into a tensor on the device;
- a CPU generator for an operation on the device is an error, and the device has a random state of
  its own;
- the host cannot look into the device's memory: no numpy(), no data_ptr();
- each wait of the host for the device is counted: a number that is looked at, a copy from or to
  memory that is not pinned, a mask used as an index, synchronize() where work is queued;
- while a graph is captured nothing is computed and each wait is an error; a replay computes from
  what the memory holds by then, in place;
- the time of an event that the host has not waited for is an error.

What it cannot show: kernels, and what they lack or round; numerics, TF32 and CUDA's own list for
autocast; speed and memory; asserts on the device; the order of streams; random numbers in a graph
(an error here); several devices; torch.compile.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import torch
import torch._dynamo  # it looks at torch.cuda when it is loaded, and must see the real one
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from .parts import CUDA, INDEXED, CudaTensor, Moved, Operation, held, inside, is_cuda, stand_ins

MADE_OF_VALUES = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor}
# They make a new tensor of tensors, and no more: C++ need not ask back in between.
QUICK = {F.linear, F.layer_norm, F.embedding, F.relu, F.scaled_dot_product_attention, torch.cat}
QUICK |= {Tensor.add, Tensor.sub, Tensor.mul, Tensor.div, Tensor.ge, Tensor.softmax, Tensor.argmax}
# They compute nothing.
QUIET = {torch._C._set_grad_enabled, Tensor.is_floating_point, Tensor.dim, Tensor.__len__}
MOVES = {Tensor.to, Tensor.cuda, Tensor.cpu}
BACKWARD = {Tensor.backward, torch.autograd.backward, torch.autograd.grad}  # goes where it goes
ASKED = {*MOVES, *BACKWARD, Tensor.pin_memory, torch._C._nn._parse_to}  # of any tensor
# Operations after which the host knows a number, or how many numbers there are.
LOOKS = {"_local_scalar_dense", "equal", "nonzero", "bincount", "masked_select", "_unique2"}


class PretendCuda(TorchDispatchMode):
    """The device, for the length of a with-block."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator()
        self.waits = Counter()  # of (for what, in which line)
        self.launches = self.finished = 0  # what was queued, a graph as one; what surely is done
        self.graph = None  # that is being captured
        self.makes_here = False  # whether a tensor that C++ makes now is the device's

    def __enter__(self):
        self.stack = ExitStack()
        for target, replaced in stand_ins(self):
            for name, value in replaced.items():
                self.stack.enter_context(patch.object(target, name, value))
        swap = torch.__future__.set_swap_module_params_on_conversion
        swap(True)  # a wrapper cannot be put behind the .data of a parameter
        self.stack.callback(swap, False)
        self.stack.enter_context(Requests(self))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.stack.close()

    def call(self, makes_here: bool, func, args, kwargs):
        """func(…), in which what C++ makes without being told where is the device's, or not."""
        before = self.makes_here
        self.makes_here = makes_here
        try:
            return func(*args, **kwargs)
        finally:
            self.makes_here = before

    def wait(self, what: str) -> None:
        """The host waits until the queue is empty: RuntimeError while a graph is captured."""
        if self.graph is not None:
            raise RuntimeError(f"CUDA error: not permitted when stream is capturing ({what})")
        self.waits[what, _line_of_caller()] += 1
        self.finished = self.launches

    def synchronize(self) -> None:
        """Wait, unless there is nothing to wait for."""
        if self.launches > self.finished or self.graph is not None:
            self.wait("synchronize")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = inside(kwargs, inside(args, []))
        ours = {id(x.held): x for x in tensors if type(x) is CudaTensor}
        asked = is_cuda(kwargs.get("device")) and len(ours) == len(tensors)
        if asked:  # by code that another dispatch mode runs: Requests did not hear of it
            kwargs["device"] = torch.device("cpu")
        if not ours and not asked and (tensors or not self.makes_here):
            return func(*args, **kwargs)
        what = Operation.of(func)
        self._check(func, what, args, kwargs, tensors)
        out = self._computed(func, what, held(args), held(kwargs))
        if what.reshapes:
            with torch._C._DisableTorchDispatch():
                func(*args, **kwargs)  # what C++ knows of the tensor's shape, too
        if what.name == "copy_" and not isinstance(args[0], CudaTensor):
            return out
        # In inference mode a view of an ordinary tensor is an ordinary one; all that is new is not.
        if not what.is_view:
            return _wrapped(out, ours)
        with torch.inference_mode(next(iter(ours.values())).is_inference()):
            return _wrapped(out, ours)

    def _computed(self, func, what: Operation, args: tuple, kwargs: dict):
        """The operation on the numbers themselves, noted where a graph is captured."""
        if self.graph is not None:
            self.graph.keep_written(func, args, kwargs)
        with self._own_random_state() if what.is_random else nullcontext():
            out = func(*args, **kwargs)
        if self.graph is None:
            self.launches += not what.is_view
        elif not what.is_view:
            self.graph.steps.append((func, args, kwargs, None if what.writes else out))
        return out

    def _check(self, func, what: Operation, args, kwargs, tensors: list) -> None:
        """What CUDA would refuse, and where the host would wait."""
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != "cuda":
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        on_cpu = [x for x in tensors if not isinstance(x, CudaTensor)]
        if what.name == "copy_":
            free = len(args) > 2 and args[2] and getattr(args[1], "pinned", not on_cpu)
            if on_cpu and not free:
                self.wait(f"a copy {'from' if isinstance(args[0], CudaTensor) else 'to'} the CPU")
            return
        if what.name in INDEXED:
            on_cpu = self._check_index(args[0], args[1], on_cpu)
        if any(x.dim() or not what.takes_a_number for x in on_cpu):
            shapes = ", ".join(str(tuple(x.shape)) for x in on_cpu)
            raise RuntimeError(f"at least two devices, cuda:0 and cpu! ({func}, {shapes} on cpu)")
        if what.name in LOOKS:
            self.wait("a number" if what.name == "_local_scalar_dense" else what.name)

    def _check_index(self, indexed, indices, on_cpu: list) -> list:
        """The CPU tensors beside the indices, which may be on the CPU themselves."""
        if not isinstance(indexed, CudaTensor):
            raise RuntimeError("indices should be either on cpu or on the device of the tensor")
        if any(i is not None and i.dtype == torch.bool for i in indices):
            self.wait("a mask")
        rest = [x for x in on_cpu if not any(x is i for i in indices)]
        if len(rest) < len(on_cpu):
            self.wait("a copy from the CPU")
        return rest

    @contextmanager
    def _own_random_state(self):
        before = torch.default_generator.get_state()
        own = self.generator.get_state()
        torch.default_generator.set_state(own)
        try:
            yield
        finally:
            self.generator.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(before)
        if self.graph is not None and not torch.equal(own, self.generator.get_state()):
            raise NotImplementedError("the pretended device replays no random numbers")


class Requests(TorchFunctionMode):
    """What is said to torch about devices, before C++ hears of it."""

    def __init__(self, machine: PretendCuda):
        super().__init__()
        self.machine = machine

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = self._answer(func, args, kwargs)
        if (
            func is F.scaled_dot_product_attention
            and isinstance(out, CudaTensor)
            and out.dim() == 4
        ):
            # CUDA's kernels write (B, T, H, hs), which a view to other heads does not fit.
            return out.transpose(1, 2).contiguous().transpose(1, 2)
        return out

    def _answer(self, func, args, kwargs):
        if func in QUIET or getattr(func, "__name__", "") == "__get__":  # of a property
            return func(*args, **(kwargs or {}))
        kwargs = dict(kwargs or {})
        on_cuda = [type(x) is CudaTensor for x in inside(kwargs, inside(args, []))]
        alone = torch._C._len_torch_dispatch_stack() == 1  # else another mode wants to see it
        if not any(on_cuda) and func not in ASKED and not is_cuda(kwargs.get("device")):
            with torch._C._DisableTorchDispatch() if alone else nullcontext():
                return func(*args, **kwargs)
        more = torch.is_grad_enabled() or kwargs.get("dropout_p") or self.machine.graph is not None
        more = more or not alone
        if func in QUICK and all(on_cuda) and not more:
            self.machine.launches += 1
            with torch._C._DisableTorchDispatch():
                return CudaTensor(func(*held(args), **held(kwargs)))
        if func in MOVES:
            return self._moved(func, *args, **kwargs)
        if func is Tensor.pin_memory:
            x = args[0]
            if any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride(), strict=True)):
                raise RuntimeError("more than one element refers to a single memory location")
            pinned = x.clone()
            pinned.pinned = True
            return pinned
        if func is not torch._C._nn._parse_to and is_cuda(kwargs.get("device")):
            return self._made(func, args, kwargs)
        told = kwargs.get("device") is not None  # such as zeros_like(x, device="cpu")
        if any(on_cuda) and not told:
            return self.machine.call(True, func, args, kwargs)
        with torch._C._DisableTorchDispatch() if func not in BACKWARD else nullcontext():
            return func(*held(args), **kwargs)

    def _made(self, func, args, kwargs) -> Tensor:
        """A tensor that is asked for on the device."""
        kwargs["device"] = "cpu"
        grad = kwargs.pop("requires_grad", False)
        by_value = func in MADE_OF_VALUES and not isinstance(args[0], CudaTensor)
        args = held(args) if func in MADE_OF_VALUES else args
        made = self.machine.call(func not in MADE_OF_VALUES, func, args, kwargs)
        if by_value:
            self.machine.wait("a copy from the CPU")
        return (made if isinstance(made, CudaTensor) else CudaTensor(made)).requires_grad_(grad)

    def _moved(self, func, x, *args, copy=False, **kwargs) -> Tensor:
        """x.to(…), x.cpu(), x.cuda(): the other device first, then the rest."""
        if func is not Tensor.to:
            args = (CUDA if func is Tensor.cuda else "cpu",)
            kwargs = {}
        elif args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype)
        device, dtype, free, form = torch._C._nn._parse_to(*args, **kwargs)
        here = isinstance(x, CudaTensor)
        if device is not None and device.type == "meta":
            return Tensor.to(held([x])[0], device, dtype)
        if device is not None and here != is_cuda(device):
            if here or not (free and getattr(x, "pinned", False)):
                self.machine.wait(f"a copy {'to' if here else 'from'} the CPU")
            else:
                self.machine.launches += 1
            x = Moved.apply(x, not here)
            copy = False
        more = {} if form is None else {"memory_format": form}
        if dtype is None and not more and not copy:
            return x
        return Tensor.to(x, dtype or x.dtype, copy=copy, **more)


def _wrapped(out, ours: dict):
    """A result as the device's: one of the arguments where it is that, else a new tensor."""
    if isinstance(out, Tensor):
        return ours[id(out)] if id(out) in ours else CudaTensor(out)
    return type(out)([_wrapped(x, ours) for x in out]) if type(out) in (list, tuple) else out


def _line_of_caller() -> str:
    """The innermost line that is neither torch's nor this package's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if "/pretend_cuda/" not in file and "/torch/" not in file and "/lib/python" not in file:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} {frame.f_code.co_name}"
