"""Mutants that accept, broadcast or convert bad input, or that refuse it in a wrong way."""

from collections.abc import Mapping

from torch import Tensor

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant("bad_shapes_are_refused", "a mask for one head is broadcast to all heads", mask="bool3d")
class _MaskStretched(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        mask, query = given["attn_mask"], given["query"]
        if mask is None or mask.dim() != 3 or mask.shape[0] != 1 or query.dim() != 3:
            return given
        batch = query.shape[0 if self.batch_first else 1]
        return given | {"attn_mask": mask.expand(batch * self.num_heads, -1, -1)}


@mutant("bad_dtypes_are_refused", "integer masks are accepted as boolean masks", mask="bool2d")
class _WholeNumberMaskTaken(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        masks = {name: given[name] for name in ("attn_mask", "key_padding_mask") if given[name] is not None}
        whole = {name: m.bool() for name, m in masks.items() if not (m.is_floating_point() or m.is_complex())}
        return given | whole


@mutant(
    "bad_shapes_are_refused",
    "a call with is_causal but no attn_mask is not refused: is_causal is ignored, as in the reference's fast path",
    queries=7,
)
class _HintWithoutMaskIgnored(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        return given | {"is_causal": given["is_causal"] and given["attn_mask"] is not None}


@mutant(
    "refusals_leave_no_trace",
    "batch_first is changed during a call, and not restored when the call is refused",
    batch_first=False,
)
class _RefusalLeavesBatchFirst(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        if self.batch_first or given["query"].dim() != 3:
            return given
        self.batch_first = True
        return given | {name: given[name].transpose(0, 1) for name in ("query", "key", "value")}

    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        if not self.was_first and output.dim() == 3:
            self.batch_first = False
            return output.transpose(0, 1), weights
        return output, weights

    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        super().adopt(parameters)
        self.was_first = self.batch_first


@mutant(
    "refusals_are_alike",
    "the fast path for self-attention (query is key is value) raises another exception type",
    queries=7,
    self_attention=True,
)
class _FastPathRefusesOtherwise(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        mask, key = given["key_padding_mask"], given["key"]
        if given["query"] is key is given["value"] and mask is not None:
            axis = 1 if self.batch_first and key.dim() == 3 else 0
            if mask.shape[-1] != key.shape[axis]:
                raise RuntimeError(f"key_padding_mask must have {key.shape[axis]} keys, got {mask.shape[-1]}")
        return given
