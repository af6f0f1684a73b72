"""Find the convention of a module class: its projections, its arguments, its masks, and what it returns."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn

from attnbench.checks.runs import describe_exception
from attnbench.interface import Policies
from attnbench.interface.conventions import MaskKind, ModuleConvention, Token, Word
from attnbench.kernel.module import WrappedImplementation
from attnbench.processes.convention_requests import AsItIs, Construction, ModuleProposal, NoConvention, Proposal
from attnbench.workers.trial.constructions import CannotConstruct, evaluate, find_construction
from attnbench.workers.trial.problem import Sizes, draw, is_close, make_masks, quiet_trial
from attnbench.workers.trial.projections import list_projections
from attnbench.workers.trial.reference import CAUSAL, UNMASKED, Masks, Reference
from attnbench.workers.trial.roles import find_call_role, find_token, is_mask

__all__ = ["find_module_convention"]

# Keywords of a forward method that stand for nothing else than a mask of padded keys.
_PADDING = ("key_padding_mask", "padding_mask", "pad_mask", "src_key_padding_mask", "key_mask")


def find_module_convention(module_class: type[nn.Module], reference_class: Any) -> Proposal:
    """Try the usual conventions, and return the first that gives the right result.

    ``reference_class`` is the class as an implementation that is constructed and called like the reference.
    """
    with quiet_trial():
        try:
            is_right = _call_as_it_is(reference_class)
            if is_right:
                return AsItIs()
            construction = find_construction(module_class)
        except CannotConstruct as error:
            return _give_up("construct", module_class, error=str(error))
        proposal = _Trial(module_class, construction).find()
    if isinstance(proposal, NoConvention):
        return msgspec.structs.replace(proposal, is_callable=is_right is not None)
    return proposal


def _call_as_it_is(implementation: Any) -> bool | None:
    """Whether the class gives the right result as the reference is called; None if it raises an exception."""
    reference, tokens = Reference(biased=True), draw(Sizes.batch, Sizes.queries, Sizes.embed_dim, seed=0)
    try:
        found = implementation.build(reference.module)(tokens, tokens, tokens)[0]
    except Exception:  # noqa: BLE001  # a class of another kind may raise any exception
        return None
    return is_close(found, reference.run(tokens, tokens)[0])


def _give_up(
    stage: Literal["construct", "layers", "call", "result"],
    module_class: type[nn.Module],
    *,
    module: nn.Module | None = None,
    error: str = "",
    likely: ModuleProposal | None = None,
) -> NoConvention:
    call = list(inspect.signature(module_class.forward).parameters.values())[1:]
    return NoConvention(
        kind="module",
        stage=stage,
        call=tuple(map(str, call)),
        constructor=tuple(map(str, inspect.signature(module_class).parameters.values())),
        layers={} if module is None else {name: tuple(one.shape) for name, one in module.named_parameters()},
        error=error,
        likely=likely,
    )


class _Trial:
    """The calls of modules of one class on one problem."""

    def __init__(self, module_class: type[nn.Module], construction: Construction) -> None:
        self.module_class = module_class
        self.construction = construction
        self.parameters = list(inspect.signature(module_class.forward).parameters.values())[1:]
        self.query = draw(Sizes.batch, Sizes.queries, Sizes.embed_dim, seed=0)
        self.context = draw(Sizes.batch, Sizes.keys, Sizes.embed_dim, seed=1)
        self.error = ""
        # Whether the layers of a module have taken the reference's parameters, and why they did not.
        self.was_built = False
        self.unfit = ""
        # The first convention by which a call raised no exception.
        self.likely: ModuleConvention | None = None

    def find(self) -> Proposal:
        """Return the first convention that is right, with the masks and weights that work in it."""
        module = evaluate(self.construction, self.module_class, _VALUES)
        layers = list(list_projections(module, Sizes.embed_dim))
        if not layers:
            return _give_up("layers", self.module_class, module=module)
        for biased in (True, False):
            self.reference = Reference(biased=biased)
            for convention in self._list_conventions(layers, biased=biased):
                if found := self._find_causality(convention):
                    return self._complete(found)
        if not self.was_built:
            return _give_up("layers", self.module_class, module=module, error=self.unfit)
        if self.likely is None:
            return _give_up("call", self.module_class, module=module, error=self.error)
        return _give_up("result", self.module_class, module=module, likely=self._propose(self.likely))

    def _list_conventions(
        self, layers: list[tuple[dict[str, str], bool]], *, biased: bool
    ) -> Iterator[ModuleConvention]:
        names: dict[Word, str] = {}
        # A mask without a default is given None.
        for one in self.parameters:
            if is_mask(one.name) and one.default is one.empty:
                names.setdefault("mask", one.name)
        for one in self.parameters:
            if (role := find_call_role(one.name)) in ("is_causal", "need_weights"):
                names[role] = one.name  # type: ignore[index]
        for projections, transposed in layers:
            for tokens in self._list_tokens():
                for batch_first in (True, False):
                    yield ModuleConvention(
                        projections=projections, transposed=transposed, tokens=tokens, batch_first=batch_first,
                        names=names, biased=biased,
                    )  # fmt: skip

    def _list_tokens(self) -> Iterator[tuple[Token, ...]]:
        """Yield the tokens that the first arguments can be: as their names say, or in the reference's order."""
        free = [one for one in self.parameters if not is_mask(one.name) and find_call_role(one.name) is None]
        named = tuple(find_token(one.name) for one in free[:3])
        required = sum(one.default is one.empty and one.kind is not one.VAR_KEYWORD for one in free)
        if sorted(one or "" for one in named) == ["key", "query", "value"]:
            yield named  # type: ignore[misc]
            return
        if required >= 3:
            yield ("query", "key", "value")
        elif required == 2 or named[1:2] == ("key",):
            yield ("query", "key")
        if required < 2:
            yield ("query",)

    def _find_causality(self, convention: ModuleConvention) -> ModuleConvention | None:
        """Return the convention if its calls are right, as one that is always causal if they are so; None if not."""
        contexts = [self.query] if len(convention.tokens) == 1 else [self.context, self.query]
        if any(self._is_right(convention, context=context) for context in contexts):
            return convention
        causal = replace(convention, causal_only=True)
        if len(convention.tokens) == 1 and self._is_right(causal, CAUSAL):
            return causal
        if self.likely is None and isinstance(output := self._run(convention)[0], Tensor):
            self.likely = causal if self._looks_causal(convention, output) else convention
        return None

    def _looks_causal(self, convention: ModuleConvention, output: Tensor) -> bool:
        """Whether a change of the last token leaves the outputs of the tokens before it as they are."""
        changed = self._run(convention, query=torch.cat([self.query[:, :-1], -self.query[:, -1:]], dim=1))[0]
        return isinstance(changed, Tensor) and torch.equal(changed[:, :-1], output[:, :-1])

    def _is_right(
        self, convention: ModuleConvention, masks: Masks = UNMASKED, *, context: Tensor | None = None
    ) -> bool:
        """Whether a call gives the reference's output; without a context, of self-attention."""
        context = self.query if context is None else context
        return is_close(self._run(convention, masks, context)[0], self.reference.run(self.query, context, masks)[0])

    def _run(
        self,
        convention: ModuleConvention,
        masks: Masks = UNMASKED,
        context: Tensor | None = None,
        *,
        query: Tensor | None = None,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> tuple[object, object]:
        """Return output and weights of a call of a new module; None for both if it raises an exception.

        Without tokens, they are those of self-attention. With ``dropout``, the module is in training.
        """
        values = {**_VALUES, "bias": self.reference.biased, "dropout": dropout}

        def make(embed_dim: int, num_heads: int) -> nn.Module:
            sizes = {"embed_dim": embed_dim, "num_heads": num_heads}
            return evaluate(self.construction, self.module_class, values | sizes)

        implementation = WrappedImplementation(make, convention, name="", source="", policies=Policies())
        query = self.query if query is None else query
        context = query if context is None else context
        try:
            module = implementation.build(self.reference.module).train(dropout > 0)
        except Exception as error:  # noqa: BLE001  # layers that do not fit
            self.unfit = describe_exception(error)
            return None, None
        self.was_built = True
        try:
            output, weights = module(
                query, context, context, attn_mask=masks.attn_mask, key_padding_mask=masks.key_padding_mask,
                is_causal=masks.is_causal, need_weights=need_weights, average_attn_weights=False,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001  # a wrong convention may raise any exception
            self.error = describe_exception(error)
            return None, None
        self.error = ""
        return output, weights

    def _complete(self, convention: ModuleConvention) -> ModuleProposal:
        """Return the proposal: the convention with its masks, flags and weights, and the options that work."""
        convention = self._name_masks(convention)
        if not convention.causal_only:
            convention = self._name_causal_flag(convention)
        convention = replace(convention, contiguous=not self._takes_strides(convention))
        convention = self._name_weights(convention)
        literals = {"dropout": "0.0", "bias": str(self.reference.biased)}
        if self._drops_weights(convention):
            del literals["dropout"]
        if self.reference.biased and self._takes_no_biases(convention):
            del literals["bias"]
        proposal = self._propose(convention, literals)
        return msgspec.structs.replace(proposal, hidden_rows=self._find_hidden_rows(convention))

    def _propose(
        self, convention: ModuleConvention, literals: Mapping[str, str] = MappingProxyType({})
    ) -> ModuleProposal:
        """Return a proposal; ``literals`` replace arguments of the constructor."""
        optional = [
            one.name
            for one in self.parameters[len(convention.tokens) :]
            if one.default is not one.empty and one.name not in convention.names.values()
        ]
        return ModuleProposal(
            construction=self.construction.replace_expressions(dict(literals)),
            convention=convention,
            unused=tuple(optional),
        )

    def _takes_strides(self, convention: ModuleConvention) -> bool:
        """Whether the module takes tokens that lie in memory as (length, batch, width)."""
        strided = self.query.transpose(0, 1).contiguous().transpose(0, 1)
        masks = CAUSAL if convention.causal_only else UNMASKED
        found = self._run(convention, masks, query=strided)[0]
        return is_close(found, self.reference.run(strided, strided, masks)[0])

    def _name_masks(self, convention: ModuleConvention) -> ModuleConvention:
        """Return the convention with the keywords, kinds and dimensions of masks that give the right result, if any."""
        found = _drop_name(convention, "mask")
        for name in (one.name for one in self.parameters if is_mask(one.name)):
            tried = (one for one in _list_mask_conventions(found, name) if self._takes_masks(one))
            found = next(tried, found)
        return found if {"mask", "key_padding_mask"} & {*found.names} else convention

    def _takes_masks(self, convention: ModuleConvention) -> bool:
        keep, padding = make_masks(Sizes.queries, Sizes.queries)
        if convention.causal_only:
            return "mask" not in convention.names and self._is_right(
                convention, Masks(attn_mask=CAUSAL.attn_mask, key_padding_mask=~padding, is_causal=True)
            )
        general = "mask" in convention.names
        padded = "key_padding_mask" in convention.names or convention.mask_dimensions > 2
        masks = [Masks(attn_mask=~keep if general else None, key_padding_mask=~padding if padded else None)]
        if convention.masks == "any":
            added = draw(Sizes.queries, Sizes.queries, seed=5)
            masks.append(Masks(attn_mask=added) if general else Masks(key_padding_mask=added[: Sizes.batch]))
        return all(self._is_right(convention, one) for one in masks)

    def _name_causal_flag(self, convention: ModuleConvention) -> ModuleConvention:
        """Return the convention without the causal flag, if the flag does not give a causal mask."""
        if "is_causal" not in convention.names or self._is_right(convention, CAUSAL):
            return convention
        return _drop_name(convention, "is_causal")

    def _name_weights(self, convention: ModuleConvention) -> ModuleConvention:
        """Return the convention with what the second element of a returned tuple is."""
        masks = CAUSAL if convention.causal_only else UNMASKED
        expected = self.reference.run(self.query, self.query, masks)[1]
        wanted: dict[Literal["heads", "mean"], Tensor] = {"heads": expected, "mean": expected.mean(1, keepdim=True)}
        for weights, values in wanted.items():
            tried = replace(convention, weights=weights)
            if is_close(self._run(tried, masks, need_weights=True)[1], values):
                return tried
        return _drop_name(convention, "need_weights")

    def _drops_weights(self, convention: ModuleConvention) -> bool:
        """Whether the argument ``dropout`` drops attention weights, and nothing else that is seen in the output."""
        masks = CAUSAL if convention.causal_only else UNMASKED
        first, second = (self._run(convention, masks, dropout=0.5)[0] for _ in range(2))
        if not isinstance(first, Tensor) or not isinstance(second, Tensor) or torch.equal(first, second):
            return False
        # Dropout of the output, after its projection, gives zeros.
        return "out" not in convention.projections or bool((first != 0).all())

    def _takes_no_biases(self, convention: ModuleConvention) -> bool:
        """Whether the argument ``bias=False`` makes all projections without a bias."""
        own, self.reference = self.reference, Reference(biased=False)
        try:
            found = self._find_causality(replace(convention, causal_only=False))
            return found is not None
        finally:
            self.reference = own

    def _find_hidden_rows(self, convention: ModuleConvention) -> Literal["zero", "nan", "mean"]:
        """Return what the output is, before its projection, in a row in which every key is hidden."""
        every_key = torch.arange(Sizes.queries)[:, None].expand(-1, Sizes.queries) == 1
        if "mask" in convention.names:
            masks = Masks(attn_mask=every_key)
        elif "key_padding_mask" in convention.names:
            masks = Masks(key_padding_mask=torch.ones(Sizes.batch, Sizes.queries, dtype=torch.bool))
        else:
            return "zero"
        output = self._run(convention, masks)[0]
        if not isinstance(output, Tensor):
            return "zero"
        row = output[:, 1].double()
        if row.isnan().all():
            return "nan"
        return "mean" if is_close(row, self.reference.project_mean(self.query)) else "zero"


# Values of a maker's arguments in a trial.
_VALUES: Mapping[str, Any] = {"embed_dim": Sizes.embed_dim, "num_heads": Sizes.heads, "dropout": 0.0, "bias": True}


def _drop_name(convention: ModuleConvention, dropped: Word) -> ModuleConvention:
    return replace(convention, names={word: name for word, name in convention.names.items() if word != dropped})


def _list_mask_conventions(convention: ModuleConvention, name: str) -> Iterator[ModuleConvention]:
    """Yield what a keyword of a mask can be, the most general first."""
    kinds: tuple[MaskKind, ...] = ("any", "keep", "additive", "hide")
    if "mask" not in convention.names and name not in _PADDING:
        dimensions: Literal[2, 3, 4]
        for dimensions in (4, 3, 2):
            for kind in kinds:
                names = {**convention.names, "mask": name}
                yield replace(convention, names=names, masks=kind, mask_dimensions=dimensions)
    if "key_padding_mask" not in convention.names:
        for kind in (convention.masks,) if "mask" in convention.names else kinds:
            yield replace(convention, names={**convention.names, "key_padding_mask": name}, masks=kind)
