"""Modules of other kinds as implementations of multi-head attention, such as a causal one with a fused projection."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.interface import Call, Implementation, Inputs, Policies, Refusal, find_accepted_keywords
from attnbench.interface.conventions import OUT, ModuleConvention, Word
from attnbench.kernel.convention import convert_mask
from attnbench.kernel.differentiable import find_differentiable
from attnbench.kernel.forward import ReferenceForward
from attnbench.kernel.projections import convert_parameters
from attnbench.masks import reference_mask
from attnbench.refusals import LacksKeywords, LacksWeights, Restriction, TakesOnly, TypedRefusal

__all__ = ["WrappedImplementation", "from_module"]

# A function (embed_dim, num_heads, *, dropout, bias) -> module. It may lack dropout and bias.
Maker = Callable[..., nn.Module]


class _WrappedAttention(ReferenceForward):
    """The reference's forward around a module of another kind."""

    def __init__(self, reference: nn.MultiheadAttention, implementation: "WrappedImplementation") -> None:
        self.implementation = implementation
        super().__init__(reference)

    def adopt(self, parameters: Mapping[str, Tensor]) -> None:
        """Make the module, and load the reference's parameters into its layers.

        Raises: Refusal if the module has no place for parameters of the reference; TypeError if it has others.
        """
        implementation, projections = self.implementation, self.implementation.convention.projections
        fits: Mapping[Restriction, bool] = {"one_width": "in_proj_weight" in parameters, "given_keys": not self.columns}
        if unmet := [what for what, holds in fits.items() if not holds]:
            raise Refusal(TakesOnly(what=unmet[0]))
        weight, biased = parameters[f"{OUT}_proj.weight"], "in_proj_bias" in parameters
        offered = {"dropout": self.dropout, "bias": biased}
        given = {word: value for word, value in offered.items() if implementation.makes_with(word)}
        # Converted before the parameters are loaded, so that float64 weights are not rounded.
        self.module = implementation.make(self.embed_dim, self.num_heads, **given).to(weight)
        if OUT not in projections:
            self.out_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=biased).to(weight)
        own, found = implementation.weights_of(self, parameters), find_differentiable(self)
        if extra := sorted(found.keys() - own.keys()):
            raise TypeError(f"projections must name every layer of the module, and lack {', '.join(extra)}")
        if lacking := sorted(own.keys() - found.keys()):
            raise TypeError(
                f"the module has no {', '.join(lacking)}: correct projections, or declare biased=False if only biases "
                "are lacking"
            )
        with torch.no_grad():
            for name, value in own.items():
                _demand_shape(name, found[name], value)
                found[name].copy_(value)

    def under_masks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Call the module with the arguments that it takes.

        Raises: Refusal where query, key and value are not as few tensors as the module takes.
        """
        convention = self.implementation.convention
        if (len(convention.tokens) < 3 and key is not value) or (len(convention.tokens) == 1 and query is not key):
            raise Refusal(TakesOnly(what=_SHARING[len(convention.tokens)]))
        # A keyword of its own takes key_padding_mask; attn_mask is then causal and nothing else.
        flagged = is_causal and (key_padding_mask is None or convention.separates_padding)
        words: dict[Word, Any] = {"is_causal": flagged, "need_weights": need_weights}
        words |= self._convert_masks(query, attn_mask, key_padding_mask, flagged=flagged)
        named = {"query": query, "key": key, "value": value}
        tokens = [named[name] if convention.batch_first else named[name].transpose(0, 1) for name in convention.tokens]
        if convention.contiguous:
            tokens = [one.contiguous() for one in tokens]
        returned = self.module(*tokens, **{name: words[word] for word, name in convention.names.items()})
        output, *others = returned if isinstance(returned, tuple) else (returned,)
        if not convention.batch_first:
            output = output.transpose(0, 1)
        if OUT not in convention.projections:
            output = self.out_proj(output)
        if not need_weights or convention.weights == "none":
            return output, None
        # A mean over heads is the weights of one head, of which the caller may take the mean.
        return output, others[0].unsqueeze(1) if convention.weights == "mean" else others[0]

    def _convert_masks(
        self, query: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, *, flagged: bool
    ) -> dict[Word, Tensor | None]:
        """Return the two masks as the module takes them; with ``flagged``, a flag stands for the causal mask.

        Raises: Refusal for a mask that the module does not take.
        """
        convention = self.implementation.convention
        mask = None if flagged and convention.replaces_causal_mask else attn_mask
        padding = None if convention.separates_padding else key_padding_mask
        joined = reference_mask(mask, padding, num_heads=self.num_heads, dtype=query.dtype)
        found: dict[Word, Tensor | None] = {"mask": None, "key_padding_mask": None}
        if joined is not None:
            if "mask" not in convention.names:
                raise Refusal(LacksKeywords(keywords=("attn_mask",), of="forward"))
            found["mask"] = _drop_dimensions(convert_mask(joined, convention.masks, query.dtype), convention)
        if convention.separates_padding and key_padding_mask is not None:
            keep = ~key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask
            found["key_padding_mask"] = convert_mask(keep, convention.masks, query.dtype)
        return found


# What must be one tensor, by the number of tensors that a module takes.
_SHARING: Mapping[int, Restriction] = {1: "self_attention", 2: "one_context"}


def _drop_dimensions(mask: Tensor, convention: ModuleConvention) -> Tensor:
    """Return a mask with the dimensions that the module takes: of batch and heads, those are dropped that have size 1.

    Raises: Refusal if a dropped dimension has another size.
    """
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    for dimension, what in ((1, "shared_masks"), (0, "one_mask"))[: 4 - convention.mask_dimensions]:
        if mask.shape[dimension] != 1:
            raise Refusal(TakesOnly(what=what))  # type: ignore[arg-type]
        mask = mask.squeeze(dimension)
    return mask


def _demand_shape(name: str, own: Tensor, value: Tensor) -> None:
    if own.shape != value.shape:
        raise TypeError(f"projections: {name} must have shape {tuple(value.shape)}, got {tuple(own.shape)}")


class WrappedImplementation(Implementation):
    """A module of another kind as an implementation; see ``from_module``."""

    def __init__(
        self, make: Maker, convention: ModuleConvention, *, name: str, source: str, policies: Policies
    ) -> None:
        self.make = make
        self.convention = convention
        self.name = name
        self.source = source
        self.policies = policies
        self._accepted = find_accepted_keywords(make)

    def makes_with(self, word: str) -> bool:
        """Whether the maker takes ``dropout`` or ``bias``."""
        return self._accepted is None or word in self._accepted

    def unsupported(self, case: Case) -> TypedRefusal | None:
        """Return why the module cannot compute a case, which follows from its convention; None if it can."""
        convention, problem = self.convention, case.problem
        if unmet := [what for what, holds in self._list_restrictions(case) if not holds]:
            return TakesOnly(what=unmet[0])
        if problem.dropout and case.training and not self.makes_with("dropout"):
            return LacksKeywords(keywords=("dropout",), of="constructor")
        if problem.need_weights and convention.weights == "none":
            return LacksWeights()
        if problem.need_weights and convention.weights == "mean" and not problem.average_attn_weights:
            return LacksKeywords(keywords=("average_attn_weights",), of="forward")
        if "mask" in convention.names:
            return None
        needed = {"attn_mask": self._needs_mask(case), "key_padding_mask": self._joins_padding(case)}
        missing = [word for word, is_needed in needed.items() if is_needed]
        return LacksKeywords(keywords=(missing[0],), of="forward") if missing else None

    def _list_restrictions(self, case: Case) -> Iterator[tuple[Restriction, bool]]:
        """Yield the restrictions of the module, and whether a case satisfies each."""
        convention, problem = self.convention, case.problem
        yield "one_width", not (problem.kdim or problem.vdim)
        yield "given_keys", problem.columns == problem.keys
        if not self.makes_with("bias"):
            yield ("biases" if convention.biased else "no_biases"), problem.bias == convention.biased
        if len(convention.tokens) < 3:
            yield (
                _SHARING[len(convention.tokens)],
                problem.self_attention or (problem.key_is_value and len(convention.tokens) == 2),
            )
        if convention.causal_only:
            yield "causal", self._is_only_causal(case) and problem.queries == problem.keys
        if convention.masks in ("keep", "hide"):
            yield "boolean_masks", not problem.additive_masks
        if convention.mask_dimensions < 4 and self._needs_mask(case):
            yield "shared_masks", "3d" not in problem.attention_mask
        if convention.mask_dimensions < 3:
            yield "one_mask", not self._joins_padding(case)

    def _needs_mask(self, case: Case) -> bool:
        """Whether the module gets attn_mask, and no flag in place of it."""
        replaced = self._is_only_causal(case) and self.convention.replaces_causal_mask
        return case.problem.attention_mask is not None and not replaced

    def _is_only_causal(self, case: Case) -> bool:
        """Whether the case has the causal flag, and the causal mask is the only one in the keyword ``mask``."""
        return case.problem.is_causal and not self._joins_padding(case)

    def _joins_padding(self, case: Case) -> bool:
        """Whether key_padding_mask becomes a part of the keyword ``mask``."""
        return case.problem.padding_mask is not None and not self.convention.separates_padding

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Return the module with the reference's forward and parameters."""
        return _WrappedAttention(reference, self)

    def weights_of(self, module: nn.Module, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the parameters of a built module, computed from the reference's."""
        assert isinstance(module, _WrappedAttention)
        return convert_parameters(
            parameters, module, {key: f"module.{layer}" for key, layer in self.convention.projections.items()},
            num_heads=module.num_heads, transposed=self.convention.transposed,
        )  # fmt: skip

    def prepare(self, module: nn.Module, case: Case, inputs: Inputs) -> Call:
        """Return the module itself; of a case that is not supported, a call that says so.

        A case may be called although it is declared unsupported, and the module could then return another result.
        """
        if reason := self.unsupported(case):
            raise Refusal(reason)
        return super().prepare(module, case, inputs)


def from_module(
    make: Maker,
    convention: ModuleConvention,
    *,
    name: str = "",
    source: str = "",
    policies: Policies | None = None,
) -> WrappedImplementation:
    """Make an implementation of multi-head attention from a module of another kind.

    ``make(embed_dim, num_heads, *, dropout, bias)`` returns the module; it may lack the keywords ``dropout`` and
    ``bias``. Cases that the convention cannot express are refused: other projections, masks, weights, cross-attention.
    The reference's parameters are loaded into the module's layers.
    """
    return WrappedImplementation(
        make, convention, name=name or make.__name__, source=source, policies=policies or Policies()
    )
