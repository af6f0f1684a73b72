"""Kind 4: faults of a mode beside a mode: autocast, torch.func, forward derivatives, compilation."""

from typing import Any

import torch
from torch import Tensor

from attnbench.masks import additive
from attnbench.mutants.autograd import WrongForwardSoftmax
from attnbench.mutants.conditions import is_transformed
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


class AddMask(torch.autograd.Function):
    """logits + mask, with derivatives of both modes; the batching rule is wrong."""

    @staticmethod
    def forward(logits: Tensor, mask: Tensor) -> Tensor:
        """Return the sum."""
        return logits + mask

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004  # autograd's signature
        """Keep the shape of the mask."""
        ctx.shape = inputs[1].shape

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of logits and mask."""
        return gradient, gradient.sum_to_size(ctx.shape)

    @staticmethod
    def jvp(ctx: Any, logits: Tensor | None, mask: Tensor | None) -> Any:  # noqa: ARG004  # autograd's signature
        """Return the sum of the tangents."""
        return logits if mask is None else mask if logits is None else logits + mask

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], logits: Tensor, mask: Tensor) -> tuple[Tensor, int]:
        """Fold the examples into the batch; the folded mask is repeated as a whole, not element by element."""
        logits_dim, mask_dim = in_dims
        count = info.batch_size
        logits = logits.expand(count, *logits.shape) if logits_dim is None else logits.movedim(logits_dim, 0)
        if mask_dim is None:
            return logits + mask, 0
        mask = mask.movedim(mask_dim, 0)
        while mask.dim() < logits.dim():
            mask = mask.unsqueeze(1)
        batch = logits.shape[1]
        if mask.shape[1] != batch:
            mask = torch.unflatten(mask.flatten(0, 1).repeat(batch, *(1,) * (mask.dim() - 2)), 0, (count, batch))
        return logits + mask, 0


@mutant(
    "vmap_equals_loop",
    "under vmap, example n, sequence b gets the mask of example (n · batch + b) mod examples (pytorch#188764)",
    mask="bool2d",
    bias=False,
    batch_first=False,
)
class _MaskUnderVmap(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or not is_transformed():
            return super().apply_mask(logits, mask)
        mask = additive(mask, logits.dtype) if mask.dtype == torch.bool else mask.to(logits.dtype)
        added: Tensor = AddMask.apply(logits, mask)  # type: ignore[no-untyped-call]
        return added


@mutant(
    "padding_cannot_leak",
    "autocast on a CPU does not block the fast path, which drops padding that it has not converted (pytorch#111276)",
    mask="pad",
    batch=3,
    keys=5,
    num_heads=2,
    self_attention=True,
    dtype="bfloat16",
    mode="autocast_inference",
)
class _AutocastFastPathLosesPadding(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        fast = query is key and key is value and not (self.training or torch.is_grad_enabled() or named["need_weights"])
        if fast and torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling():
            named["key_padding_mask"] = None
        return super().under_masks(query, key, value, **named)


@mutant(
    "autocast_parity",
    "evaluation under autocast returns float32: its path projects back by hand (after pytorch#144117)",
    mask="pad",
    batch=3,
    keys=5,
    num_heads=2,
    self_attention=True,
    dtype="bfloat16",
    mode="autocast_inference",
)
class _AutocastEvaluationInSingle(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        plain = self.training or torch.is_grad_enabled() or not torch.is_autocast_enabled("cpu")
        return (output if plain else output.float()), weights


@mutant(
    "forward_derivatives",
    "the softmax has a derivative of forward mode of its own, which lacks the row sum (after Dao-AILab/flash-"
    "attention#1672)",
    need_weights=True,
)
class _ForwardDerivativeLacksTheMean(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().normalise(logits)
        shares: Tensor = WrongForwardSoftmax.apply(logits)  # type: ignore[no-untyped-call]
        return shares


@mutant(
    "func_grad_works",
    "under a transform the call falls back to a path without padding (after pytorch#151558)",
    mask="bool3d+pad",
    kdim=10,
    vdim=14,
)
class _TransformsIgnorePadding(Formula):
    def read_padding(self, padding: Tensor) -> Tensor | None:
        return None if is_transformed() else padding


class FunctionWithoutSetup(torch.autograd.Function):
    """The identity as older code writes it: forward has ctx, and there is no setup_context."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:  # noqa: ARG004  # autograd's signature
        """Return a view of the tensor."""
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004  # autograd's signature
        """Return the gradient."""
        return gradient


@mutant(
    "vmap_equals_loop",
    "a kernel in an autograd.Function without setup_context raises an exception under every transform (Dao-"
    "AILab/flash-attention#1672)",
    need_weights=True,
)
class _TransformsRaise(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(FunctionWithoutSetup.apply(q), k)  # type: ignore[no-untyped-call]


@mutant(
    "compiled_parity",
    "compiled, hidden logits are the lowest finite number, so a fully masked row is the mean of all values "
    "(after pytorch#110213)",
    mask="empty2d",
    mode="aot",
)
class _CompiledEmptyRowsUniform(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        masked = super().apply_mask(logits, mask)
        if mask is None or not torch.compiler.is_compiling():
            return masked
        return masked.clamp(min=torch.finfo(logits.dtype).min)


@mutant(
    "functional_call_works",
    "a functional call takes the packed bias from the stored parameters (after pytorch#151558)",
    need_weights=True,
)
class _FunctionalCallMixesModules(Formula):
    def __init__(self, reference: Any) -> None:
        super().__init__(reference)
        self.__setstate__(self.__dict__)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bias, stored = self.in_proj_bias, self.__dict__["_bias"][0]
        q, k, v = super().project(query, key, value)
        if bias is None or isinstance(bias, torch.nn.Parameter) or bias.shape != stored.shape:
            return q, k, v
        b_q, b_k, b_v = (self.split(one[None, None]) for one in (stored - bias).chunk(3))
        return q + b_q, k + b_k, v + b_v

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_bias"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__["_bias"] = [self.in_proj_bias]
