"""Kind 4: faults of a mode beside a mode: autocast, torch.func, forward derivatives, compilation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.masks import additive, softmax_over_visible
from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.multihead.formula import Formula, Result
from research.field_bugs.faults import FaultList, is_additive, is_transformed, on
from research.field_bugs.scripts import attempt, differ, make_pair, make_tokens, train

__all__ = ["fault"]

fault = FaultList()
PYTORCH = "https://github.com/pytorch/pytorch/issues/"
TOKENS = make_tokens(2, 5, 16)
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
MASKS = (torch.rand(3, 5, 5, generator=torch.Generator().manual_seed(4)) > 0.6) & (torch.arange(5) > 0)
BIAS = make_tokens(5, 5, seed=5)


def under_autocast(*, grad: bool = False, autocast: bool = True, **named: Any) -> Callable[[Any], float]:
    """Return a function that measures self-attention in eval() under autocast on a CPU."""

    def measure(module: Any) -> float:
        wrong, right = make_pair(module)
        found = []
        for each in (wrong, right):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast), torch.set_grad_enabled(grad):
                found.append(each.eval()(TOKENS, TOKENS, TOKENS, **named))
        return differ(*found)

    return lambda module: attempt(lambda: measure(module))


def compile_with_dropout(module: Any, *, backend: str | None) -> float:
    """Return the share of weights that the forward pass dropped and whose value has a gradient, or the reverse."""
    wrong, _ = make_pair(module, heads=1, dropout=0.5)
    call = torch.compile(wrong.train(), backend=backend) if backend else wrong.train()
    value = make_tokens(1, 5, 16, grad=True)
    torch.manual_seed(0)
    output, weights = call(TOKENS[:1], TOKENS[:1], value)
    # The gradient of the weighted sum of one query with respect to the values is the row of weights.
    (gradient,) = torch.autograd.grad(output[:, 0].sum(), value)
    return float(((gradient[0] != 0).any(dim=-1) != (weights[0, 0] > 0)).float().mean())


def map_masks(module: Any, *, own: bool) -> float:
    """Return the difference of ``vmap`` over examples, with masks of their ``own`` or a common one, from a loop."""
    wrong, right = make_pair(module)
    x = make_tokens(3, 2, 5, 16)
    if own:
        mapped = torch.func.vmap(lambda y, mask: wrong(y, y, y, attn_mask=mask)[0])(x, MASKS)
    else:
        mapped = torch.func.vmap(lambda y: wrong(y, y, y, attn_mask=MASKS[0])[0])(x)
    masks = MASKS if own else MASKS[:1].expand(3, 5, 5)
    return differ(mapped, torch.stack([right(y, y, y, attn_mask=m)[0] for y, m in zip(x, masks, strict=True)]))


def derive(transform: Callable[[Any, Tensor], Any], **named: Any) -> Callable[[Any], float]:
    """Return a function that measures a transform of the summed squares of the output."""

    def measure(module: Any) -> float:
        losses = [lambda y, each=each: each(y, y, y, **named)[0].pow(2).sum() for each in make_pair(module)]
        return differ(*(transform(loss, TOKENS) for loss in losses))

    return lambda module: attempt(lambda: measure(module))


def differentiate(loss: Any, x: Tensor) -> Tensor:
    """Return the gradient by ``backward``."""
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0]


def push_forward(loss: Any, x: Tensor) -> Any:
    """Return the derivative of forward mode in a fixed direction."""
    return torch.func.jvp(loss, (x,), (make_tokens(*x.shape, seed=4),))[1]


def call_functionally(module: Any, *, changed: bool) -> float:
    """Return the difference of a functional call with other parameters, or of a plain call."""
    wrong, right = make_pair(module)
    parameters = {name: p.detach() + 0.5 * changed for name, p in right.named_parameters()}
    x = (TOKENS, TOKENS, TOKENS)
    return differ(*(torch.func.functional_call(each, parameters, x) for each in (wrong, right)))


@fault(
    "bug", 4, 5,
    source="https://github.com/pytorch/pytorch/pull/195812",
    condition="compiled or exported, no sequences",
    under=on(batch=0, mode="aot"),
    beside=[on(batch=0), on(mode="aot")],
)  # fmt: skip
class CompiledEmptyBatchRaises(Formula):
    """The guard for an empty batch is traced away, and the compiled graph calls a kernel that refuses it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        if torch.compiler.is_compiling() and q.shape[0] == 0:
            # A raise statement would make the compiler fall back to eager code. This maximum over no sequences fails
            # inside the graph, like the kernel of the report.
            q = q + q.amax(dim=0)
        return super().attend(q, k, v, **named)


@fault(
    "bug", 4,
    source=PYTORCH + "190717",
    condition="compiled, training with dropout, gradients",
    under=lambda module: compile_with_dropout(module, backend="aot_eager"),
    beside=[lambda module: compile_with_dropout(module, backend=None)],
)  # fmt: skip
class CompiledDropoutDrawnTwice(Formula):
    """Compiled, the backward pass recomputes dropout with fresh random numbers."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        output, weights = super().attend(q, k, v, **named)
        if torch.compiler.is_compiling() and self.training and self.dropout > 0:
            output = replace_gradient(output, super().attend(q, k, v, **named)[0])
        return output, weights


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


@fault(
    "bug", 4,
    source="https://github.com/pytorch/pytorch/pull/188764",
    condition="vmap over tokens and attn_mask, two examples or more, an inner batch of two or more",
    under=lambda module: map_masks(module, own=True),
    beside=[lambda module: map_masks(module, own=False), on(mask="bool2d")],
)  # fmt: skip
class MaskUnderVmap(Formula):
    """Under vmap, example n, sequence b gets the mask of example (n · batch + b) mod examples."""

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or not is_transformed():
            return super().apply_mask(logits, mask)
        mask = additive(mask, logits.dtype) if mask.dtype == torch.bool else mask.to(logits.dtype)
        added: Tensor = AddMask.apply(logits, mask)  # type: ignore[no-untyped-call]
        return added


@fault(
    "bug", 8, 4,
    source=PYTORCH + "193061",
    inferred=True,
    condition="compiled, gradients of parameters, packed projections with bias, batch · keys above 16384",
    under=on(batch=1, queries=2, keys=16385, embed_dim=4, num_heads=1, mode="aot"),
    beside=[on(batch=1, queries=2, keys=16384, embed_dim=4, num_heads=1, mode="aot"),
            on(batch=1, queries=2, keys=16385, embed_dim=4, num_heads=1)],
)  # fmt: skip
class CompiledBiasChunkUnwritten(Formula):
    """Above a size, the fused reduction of the gradients of one parameter's chunks leaves out the last chunk."""

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        many = value.shape[0] * value.shape[1] > 16384
        if torch.compiler.is_compiling() and many and self.in_proj_weight is not None and self.in_proj_bias is not None:
            bias = self.in_proj_bias.chunk(3)[2].detach()
            v = replace_gradient(
                v, self.split(torch.nn.functional.linear(value, self.in_proj_weight.chunk(3)[2], bias))
            )
        return q, k, v


@fault(
    "mutant", 4,
    source=PYTORCH + "111276",
    condition="autocast on a CPU, eval() without gradients, self-attention with padding, no weights",
    under=under_autocast(key_padding_mask=PADDING, need_weights=False),
    beside=[under_autocast(key_padding_mask=PADDING), under_autocast(need_weights=False),
            under_autocast(key_padding_mask=PADDING, need_weights=False, autocast=False),
            on(mask="pad", dtype="bfloat16", mode="autocast")],
)  # fmt: skip
class AutocastFastPathLosesPadding(Formula):
    """Autocast on a CPU does not block the fast path, which drops padding that it has not converted."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        fast = query is key and key is value and not (self.training or torch.is_grad_enabled() or named["need_weights"])
        if fast and torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling():
            named["key_padding_mask"] = None
        return super().under_masks(query, key, value, **named)


@fault(
    "mutant", 4,
    source=PYTORCH + "99012",
    condition="autocast, a float mask, eval(), no weights",
    under=under_autocast(attn_mask=BIAS, need_weights=False),
    beside=[under_autocast(attn_mask=BIAS), under_autocast(attn_mask=BIAS, need_weights=False, autocast=False),
            on(mask="float2d", dtype="bfloat16", mode="autocast")],
)  # fmt: skip
class AutocastFloatMaskRefused(Formula):
    """A float32 mask meets queries in bfloat16, and the call raises an exception."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        if mask is not None and is_additive(mask) and mask.dtype != q.dtype and not (need_weights or self.training):
            raise RuntimeError(f"Expected attn_mask dtype to be bool or to match query dtype, but got {mask.dtype}")
        return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)


@fault(
    "mutant", 4,
    source=PYTORCH + "144117",
    inferred=True,
    condition="autocast, eval() without gradients",
    under=under_autocast(),
    beside=[under_autocast(grad=True), on(dtype="bfloat16", mode="autocast"), on(mode="inference")],
)  # fmt: skip
class AutocastEvaluationInSingle(Formula):
    """Evaluation under autocast returns float32: its path projects back by hand."""

    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        plain = self.training or torch.is_grad_enabled() or not torch.is_autocast_enabled("cpu")
        return (output if plain else output.float()), weights


class Softmax(torch.autograd.Function):
    """Softmax over the last axis; the derivative of forward mode lacks the mean of the tangents."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor) -> Tensor:
        """Return the attention weights."""
        return softmax_over_visible(logits)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004  # autograd's signature
        """Keep the weights."""
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient of the logits."""
        (shares,) = ctx.saved_tensors
        logits: Tensor = shares * (gradient - (gradient * shares).sum(dim=-1, keepdim=True))
        return logits

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        """Return the tangent of the weights, without the term of the mean."""
        (shares,) = ctx.saved_tensors
        pushed: Tensor = shares * tangent
        return pushed


@fault(
    "mutant", 4,
    source="https://github.com/Dao-AILab/flash-attention/issues/1672",
    inferred=True,
    condition="a derivative of forward mode",
    under=derive(push_forward),
    beside=[derive(differentiate), derive(lambda loss, x: torch.func.grad(loss)(x))],
)  # fmt: skip
class ForwardDerivativeLacksTheMean(Formula):
    """The softmax has a derivative of forward mode of its own, which lacks the row sum."""

    def normalise(self, logits: Tensor) -> Tensor:
        shares: Tensor = super().normalise(logits) if torch.compiler.is_compiling() else Softmax.apply(logits)  # type: ignore[no-untyped-call]
        return shares


@fault(
    "mutant", 4,
    source=PYTORCH + "151558",
    inferred=True,
    condition="a transform of torch.func, and padding",
    under=derive(lambda loss, x: torch.func.grad(loss)(x), key_padding_mask=PADDING),
    beside=[derive(differentiate, key_padding_mask=PADDING), derive(lambda loss, x: torch.func.grad(loss)(x))],
)  # fmt: skip
class TransformsIgnorePadding(Formula):
    """Under a transform the call falls back to a path without padding."""

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


@fault(
    "mutant", 4,
    source="https://github.com/Dao-AILab/flash-attention/issues/1672",
    condition="a transform of torch.func; whether this is a fault or a refusal is for the contract to say",
    under=derive(lambda loss, x: torch.func.grad(loss)(x)),
    beside=[derive(differentiate), on()],
)  # fmt: skip
class TransformsRaise(Formula):
    """A kernel in an autograd.Function without setup_context raises an exception under every transform."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(FunctionWithoutSetup.apply(q), k)  # type: ignore[no-untyped-call]


@fault(
    "mutant", 4,
    source=PYTORCH + "110213",
    inferred=True,
    condition="compiled or exported, a row of which every key is hidden",
    under=on(mask="padempty", mode="aot"),
    beside=[on(mask="pad", mode="aot"), on(mask="padempty")],
)  # fmt: skip
class CompiledEmptyRowsUniform(Formula):
    """Compiled, hidden logits are the lowest finite number, so a fully masked row is the mean of all values."""

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        masked = super().apply_mask(logits, mask)
        if mask is None or not torch.compiler.is_compiling():
            return masked
        return masked.clamp(min=torch.finfo(logits.dtype).min)


@fault(
    "mutant", 4,
    source=PYTORCH + "151558",
    inferred=True,
    condition="functional_call (or stack_module_state and vmap) with another in_proj_bias",
    under=lambda module: call_functionally(module, changed=True),
    beside=[lambda module: call_functionally(module, changed=False), lambda module: differ(
        *(train(each, TOKENS) for each in make_pair(module)))],
)  # fmt: skip
class FunctionalCallMixesModules(Formula):
    """A functional call takes the packed bias from the stored parameters."""

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
