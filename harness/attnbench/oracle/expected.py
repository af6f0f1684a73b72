"""The expected values of one case: the oracle's quantities and the allowed error of each."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case, Mode
from attnbench.interface import DEFAULT_CHOICES, Choices, FaultModel, Inputs, Operator, Precision
from attnbench.oracle.error_budget import (
    FACTOR,
    ROUNDOFF,
    SCALE_STEP,
    Allowance,
    compute_allowances,
    count_model_runs,
    error_along,
    largest_error,
)
from attnbench.oracle.inputs import change_tensors, round_inputs
from attnbench.records.value_facts import ProbeName

__all__ = ["WEIGHTS", "CaseOracle", "Expected", "Probe", "blank_rows"]

# The quantities of a fault model are kept in memory if they take at most this many bytes. A case has about two dozen
# fault models.
KEPT_BYTES = 2**14
# Name of the output that holds attention weights.
WEIGHTS = "weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected values of a case, by name of the quantity."""

    quantities: dict[str, Tensor]
    allowances: dict[str, Allowance]
    # For each output, a mask of its hidden rows: the fully masked rows, in which no key is visible. For each gradient
    # that the policies leave open, a mask of the elements that a hidden row reaches.
    hidden_rows: dict[str, Tensor]


# Looks expected values up in a cache; computes and stores those that the cache lacks. Its arguments are the tensors in
# place of the case's, by the names of ``compute_with_tensors`` or as ``keep`` for a dropout mask, and a function that
# computes the values.
_LookUp = Callable[[Mapping[str, Tensor], Callable[[], Expected]], Expected]


def _is_equal(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


def _compute_anew(_: Mapping[str, Tensor], compute: Callable[[], Expected]) -> Expected:
    return compute()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A direction in the space of a quantity's elements.

    The error of the quantity along this direction is a single number.
    """

    direction: Tensor
    # Largest error of the rounding model's runs along the direction.
    model: float


class CaseOracle:
    """Computes what the evaluation of a case's observations needs, each part on its first use.

    ``inputs`` returns the inputs of the case. ``expected`` has the expected values if they were computed before.
    ``look_up`` reads expected values from a cache, or computes them. ``choices`` are the policies on which the expected
    values depend. The policy ``padded_queries="own"`` leaves the rows of padded queries to the implementation. These
    rows are excluded from the comparison: their outputs are set to 0, and no gradient flows through them.
    """

    def __init__(
        self,
        case: Case,
        operator: Operator,
        precision: Precision,
        inputs: Callable[[], Inputs],
        *,
        expected: Expected | None = None,
        look_up: _LookUp = _compute_anew,
        choices: Choices = DEFAULT_CHOICES,
    ) -> None:
        self.case = case
        self.operator = operator
        self.precision = precision
        self._load_inputs = inputs
        self._look_up = look_up
        self.choices = choices
        self._chosen: dict[Choices, CaseOracle] = {}
        # The last values that were drawn for one call, with their expected values, which several checks compare: the
        # key tells whether the allowed errors are those of the drawn values.
        self._drawn_once: tuple[Mapping[str, Tensor], dict[bool, Expected]] = {}, {}
        self._fault_quantities: dict[tuple[tuple[object, ...], Mode, bool], dict[str, Tensor]] = {}
        if expected is not None:
            self.expected = expected

    @cached_property
    def inputs(self) -> Inputs:
        """The inputs that implementations get, but with some cotangents set to 0.

        These are the cotangents of rows that are excluded from the comparison, and of weights that carry no gradient.
        """
        drawn = self._load_inputs()
        cotangents = dict(drawn.cotangents)
        if self.choices.detached_weights and WEIGHTS in cotangents:
            cotangents[WEIGHTS] = torch.zeros_like(cotangents[WEIGHTS])
        if self.choices.padded_queries == "own":
            cotangents = blank_rows(cotangents, self.operator.padded_rows(self.case, drawn))
        return replace(drawn, cotangents=cotangents)

    def choose(self, choices: Choices) -> "CaseOracle":
        """Return the oracle of the same case under other policies."""
        if _drop_nan(choices) == _drop_nan(self.choices):
            return self
        if choices not in self._chosen:
            self._chosen[choices] = CaseOracle(
                self.case, self.operator, self.precision, self._load_inputs, choices=choices
            )
        return self._chosen[choices]

    @cached_property
    def _excluded_rows(self) -> dict[str, Tensor]:
        """For each output, a mask of the rows that are excluded from the comparison."""
        return {} if self.choices.padded_queries == "answered" else self.operator.padded_rows(self.case, self.inputs)

    @cached_property
    def exact_inputs(self) -> Inputs:
        """The inputs converted to float64."""
        return round_inputs(self.inputs, torch.float64)

    @cached_property
    def expected(self) -> Expected:
        """The oracle's quantities and their allowances."""
        return self._look_up({}, lambda: self._compute_expected(self.case, self.inputs))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype that outputs must have."""
        dtype: torch.dtype = getattr(torch, self.case.dtype)
        return dtype

    @property
    def gradient_dtype(self) -> torch.dtype:
        """Dtype that gradients must have: the dtype of the inputs and parameters."""
        dtype: torch.dtype = getattr(torch, self.case.given_dtype)
        return dtype

    def compute_with_dropout(self, keep: Tensor) -> Expected:
        """Compute the expected values under a given dropout mask."""
        return self._look_up({"keep": keep}, lambda: self._compute_expected(self.case, self.inputs, keep))

    def compute_with_tensors(self, changed: Mapping[str, Tensor]) -> Expected:
        """Compute the expected values for other values of some tensors; they are stored for later runs.

        ``changed`` contains input tensors by name, cotangents as ``cotangent.<output>``, and parameters as
        ``parameter.<name>``.
        """
        if not changed:
            return self.expected
        return self._look_up(changed, lambda: self._compute_expected(self.case, self._change_inputs(changed)))

    def compute_once(self, changed: Mapping[str, Tensor], *, own_allowances: bool = False) -> Expected:
        """Compute the expected values for values that were drawn for one call: the case's own numbers with other signs.

        The allowed errors are those of the case's own values, unless ``own_allowances`` is set: then they are computed
        for the drawn values, which takes about ten times as long. In 50 sets of drawn values on five cases, the two
        differed by a factor of 0.6 to 1.8. No result is stored for later runs, because no later call has these values.
        """
        if not _is_equal(self._drawn_once[0], changed):
            self._drawn_once = changed, {}
        found = self._drawn_once[1]
        if own_allowances not in found:
            inputs = self._change_inputs(changed)
            found[own_allowances] = (
                self._compute_expected(self.case, inputs)
                if own_allowances
                else replace(self.expected, quantities=self._evaluate(self.case, round_inputs(inputs, torch.float64)))
            )
        return found[own_allowances]

    def estimate(self, changed: Mapping[str, Tensor], keep: Tensor | None, near: Expected) -> Expected:
        """Compute the quantities with tensors changed, or under a dropout mask, with the allowed errors of ``near``.

        This takes a tenth of the time of computing their own allowed errors.
        """
        inputs = self._change_inputs(changed) if changed else self.inputs
        return self._compute_expected(self.case, inputs, keep, allowances=near.allowances)

    def _change_inputs(self, changed: Mapping[str, Tensor]) -> Inputs:
        """Return the inputs with other values of some tensors, by the names of ``compute_with_tensors``."""
        inputs = change_tensors(self.inputs, changed.get)
        cotangents = {name: changed.get(f"cotangent.{name}", given) for name, given in inputs.cotangents.items()}
        parameters = {name: changed.get(f"parameter.{name}", given) for name, given in inputs.parameters.items()}
        return replace(inputs, parameters=parameters, cotangents=blank_rows(cotangents, self._excluded_rows))

    def find_probes(self, quantity: str) -> dict[ProbeName, Probe]:
        """Return the probes of a quantity (softmax scale, amplitude) by name, except those whose direction is zero."""
        return {
            name: probes[quantity] for name, probes in self._probes.items() if bool(probes[quantity].direction.any())
        }

    @cached_property
    def _probes(self) -> dict[ProbeName, dict[str, Probe]]:
        """Probes (directions g) by name and quantity; the error along g is ⟨value − expected, g⟩ / ⟨g, g⟩."""
        expected = self.expected.quantities
        directions: dict[ProbeName, dict[str, Tensor]] = {}
        scaled = [
            self.operator.scale_logits(self.case, self.exact_inputs, 1 + step) for step in (SCALE_STEP, -SCALE_STEP)
        ]
        ends = [self._evaluate(self.case, inputs) for inputs in scaled if inputs is not None]
        if len(ends) == len(scaled):
            up, down = ends
            # The derivative of a quantity with respect to the logarithm of the softmax scale, by a central difference.
            directions["softmax_scale"] = {name: (up[name] - down[name]) / (2 * SCALE_STEP) for name in expected}
        directions["amplitude"] = expected
        models = list(self.run_rounding_model(self.case, self.exact_inputs))
        return {
            what: {
                name: Probe(
                    direction=direction,
                    model=max(abs(error_along(model[name], expected[name], direction)) for model in models),
                )
                for name, direction in named.items()
            }
            for what, named in directions.items()
        }

    @cached_property
    def output_without_values(self) -> Tensor:
        """The first output if every attention weight is 0: only what is added after attention, such as a bias.

        For an operator without dropout, it is taken to be 0.
        """
        name = self.operator.outputs[0]
        if "dropout" in type(self.case.problem).__dataclass_fields__:
            return self.outputs_all_dropped[name]
        return torch.zeros_like(self.expected.quantities[name])

    @cached_property
    def outputs_all_dropped(self) -> dict[str, Tensor]:
        """The oracle's outputs under a dropout mask that drops every attention weight."""
        keep = torch.zeros((), dtype=torch.float64)
        return self._evaluate(self.case.with_fields(mode="inference"), self.exact_inputs, keep=keep)

    def find_row_sum_error(self, quantity: str) -> float:
        """Return the largest error of a row sum of the quantity over all runs of the rounding model."""
        sums = self.expected.quantities[quantity].sum(dim=-1)
        models = self.run_rounding_model(self.case, self.exact_inputs)
        return max(largest_error(model[quantity].sum(dim=-1), sums) for model in models)

    def run_rounding_model(self, case: Case, exact: Inputs, keep: Tensor | None = None) -> Iterator[dict[str, Tensor]]:
        """Yield the quantities of each run of the rounding model."""
        operator = self.operator
        for seed in range(count_model_runs(operator.work(case).pairs)):
            yield self._evaluate(case, exact, noise=operator.noise(ROUNDOFF[self.precision], seed), keep=keep)

    def fits_one_run(self, quantities: Mapping[str, Tensor], *, any_dtype: Collection[str] = ()) -> bool:
        """Whether quantities are surely within the budget, by the exact values and one run of the rounding model.

        The budget is never smaller than what one run allows, so the other runs and the yardsticks are not needed. False
        where this is not sure, as for another shape, for a dtype that ``any_dtype`` does not permit, or with fully
        masked rows.
        """
        exact = self._evaluate(self.case, self.exact_inputs)
        if self.operator.hidden_rows(self.case, self.exact_inputs):
            return False
        model = next(self.run_rounding_model(self.case, self.exact_inputs))
        wanted = {name: self.gradient_dtype if name.startswith("grad.") else self.dtype for name in quantities}
        return all(
            name in exact
            and (value.dtype == wanted[name] or name in any_dtype)
            and value.shape == exact[name].shape
            and bool(value.isfinite().all())
            and largest_error(value, exact[name]) <= FACTOR * largest_error(model[name], exact[name])
            for name, value in quantities.items()
        )

    def evaluate_fault_model(
        self, model: FaultModel, case: Case, keep: Tensor | None = None, *, noisy: bool = False
    ) -> dict[str, Tensor]:
        """Compute the quantities of ``case`` with a fault model in the formula; ``noisy`` adds rounding noise.

        Small results are cached: an implementation that fails a case usually fails several of its checks, and other
        implementations fail the same case.
        """
        key = (model.identity, case.mode, noisy)
        if keep is None and key in self._fault_quantities:
            return self._fault_quantities[key]
        noise = self.operator.noise(ROUNDOFF[self.precision], 0) if noisy else None
        found = self._evaluate(case, self.exact_inputs, noise=noise, keep=keep, fault=model.fault)
        if keep is None and sum(value.nbytes for value in found.values()) <= KEPT_BYTES:
            self._fault_quantities[key] = found
        return found

    def _compute_expected(
        self,
        case: Case,
        inputs: Inputs,
        keep: Tensor | None = None,
        *,
        allowances: dict[str, Allowance] | None = None,
    ) -> Expected:
        operator, exact = self.operator, round_inputs(inputs, torch.float64)
        # Quantities that are read from a file are contiguous. Computed quantities are made contiguous too, because the
        # order of a sum depends on the strides.
        quantities = {name: value.contiguous() for name, value in self._evaluate(case, exact, keep=keep).items()}
        return Expected(
            quantities=quantities,
            allowances=allowances
            or compute_allowances(
                quantities,
                models=self.run_rounding_model(case, exact, keep),
                # The reference draws its own dropout mask, so its paths are no yardsticks for the given mask.
                yardsticks=self._run_yardsticks(case, inputs) if keep is None else (),
                dtype=case.dtype,
                length=operator.length(case),
            ),
            hidden_rows=self._drop_excluded(operator.hidden_rows(case, exact)) | self._find_reached(case, exact, keep),
        )

    def _find_reached(self, case: Case, exact: Inputs, keep: Tensor | None) -> dict[str, Tensor]:
        """Return, for each gradient that the policies leave open, a mask of the elements that hidden rows reach.

        If the gradients of hidden rows are those of a softmax, only the gradients of additive masks are left open:
        it depends on the implementation whether they flow through the number that stands for minus infinity.
        """
        if self.choices.hidden_row_gradients == "exact" or not case.differentiates:
            return {}
        # Hidden rows reach the elements that become NaN if the gradients of all hidden rows are NaN.
        chosen = replace(self.choices, hidden_rows="nan", hidden_row_gradients="nan")
        found = self._blank(
            self.operator.evaluate(case, exact, keep=keep, fault=self.operator.declare_hidden_rows(chosen))
        )
        names = {name for name in found if name.startswith("grad.")}
        if self.choices.hidden_row_gradients == "softmax":
            names &= {f"grad.{name}" for name in case.problem.additive_masks}
        return {name: found[name].isnan() for name in names}

    def _evaluate(self, case: Case, exact: Inputs, **how: Any) -> dict[str, Tensor]:
        """Evaluate the formula and set excluded rows to 0; ``case`` may differ from ``self.case`` in the mode."""
        if self.choices.hidden_rows == "mean":
            # NaN gradients have no expected value: the elements that are not NaN are compared with the exact gradients.
            gradients = "exact" if self.choices.hidden_row_gradients == "nan" else self.choices.hidden_row_gradients
            chosen = replace(self.choices, hidden_row_gradients=gradients)
            how["fault"] = self.operator.declare_hidden_rows(chosen, how.get("fault"))
        return self._blank(self.operator.evaluate(case, exact, **how))

    def _run_yardsticks(self, case: Case, inputs: Inputs) -> Iterator[dict[str, Tensor]]:
        if self.choices.hidden_rows == "mean" and self.operator.hidden_rows(case, inputs):
            # In fully masked rows, the reference does not return the mean. The yardstick is therefore the formula
            # itself, in the dtype of the inputs.
            return iter([self._evaluate(case, inputs)])
        return (self._blank(found) for found in self.operator.yardsticks(case, inputs))

    def _blank(self, quantities: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the quantities with 0 in every row that is excluded from the comparison."""
        return blank_rows(quantities, self._excluded_rows)

    def _drop_excluded(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the masks ``rows`` with False in every row that is excluded from the comparison."""
        return {
            name: rows[name] & ~self._excluded_rows[name] if name in self._excluded_rows else rows[name]
            for name in rows
        }


def _drop_nan(choices: Choices) -> Choices:
    """Return the choices with "zero" in place of "nan" for hidden rows.

    The expected values are the same for both, because only the comparison sets NaN in fully masked rows.
    """
    return replace(choices, hidden_rows="zero") if choices.hidden_rows == "nan" else choices


def blank_rows(quantities: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the quantities, with 0 in every row that is True in the masks ``rows``.

    No gradient flows through these rows.

    A quantity whose shape does not fit its mask is left unchanged: the comparison later reports the wrong shape.
    """
    return {
        name: value.masked_fill(rows[name], 0.0) if name in rows and _is_broadcastable(value, rows[name]) else value
        for name, value in quantities.items()
    }


def _is_broadcastable(value: Tensor, rows: Tensor) -> bool:
    return value.dim() == rows.dim() and all(
        extent in (1, size) for extent, size in zip(rows.shape, value.shape, strict=True)
    )
