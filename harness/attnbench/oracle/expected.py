"""What is right for one case: the oracle's quantities, and how far each may be off."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case, Mode
from attnbench.interface import Inputs, Operator, PaddedQueries, Precision
from attnbench.oracle.error_budget import ROUNDOFF, SCALE_STEP, Allowance, allowances, along, model_runs
from attnbench.oracle.inputs import rounded

__all__ = ["CaseOracle", "Expected", "Probe", "blank_rows"]

# Largest quantities under a mistake that are kept; there are about two dozen mistakes for a case.
KEPT_BYTES = 2**14


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the oracle says of a case."""

    quantities: dict[str, Tensor]
    allowances: dict[str, Allowance]
    # For each output, where it belongs to a row from which every key is hidden.
    hidden_rows: dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A direction in which all elements of a quantity may be off together."""

    direction: Tensor
    # How far the runs of the rounding model are off along it at the most.
    model: float


class CaseOracle:
    """Everything that judging a case may need to know, computed when it is asked for.

    ``truth`` is what was computed before, where something was. Where rows of padded queries are the implementation's
    own, every quantity is 0 there, and nothing comes back through them.
    """

    def __init__(
        self,
        case: Case,
        operator: Operator,
        precision: Precision,
        inputs: Callable[[], Inputs],
        *,
        truth: Expected | None = None,
        padded_queries: PaddedQueries = "answered",
    ) -> None:
        self.case = case
        self.operator = operator
        self.precision = precision
        self._drawn = inputs
        self._padded_queries = padded_queries
        self._mistaken: dict[tuple[str, Mode, bool], dict[str, Tensor]] = {}
        if truth is not None:
            self.truth = truth

    @cached_property
    def inputs(self) -> Inputs:
        """The case's inputs, as implementations get them, with 0 as random weights of what is compared with nothing."""
        drawn = self._drawn()
        if self._padded_queries == "answered":
            return drawn
        return replace(drawn, cotangents=blank_rows(drawn.cotangents, self.operator.padded_rows(self.case, drawn)))

    @cached_property
    def _own_rows(self) -> dict[str, Tensor]:
        """Rows that are compared with nothing, by output."""
        return {} if self._padded_queries == "answered" else self.operator.padded_rows(self.case, self.inputs)

    @cached_property
    def exact(self) -> Inputs:
        """The same numbers in float64."""
        return rounded(self.inputs, torch.float64)

    @cached_property
    def truth(self) -> Expected:
        """The oracle's quantities and their allowances."""
        return self._computed(self.case, self.inputs)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype that outputs must have."""
        dtype: torch.dtype = getattr(torch, self.case.dtype)
        return dtype

    @property
    def gradient_dtype(self) -> torch.dtype:
        """Dtype that gradients must have: that of what they belong to."""
        dtype: torch.dtype = getattr(torch, self.case.given_dtype)
        return dtype

    def given(self, keep: Tensor) -> Expected:
        """What is right under a dropout mask."""
        return self._computed(self.case, self.inputs, keep)

    def probes(self, quantity: str) -> dict[str, Probe]:
        """What a quantity shows as a whole, by name; what it does not depend on is left out."""
        return {
            name: probes[quantity] for name, probes in self._probes.items() if bool(probes[quantity].direction.any())
        }

    @cached_property
    def _probes(self) -> dict[str, dict[str, Probe]]:
        """With g a direction, a quantity is off along it by ⟨value − oracle, g⟩ / ⟨g, g⟩."""
        right = self.truth.quantities
        directions: dict[str, dict[str, Tensor]] = {}
        scaled = [self.operator.scaled(self.case, self.exact, 1 + step) for step in (SCALE_STEP, -SCALE_STEP)]
        ends = [self._evaluated(self.case, one) for one in scaled if one is not None]
        if len(ends) == len(scaled):
            up, down = ends
            # The derivative by the logarithm of the scale.
            directions["softmax scale"] = {name: (up[name] - down[name]) / (2 * SCALE_STEP) for name in right}
        directions["amplitude"] = right
        models = list(self.models(self.case, self.exact))
        return {
            what: {
                name: Probe(
                    direction=direction,
                    model=max(abs(along(model[name], right[name], direction)) for model in models),
                )
                for name, direction in named.items()
            }
            for what, named in directions.items()
        }

    @cached_property
    def dropped(self) -> dict[str, Tensor]:
        """The oracle's outputs where dropout drops everything."""
        keep = torch.zeros((), dtype=torch.float64)
        return self._evaluated(self.case.with_fields(mode="inference"), self.exact, keep=keep)

    def models(self, case: Case, exact: Inputs, keep: Tensor | None = None) -> Iterator[dict[str, Tensor]]:
        """Runs of the rounding model."""
        operator = self.operator
        for seed in range(model_runs(operator.work(case).pairs)):
            yield self._evaluated(case, exact, noise=operator.noise(ROUNDOFF[self.precision], seed), keep=keep)

    def mistaken(
        self, words: str, fault: Any, case: Case, keep: Tensor | None = None, *, noisy: bool = False
    ) -> dict[str, Tensor]:
        """The oracle's quantities with a known mistake in its formula; ``case`` says which, ``noisy`` rounds.

        Small ones are kept: whoever fails a case fails several of its checks, and others fail it too.
        """
        key = (words, case.mode, noisy)
        if keep is None and key in self._mistaken:
            return self._mistaken[key]
        noise = self.operator.noise(ROUNDOFF[self.precision], 0) if noisy else None
        found = self._evaluated(case, self.exact, noise=noise, keep=keep, fault=fault)
        if keep is None and sum(value.nbytes for value in found.values()) <= KEPT_BYTES:
            self._mistaken[key] = found
        return found

    def _computed(self, case: Case, inputs: Inputs, keep: Tensor | None = None) -> Expected:
        operator, exact = self.operator, rounded(inputs, torch.float64)
        quantities = self._evaluated(case, exact, keep=keep)
        return Expected(
            quantities=quantities,
            allowances=allowances(
                quantities,
                models=self.models(case, exact, keep),
                # A path of the reference draws a dropout mask of its own: it measures nothing under a given one.
                yardsticks=self._yardsticks(case, inputs) if keep is None else (),
                dtype=case.dtype,
                length=operator.length(case),
            ),
            hidden_rows=self._without_own(operator.hidden_rows(case, exact)),
        )

    def _evaluated(self, case: Case, exact: Inputs, **how: Any) -> dict[str, Tensor]:
        """The formula's quantities of this case, in whichever mode, with 0 in rows that are compared with nothing."""
        return blank_rows(self.operator.evaluate(case, exact, **how), self._own_rows)

    def _yardsticks(self, case: Case, inputs: Inputs) -> Iterator[dict[str, Tensor]]:
        return (blank_rows(found, self._own_rows) for found in self.operator.yardsticks(case, inputs))

    def _without_own(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rows that are compared, of these."""
        return {name: rows[name] & ~self._own_rows[name] if name in self._own_rows else rows[name] for name in rows}


def blank_rows(quantities: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Quantities by name, with 0 in the given rows of each; what comes back through those rows is 0, too.

    Something of another shape than the rows are of is left as it is: what compares it will say so.
    """
    return {
        name: value.masked_fill(rows[name], 0.0) if name in rows and _fits(value, rows[name]) else value
        for name, value in quantities.items()
    }


def _fits(value: Tensor, rows: Tensor) -> bool:
    return value.dim() == rows.dim() and all(
        own in (1, size) for own, size in zip(rows.shape, value.shape, strict=True)
    )
