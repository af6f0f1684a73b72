"""Mutants that deviate from their policies: a deviation that is not declared, or a declaration that is not true."""

from typing import Any

import torch
from torch import Tensor

from attnbench.interface import Policies
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["Detached", "MeanByBias", "MeanByFill", "NanGradients", "NanRows", "TellsSharesBeforeDropout", "mutant"]

mutant = MultiheadMutants()
# Fields of a case that returns attention weights.
WITH_WEIGHTS: dict[str, Any] = {"need_weights": True}
# Fields of a training case with dropout that returns attention weights.
DROPPING: dict[str, Any] = {"dropout": 0.25, "need_weights": True, "mode": "train"}
# Fields of a case with fully masked rows.
EMPTY: dict[str, Any] = {"mask": "empty2d"}


class TellsSharesBeforeDropout(Formula):
    """The returned weights are those before dropout, as in torchscale, espnet and fairseq."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        """Compute attention, and return the weights before dropout."""
        shares = self.compute_shares(q, k, mask)
        output = self.sum_values(self.apply_dropout(shares), v)
        return output, shares.to(v.dtype) if named["need_weights"] else None


@mutant(
    "dropout_is_told_by_weights",
    "the returned weights include dropout, although the policies declare weights before dropout",
    policies=Policies(returned_weights="before_dropout"),
    **DROPPING,
)
class _DeclaredBeforeDropout(Formula):
    pass


@mutant(
    "dropout_is_told_by_weights",
    "the policies declare returned weights before dropout, but the returned weights also lack the mask",
    policies=Policies(returned_weights="before_dropout"),
    **DROPPING,
    mask="bool2d+pad",
)
class _SharesWithoutMask(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        output, weights = super().attend(q, k, v, **named)
        return output, None if weights is None else self.normalise(self.score(q, k))


@mutant("weights_carry_gradients", "the returned weights are detached from the graph (labml)", **WITH_WEIGHTS)
class Detached(Formula):
    """The returned weights are detached from the graph, as in labml."""

    def return_weights(self, weights: Tensor) -> Tensor:
        """Return a detached copy."""
        return weights.detach()


@mutant(
    "weights_carry_gradients",
    "the returned weights carry gradients, although the policies declare detached weights",
    policies=Policies(detached_weights=True),
    **WITH_WEIGHTS,
)
class _DeclaredDetached(Formula):
    pass


@mutant(
    "forward_parity",
    "a large negative number overwrites hidden logits, so that a fully masked row is the mean of all values",
    **EMPTY,
)
class MeanByFill(Formula):
    """A large negative number overwrites hidden logits, as in the Annotated Transformer and x-transformers."""

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Overwrite the logits of hidden keys, and add the mask elsewhere."""
        if mask is None:
            return logits
        hidden = ~mask if mask.dtype == torch.bool else mask == -torch.inf
        added = logits if mask.dtype == torch.bool else logits + mask.masked_fill(hidden, 0.0).to(logits.dtype)
        return added.masked_fill(hidden, torch.finfo(logits.dtype).min)


class MeanByBias(Formula):
    """A large negative number is added to hidden logits, as in BERT of transformers."""

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Add the mask, with the smallest finite number in place of minus infinity.

        The sum is in float32 at least, because float16 has no number that absorbs every logit.
        """
        if mask is None:
            return logits
        wide = torch.promote_types(logits.dtype, torch.float32)
        smallest = torch.finfo(wide).min
        if mask.dtype == torch.bool:
            return logits.to(wide) + torch.zeros_like(mask, dtype=wide).masked_fill(~mask, smallest)
        return logits.to(wide) + mask.to(wide).clamp(min=smallest)


@mutant(
    "forward_parity",
    "a fully masked row is zero, although the policies declare the mean of all values",
    policies=Policies(hidden_rows="mean"),
    **EMPTY,
)
class _DeclaredMean(Formula):
    pass


@mutant(
    "input_gradients",
    "a fully masked row is the mean of all values, as declared, but passes gradients on to queries and keys",
    policies=Policies(hidden_rows="mean"),
    **EMPTY,
)
class _DeclaredConstantMean(MeanByBias):
    pass


@mutant(
    "forward_parity",
    "a fully masked row is the first value, although the policies declare the mean of all values",
    policies=Policies(hidden_rows="mean"),
    **EMPTY,
)
class _FirstValueForMean(MeanByFill):
    def normalise(self, logits: Tensor) -> Tensor:
        shares, smallest = super().normalise(logits), torch.finfo(logits.dtype).min
        hidden = (logits == smallest).all(dim=-1, keepdim=True)
        first = torch.zeros_like(shares)
        first[..., :1] = 1.0
        return torch.where(hidden, first, shares)


class NanRows(Formula):
    """A fully masked row is NaN, and so are its gradients."""

    def normalise(self, logits: Tensor) -> Tensor:
        """Compute the softmax without regard to fully masked rows."""
        return torch.softmax(logits, dim=-1)


@mutant(
    "input_gradients",
    "zero replaces the NaN of a fully masked row after the softmax, but the gradients are NaN",
    **EMPTY,
)
class NanGradients(NanRows):
    """Zero replaces the NaN of a fully masked row after the softmax; the gradients of the row are NaN."""

    def normalise(self, logits: Tensor) -> Tensor:
        """Compute the softmax, with zero in place of NaN."""
        return super().normalise(logits).nan_to_num()


@mutant(
    "input_gradients",
    "no gradient is NaN, although the policies declare NaN gradients in fully masked rows",
    policies=Policies(hidden_row_gradients="nan"),
    **EMPTY,
)
class _DeclaredNanGradients(Formula):
    pass


@mutant(
    "input_gradients",
    "the policies declare NaN gradients in fully masked rows, but gradients of other rows are NaN, too",
    policies=Policies(hidden_row_gradients="nan"),
    **EMPTY,
)
class _NanBesideMaskedRows(NanGradients):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        logits = super().score(q, k)
        if logits.requires_grad:
            logits.register_hook(_make_nan)  # type: ignore[no-untyped-call]
        return logits


def _make_nan(gradient: Tensor) -> Tensor:
    return torch.full_like(gradient, torch.nan)
