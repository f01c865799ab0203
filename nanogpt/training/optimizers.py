"""Optimizers: AdamW, and Muon on batches of matrices."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..model import LanguageModel
from .recipes import TrainConfig

POLYNOMIAL = 3.4445, -4.7750, 2.0315  # PyTorch's Muon iterates it five times


def make_optimizers(model: LanguageModel, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks and AdamW for everything else, or AdamW alone.

    Muon (Keller Jordan, 2024, https://kellerjordan.github.io/posts/muon/) orthogonalizes each
    matrix update, so that all its directions learn at the same speed.
    """
    # 1. Which weights are matrices of the blocks? Not by shape alone: embeddings and the head are
    #    matrices too, but each of their rows belongs to a character.
    in_blocks = {id(p) for p in model.blocks.parameters()}
    matrices = []
    rest = []
    for p in model.parameters():
        if config.muon_lr and p.ndim == 2 and id(p) in in_blocks:
            matrices.append(p)
        else:
            rest.append(p)
    # 2. AdamW for the rest.
    adam = torch.optim.AdamW(
        rest,
        lr=config.lr,
        betas=(0.9, float(config.beta2)),
        # A larger eps would damp the tiny first gradients of embeddings and of a zero-init head.
        eps=1e-10,
        # With Muon, weight decay applies only to its matrices: the embeddings and the head act as
        # look-up tables.
        weight_decay=0.0 if matrices else config.weight_decay,
        fused=config.fused,
    )
    if not config.muon_lr or not matrices:
        return [adam]
    # 3. Muon for the matrices.
    muon = Muon(matrices, config.muon_lr, config.weight_decay, bf16=config.bf16)
    return [adam, muon]


class Muon(torch.optim.Muon):
    """PyTorch's Muon, faster on a CPU: matrices of equal shape form a batch, in float32.

    PyTorch processes one matrix at a time, in bfloat16, which few CPUs multiply fast; `bf16` makes
    the batches bfloat16 as well. The state and the update rule are those of PyTorch's Muon with the
    defaults of its other arguments, which this class does not take. On other devices the step is
    PyTorch's own.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, weight_decay: float = 0.0, *, bf16: bool = False
    ):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        self.bf16 = bf16

    @torch.no_grad()
    # Torch declares overloads in Optimizer, and its Muon.step has no annotations.
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        if closure is not None or self.param_groups[0]["params"][0].device.type != "cpu":
            loss: float | None = super().step(closure)  # type: ignore[no-untyped-call]
            return loss
        for group in self.param_groups:
            # 1. Matrices that have a gradient, and the running mean of each one's gradients.
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            moments = [self._momentum(p) for p in params]
            if params:
                # 2. Nesterov's momentum: move the mean towards the gradient, then the gradient
                #    towards the mean. The `_foreach_` functions work on all matrices in one call.
                torch._foreach_lerp_(moments, grads, 1 - group["momentum"])
                torch._foreach_lerp_(grads, moments, group["momentum"])
                # 3. Weight decay: shrink the matrices themselves, not their gradients.
                if group["weight_decay"]:
                    torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
                # 4. Orthogonalize the directions, and take a step.
                _update(params, grads, group["lr"], self.bf16)
        return None

    def _momentum(self, p: Tensor) -> Tensor:
        """The running mean of this parameter's gradients, under PyTorch's own name."""
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        mean: Tensor = state["momentum_buffer"]
        return mean


def _update(params: list[Tensor], directions: list[Tensor], lr: float, bf16: bool) -> None:
    """Update each matrix along its orthogonalized direction."""
    # One batch per shape: many small products cost more than one batched product.
    for rows, cols in dict.fromkeys(p.shape for p in params):
        alike = [i for i, p in enumerate(params) if p.shape == (rows, cols)]
        stacked = torch.stack([directions[i] for i in alike])
        steps = orthogonal_bf16(stacked) if bf16 else orthogonal(stacked)
        # An orthogonal matrix with more rows than columns moves each weight less: scale it up, as
        # PyTorch does.
        steps = steps.mul(-lr * math.sqrt(max(1, rows / cols))).to(params[0].dtype)
        torch._foreach_add_([params[i] for i in alike], list(steps))


def _wide(x: Tensor) -> Tensor:
    """Convert to float32, with at least as many columns as rows and no singular value above 1."""
    x = x.float() if x.shape[-2] <= x.shape[-1] else x.float().mT
    length: Tensor = x.norm(dim=(-2, -1), keepdim=True)
    return x / length.clamp(min=1e-7)


def orthogonal(x: Tensor) -> Tensor:
    """Approximately orthogonalize a batch of matrices: all singular values come close to 1.

    (n, rows, columns) -> (n, rows, columns), float32. A step multiplies x by p = a + b g + c g²,
    where g = x xᵀ. So the small polynomials are multiplied first, and x once at the end.
    """
    # 1. The smaller of the two Gram matrices: a tall x is transposed.
    wide = x.shape[-2] <= x.shape[-1]
    x = _wide(x)
    gram = torch.bmm(x, x.mT)
    # 2. Five steps x <- p x, of which only the Gram matrix and the product of the polynomials are
    #    computed: x xᵀ becomes p (x xᵀ) p.
    p = _polynomial(gram)
    product = p
    for _ in range(4):
        gram = torch.bmm(torch.bmm(p, gram), p)
        p = _polynomial(gram)
        product = torch.bmm(p, product)
    # 3. All five steps at once.
    x = torch.bmm(product, x)
    return x if wide else x.mT


def _polynomial(gram: Tensor) -> Tensor:
    """a + b g + c g² of each matrix g.  (n, rows, rows) -> the same"""
    a, b, c = POLYNOMIAL
    p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    p.diagonal(dim1=-2, dim2=-1).add_(a)
    return p


def orthogonal_bf16(x: Tensor) -> Tensor:
    """The same in bfloat16, one step after another.  (n, rows, columns) -> the same, float32

    Multiplying the polynomials first would lose too many digits in bfloat16: training diverges.
    """
    a, b, c = POLYNOMIAL
    wide = x.shape[-2] <= x.shape[-1]
    x = _wide(x).bfloat16()
    for _ in range(5):
        gram = torch.bmm(x, x.mT)
        p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, p, x, beta=a)
    x = x.float()
    return x if wide else x.mT
