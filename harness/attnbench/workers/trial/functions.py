"""Find the convention of a function of queries, keys and values."""

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any, Literal

import torch
from torch import Tensor

from attnbench.checks.runs import describe_exception
from attnbench.interface.conventions import Convention, Layout, MaskKind
from attnbench.kernel.convention import call_by, find_keywords
from attnbench.processes.convention_requests import AsItIs, FunctionProposal, NoConvention, Proposal
from attnbench.workers.trial.problem import Sizes, attend, draw, is_close, make_masks, quiet_trial
from attnbench.workers.trial.roles import find_call_role, find_token, is_mask

__all__ = ["find_function_convention"]

# Keywords that ``from_kernel`` passes, and the kinds of masks, the most general first.
KEYWORDS = frozenset(("mask", "is_causal", "scale", "dropout_p", "need_weights"))
_KINDS: tuple[MaskKind, ...] = ("any", "keep", "additive", "hide")


def find_function_convention(function: Callable[..., Any]) -> Proposal:
    """Try the usual conventions, the plainest first, and return the first that gives the right result."""
    with quiet_trial():
        return _Trial(function).find()


class _Trial:
    """The calls of one function on one problem."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.parameters = list(inspect.signature(function).parameters.values())
        shape = (Sizes.batch, Sizes.heads, Sizes.queries, Sizes.head_dim)
        self.q, self.k, self.v = (draw(*shape, seed=seed) for seed in range(3))
        self.causal = torch.ones(Sizes.queries, Sizes.queries, dtype=torch.bool).tril()
        self.error = ""

    def find(self) -> Proposal:
        """Return the first convention that is right, with the keywords that work in it."""
        names, likely = self._name_keywords(), None
        for convention in self._list_conventions(names):
            output = self._call(convention)
            for causal_only, expected in ((False, self._attend()), (True, self._attend(self.causal))):
                if is_close(output, expected):
                    return self._complete(replace(convention, causal_only=causal_only))
            if likely is None and isinstance(output, Tensor) and output.shape == self.q.shape:
                likely = convention
        return NoConvention(
            kind="function",
            stage="call" if likely is None else "result",
            call=tuple(map(str, self.parameters)),
            error=self.error if likely is None else "",
            is_callable=self._call(Convention()) is not None,
            likely=None if likely is None else FunctionProposal(convention=likely, unused=self._list_unused(likely)),
        )

    def _complete(self, convention: Convention) -> Proposal:
        """Return the proposal of a convention that is right without masks."""
        named = None if convention.causal_only else self._name_mask(convention)
        found = named or convention
        rows = self._find_hidden_rows(found) if named else "zero"
        if found == Convention() and rows == "zero":
            return AsItIs()
        return FunctionProposal(convention=found, hidden_rows=rows, unused=self._list_unused(found))

    def _list_unused(self, convention: Convention) -> tuple[str, ...]:
        """Return the parameters that a call by the convention never gets."""
        accepted = find_keywords(convention, self.function) or frozenset()
        given = {convention.names.get(word, word) for word in accepted & KEYWORDS}
        optional = (one for one in self.parameters if one.default is not one.empty)
        return tuple(one.name for one in optional if one.name not in given)

    def _name_keywords(self) -> dict[str, str]:
        """Return the function's keywords, other than masks, that have another name than the one they stand for."""
        found = {find_call_role(one.name): one.name for one in self.parameters}
        # A mask without a default is given None.
        for one in self.parameters:
            if is_mask(one.name) and one.default is one.empty:
                found.setdefault("mask", one.name)
        return {word: name for word, name in found.items() if word is not None and word != name}

    def _list_conventions(self, names: dict[str, str]) -> Iterator[Convention]:
        tokens = [one.name for one in self.parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        if tokens and "qkv" in tokens[0].lower():
            yield Convention(layout="bs3hd", names=names)
            return
        named = tuple((find_token(name) or "?")[0] for name in tokens[:3])
        # An order that the names say is not doubted: a function that computes otherwise is wrong.
        orders = [named] if sorted(named) == ["k", "q", "v"] else list(permutations("qkv"))
        layouts: tuple[Layout, ...] = ("bhsd", "bshd", "folded", "sbhd")
        for order in orders:
            for layout in layouts:
                for contiguous in (False, True):
                    yield Convention(layout=layout, order=order, names=names, contiguous=contiguous)  # type: ignore[arg-type]

    def _attend(self, mask: Tensor | None = None) -> Tensor:
        return attend(self.q, self.k, self.v, mask)

    def _call(self, convention: Convention, *, mask: Tensor | None = None, is_causal: bool = False) -> object:
        """Return the output of a call; None if it raises an exception."""
        offered = {
            "mask": mask, "is_causal": is_causal, "scale": 1 / math.sqrt(Sizes.head_dim), "dropout_p": 0.0,
            "need_weights": False,
        }  # fmt: skip
        accepted = find_keywords(convention, self.function)
        given = {word: value for word, value in offered.items() if accepted is None or word in accepted}
        try:
            result = call_by(convention, self.function, self.q, self.k, self.v, given)
        except Exception as error:  # noqa: BLE001  # a wrong convention may raise any exception
            self.error = describe_exception(error)
            return None
        self.error = ""
        return result[0] if isinstance(result, tuple) else result

    def _name_mask(self, convention: Convention) -> Convention | None:
        """Return the convention with the keyword and kind of masks that give the right result; None if none does."""
        for name in (one.name for one in self.parameters if is_mask(one.name)):
            for kind in _KINDS:
                names = {**convention.names, **({} if name == "mask" else {"mask": name})}
                tried = replace(convention, names=names, masks=kind)
                if self._takes_masks(tried):
                    return tried
        return None

    def _takes_masks(self, convention: Convention) -> bool:
        keep, padding = make_masks(Sizes.queries, Sizes.queries)
        mask = keep & padding[:, None, None, :]
        right = is_close(self._call(convention, mask=mask), self._attend(mask))
        if convention.masks != "any" or not right:
            return right
        added = draw(Sizes.queries, Sizes.queries, seed=5)[None, None]
        return is_close(self._call(convention, mask=added), self._attend(added))

    def _find_hidden_rows(self, convention: Convention) -> Literal["zero", "nan", "mean"]:
        """Return what the output is in a row in which every key is hidden."""
        mask = torch.ones(1, 1, Sizes.queries, Sizes.queries, dtype=torch.bool)
        mask[..., 1, :] = False
        output = self._call(convention, mask=mask)
        if not isinstance(output, Tensor) or output.shape != self.q.shape:
            return "zero"
        row = output[:, :, 1].double()
        if row.isnan().all():
            return "nan"
        return "mean" if is_close(row, self.v.double().mean(2)) else "zero"
