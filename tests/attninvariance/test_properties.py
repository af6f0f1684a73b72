"""Tests of the grades: planted violations of one ulp are found, and a fixed order of summation has none."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from attnbench.cases import Case, Shape
from attnbench.interface import Implementation, Policies, Refusal
from attnbench.plugins.registry import load_operator
from attnbench.records.outcome_facts import InvarianceGrade
from attnbench.refusals import OtherRefusal
from attninvariance.calls import Subject
from attninvariance.sweep import PROPERTIES, SWEEPS, Point, Sweep, is_declared, list_points
from attninvariance.texts import NO_KEY_SPLITS
from attninvariance.worker import measure
from attnzoo.batched_matmul import CORE_BATCHED_MATMUL
from attnzoo.fixed_order import FIXED_ORDER, FixedOrder
from attnzoo.online_softmax import ONLINE_SOFTMAX

QUANTITIES = ("output", "gradients")
TINY = Sweep(batches=(1, 2, 3, 4), lengths=(1, 2, 5), head_dims=(1, 3), paddings=(1, 3), chunks=(2, 3), limit_s=600.0)


class OneUlpOff(FixedOrder):
    """Computes what ``fixed_order`` computes, and moves the output by one ulp in some calls."""

    name = "one_ulp_off"

    def __init__(self, moves: Callable[[Case], bool]) -> None:
        self._moves = moves

    def prepare(self, module: nn.Module, case: Case, inputs: Any) -> Any:
        """Return a call that moves the output of cases that ``moves`` chooses."""
        del inputs
        if not self._moves(case):
            return module

        def call(**arguments: Any) -> tuple[Tensor, None]:
            output, _ = module(**arguments)
            return torch.nextafter(output, torch.full_like(output, torch.inf)), None

        return call


def grade(implementation: Implementation, name: str, quantity: str = "output", sweep: Sweep = TINY) -> InvarianceGrade:
    """Return the grade of a property of an implementation, measured in this process."""
    operator = load_operator(implementation.operator)
    cases = operator.shape_cases(Shape(queries=8, keys=8))
    case = next(one for one in cases if one.differentiates == (quantity == "gradients"))
    return measure(Subject(implementation, operator, case), name, sweep)


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("name", [name for name in PROPERTIES if name != "key_split"])
def test_a_fixed_order_of_summation_is_invariant(name: str, quantity: str) -> None:
    """``fixed_order`` keeps every bit of outputs and gradients in each property, as it declares."""
    found = grade(FIXED_ORDER, name, quantity)
    assert (found.largest_ulp, found.differing, found.refused, found.first) == (0, 0, 0, ())
    assert found.complete
    assert found.declared


@pytest.mark.parametrize(
    ("moves", "violated", "sizes"),
    [
        (lambda case: case.problem.batch == 3, "batch_size", {"batch": 3, "length": 64, "head_dim": 32}),
        (lambda case: case.problem.queries < case.problem.keys, "decode", {"batch": 1, "length": 64, "head_dim": 32}),
    ],
)
def test_a_planted_violation_of_one_ulp_is_found(
    moves: Callable[[Case], bool], violated: str, sizes: dict[str, int]
) -> None:
    """One ulp at batch size 3, and one in decoding, are found with the sizes; other properties stay bitwise."""
    planted = OneUlpOff(moves)
    found = grade(planted, violated)
    assert found.largest_ulp == 1
    assert 0 < found.largest_difference < 1e-6
    assert {one.name: one.value for one in found.first} == sizes
    assert 0 < found.differing <= found.compared
    for name in ("repeat", "neighbours", "position", "padding"):
        assert grade(planted, name).largest_ulp == 0


def test_other_splits_of_the_keys_are_compared() -> None:
    """An implementation that offers other splits of the keys is graded by them; another one is refused."""
    found = grade(ONLINE_SOFTMAX, "key_split")
    assert {one.name: one.values for one in found.swept}["keys_per_part"] == tuple(sorted(ONLINE_SOFTMAX.key_splits))
    with pytest.raises(Refusal) as error:
        grade(FIXED_ORDER, "key_split")
    assert error.value.args[0] == NO_KEY_SPLITS


class EvenOnly(FixedOrder):
    """Refuses odd batches."""

    name = "even_only"

    def unsupported(self, case: Case) -> OtherRefusal | None:
        """Refuse an odd number of sequences."""
        return OtherRefusal(text="an odd batch") if case.problem.batch % 2 else None


def test_refused_sizes_are_counted() -> None:
    """A sweep leaves out the sizes that an implementation refuses; if it refuses all, the property is refused."""
    found = grade(EvenOnly(), "repeat")
    assert found.refused == 2
    assert {one.name: one.values for one in found.swept}["batch"] == (2, 4)
    with pytest.raises(Refusal) as error:
        grade(EvenOnly(), "batch_size")
    assert error.value.args[0] == OtherRefusal(text="an odd batch")


def test_a_sweep_ends_at_its_time_limit() -> None:
    """After the time limit no further point is compared, and the grade has the sizes that were."""
    found = grade(FIXED_ORDER, "repeat", sweep=msgspec.structs.replace(TINY, limit_s=0.0))
    assert (found.compared, found.complete) == (1, False)
    assert {one.name: one.values for one in found.swept}["batch"] == (1,)


@pytest.mark.parametrize("name", [name for name in PROPERTIES if name not in ("key_split", "padding_side")])
def test_attention_without_projections_has_the_same_properties(name: str) -> None:
    """Each property can be measured of ``attention_core``, whose queries and keys are separate tensors."""
    for quantity in QUANTITIES:
        assert grade(CORE_BATCHED_MATMUL, name, quantity).compared > 0


def test_a_size_is_swept_while_the_others_stay() -> None:
    """A point has one size of the sweep; a single sequence has no neighbours, and no chunk is a whole sequence."""
    points = list_points("neighbours", TINY)
    assert len(points) == len(set(points))
    assert Point(batch=1) not in points
    assert {point.batch for point in points if (point.length, point.head_dim) == (64, 32)} == {2, 3, 4}
    assert all(point.own < point.length for point in list_points("prefill", TINY))


def test_the_full_sweep_has_every_batch_and_the_neighbours_of_powers_of_two() -> None:
    """The full sweep has batches 1 to 64, and each power of two with the sizes beside it."""
    full = SWEEPS["full"]
    assert full.batches == tuple(range(1, 65))
    assert {one + beside for one in (2, 4, 8, 16, 32, 64, 128, 256) for beside in (-1, 0, 1)} <= set(full.lengths)
    assert {one + beside for one in (2, 4, 8, 16, 32, 64, 128) for beside in (-1, 0, 1)} <= set(full.head_dims)


def test_repetition_is_declared_by_its_own_policies() -> None:
    """``deterministic`` and ``unordered_gradients`` declare that repeated calls are equal; ``invariant`` the rest."""
    assert is_declared(Policies(), "repeat", "gradients", "cpu")
    assert not is_declared(Policies(unordered_gradients=("cuda",)), "repeat", "gradients", "cuda")
    assert is_declared(Policies(unordered_gradients=("cuda",)), "repeat", "output", "cuda")
    assert not is_declared(Policies(), "decode", "output", "cpu")
    assert is_declared(Policies(invariant=("decode",)), "decode", "output", "cpu")
