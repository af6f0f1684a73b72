"""Tests of the ceilings of a roofline: the rates of the fastest matrix product and of the fastest copy."""

from itertools import chain
from typing import ClassVar

import pytest
import torch

from attnbench.devices.cpu import CPU
from attnbench.measurement import roofline
from attnbench.measurement.roofline import measure_roofline
from attnbench.processes.candidate_requests import MeasureRates, Outcome, Rates
from attnbench.records.types import Ceiling
from attnbench.runner import (
    Limits,
    Plan,
    Session,
    list_gating_checks,
    list_profile_cases,
    measure_ceilings,
    measure_rates,
)
from attnbench.runner.candidate_pool import TIMING, WorkerKind


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the matrix products and copies so small that they take almost no time."""
    monkeypatch.setattr(CPU, "product_rows", (64, 128))
    monkeypatch.setattr(CPU, "copied_bytes", 2**16)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_every_dtype_has_its_ceilings(small: None, dtype: str) -> None:
    """Both rates are positive, and the number of threads is recorded."""
    found = measure_roofline(dtype, "cpu")
    assert found.flop_per_s > 0
    assert found.bytes_per_s > 0
    assert found.threads == torch.get_num_threads()


def test_rates_are_those_of_the_fastest_call(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A multiply-add counts as two operations, a copy as bytes read and written; the first call is a warm-up."""
    # Each rate takes a warm-up call and five timed calls.
    orders_s = [[0.001, 9, 8, 6, 8, 8], [0.001, 9, 8, 6, 8, 8], [0.001, 9, 8, 4, 8, 8], [0.001, 9, 8, 5, 8, 8]]
    times_s = chain(*orders_s, [0.001, 9, 8, 2, 8, 8], [0.001, 8, 8, 0.5, 8, 8])
    monkeypatch.setattr(roofline, "LONG_S", 10)
    monkeypatch.setattr(roofline, "ENOUGH_S", 100)
    monkeypatch.setattr(roofline, "_time_call_s", lambda call, device: next(times_s))
    found = measure_roofline("float32", "cpu")
    assert found.flop_per_s == 2 * 128**3 / 2
    assert found.bytes_per_s == 2 * 2**16 / 0.5


def test_no_larger_product_is_tried_after_a_slow_one(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dtype without a fast matrix product is measured in a fraction of a second, not in minutes."""
    # Each rate takes a warm-up call and a timed call. The product has four orders of rows and columns. An eleventh call
    # would raise, because the list has ten times.
    times_s = iter([*[9.0] * 2, *[4.0] * 2, *[9.0] * 4, *[1.0] * 2])
    monkeypatch.setattr(roofline, "_time_call_s", lambda call, device: next(times_s))
    found = measure_roofline("float16", "cpu")
    assert found.flop_per_s == 2 * 64**3 / 4
    assert found.bytes_per_s == 2 * 2**16


def test_the_fastest_order_of_rows_and_columns_counts(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every order is tried with the smallest matrices, and only the fastest one with larger matrices."""
    read = []

    def record(one: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor) -> None:
        read.append((len(out), *(not matrix.is_contiguous() for matrix in (one, other))))

    monkeypatch.setattr(torch, "mm", record)
    monkeypatch.setattr(roofline, "_time_call_s", lambda call, device: (call(), 0.01 if read[-1][2] else 0.03)[1])
    measure_roofline("float32", "cpu")
    assert list(dict.fromkeys(read)) == [
        (64, False, False), (64, False, True), (64, True, False), (64, True, True), (128, False, True),
    ]  # fmt: skip


def test_a_run_has_a_ceiling_for_every_dtype_that_it_times() -> None:
    """A worker with the run's number of threads measures each ceiling; stored ceilings are not measured again."""
    with Session(limits=Limits(threads=1)) as session:
        cases = list_profile_cases(session, [8, 16], ["forward"])
        plans = session.plan([*cases, cases[0].replace("float32", "bfloat16")], list_gating_checks())
        stored = Ceiling(run="r", device="cpu", dtype="bfloat16", threads=1, flop_per_s=1.0, bytes_per_s=1.0)
        (found,) = measure_ceilings(session, plans, run="r", done=[stored])
        assert (found.run, found.device, found.dtype, found.threads) == ("r", "cpu", "float32", 1)
        # Every machine reaches a million operations and a million bytes per second.
        assert found.flop_per_s > 1e6
        assert found.bytes_per_s > 1e6
        assert not list(measure_ceilings(session, plans, run="r", done=[stored, found]))
        # A session measures the rates once, for the forecast and for the record.
        rates = measure_rates(session, plans, without=[("cpu", "bfloat16")])
        assert rates == {("cpu", "float32"): session.rates["cpu", "float32"]}
        assert rates["cpu", "float32"].flop_per_s == found.flop_per_s


class Refusing:
    """Stands in for a session whose workers have too little memory to measure a ceiling."""

    rates: ClassVar[dict[tuple[str, str], Rates]] = {}

    @property
    def workers(self) -> "Refusing":
        """The pool, which is this object."""
        return self

    def get(self, implementations: list[str], kind: WorkerKind) -> "Refusing":
        """Return this object, in place of a supervisor of a worker that times."""
        assert (implementations, kind) == ([], TIMING)
        return self

    def __enter__(self) -> "Refusing":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: MeasureRates) -> Outcome:
        """Answer as a worker that has too little memory."""
        assert request == MeasureRates(dtype="float32", device="cpu")
        return Outcome(status="out_of_memory", facts=())


def test_a_ceiling_that_cannot_be_measured_is_left_out() -> None:
    """With too little memory a run has no ceiling, and no error."""
    case = "multihead/B1.L8.S8.E16.H2/bias/mask=none/regime=plain/seed=0/float32/cpu/inference"
    plan = Plan(case=case, checks=("forward_parity",), missing=None, flop=1)
    assert not list(measure_ceilings(Refusing(), [plan], run="r"))  # type: ignore[arg-type]
