"""Tests of ceilings: rates of a product and of a copy, from the best of several calls."""

import pytest
import torch

from attnbench.measurement import roofline
from attnbench.measurement.roofline import measure_roofline
from attnbench.records.types import Ceiling
from attnbench.runner import Limits, Plan, Session, list_gating_checks, list_profile_cases, measure_ceilings


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and copies that take no time."""
    monkeypatch.setattr(roofline, "PRODUCT_ROWS", {"cpu": (64, 128)})
    monkeypatch.setattr(roofline, "COPIED_BYTES", {"cpu": 2**16})


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_every_dtype_has_its_ceilings(small: None, dtype: str) -> None:
    """Both rates are there, with the threads that they were reached on."""
    found = measure_roofline(dtype, "cpu")
    assert found.flop_per_s > 0
    assert found.bytes_per_s > 0
    assert found.threads == torch.get_num_threads()


def test_rates_are_those_of_the_best_call(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two operations for each multiply-add, bytes read and bytes written, over the shortest time but the first."""
    times_s = iter([0.001, 9, 8, 4, 8, 8, 0.001, 9, 8, 2, 8, 8, 0.001, 8, 8, 0.5, 8, 8])
    monkeypatch.setattr(roofline, "LONG_S", 10)
    monkeypatch.setattr(roofline, "ENOUGH_S", 100)
    monkeypatch.setattr(roofline, "_time_call_s", lambda call, device: next(times_s))
    found = measure_roofline("float32", "cpu")
    assert found.flop_per_s == 2 * 128**3 / 2
    assert found.bytes_per_s == 2 * 2**16 / 0.5


def test_a_product_that_takes_long_ends_the_search(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dtype that is computed number by number costs a fraction of a second, not minutes."""
    # One call that makes what is made once, and one that counts: more would take too long.
    times_s = iter([4.0, 4.0, 1.0, 1.0])
    monkeypatch.setattr(roofline, "_time_call_s", lambda call, device: next(times_s))
    found = measure_roofline("float16", "cpu")
    assert found.flop_per_s == 2 * 64**3 / 4
    assert found.bytes_per_s == 2 * 2**16


def test_a_run_has_a_ceiling_for_every_dtype_that_it_times() -> None:
    """In a process of its own with the threads of the run; what is known already is not measured again."""
    with Session(limits=Limits(threads=1)) as session:
        cases = list_profile_cases(session, [8, 16], ["forward"])
        plans = session.plan([*cases, cases[0].replace("float32", "bfloat16")], list_gating_checks())
        known = Ceiling(run="r", device="cpu", dtype="bfloat16", threads=1, flop_per_s=1.0, bytes_per_s=1.0)
        (found,) = measure_ceilings(session, plans, run="r", done=[known])
        assert (found.run, found.device, found.dtype, found.threads) == ("r", "cpu", "float32", 1)
        # Any machine that runs this multiplies a million and copies a million bytes a second.
        assert found.flop_per_s > 1e6
        assert found.bytes_per_s > 1e6
        assert not list(measure_ceilings(session, plans, run="r", done=[known, found]))


class Refusing:
    """A session whose workers have no memory for a ceiling."""

    def supervise_together(self, implementations: list[str]) -> "Refusing":
        """Itself."""
        assert implementations == []
        return self

    def __enter__(self) -> "Refusing":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, do: str, **request: str) -> dict[str, str]:
        """What a worker says."""
        assert (do, request) == ("ceiling", {"dtype": "float32", "device": "cpu"})
        return {"status": "out_of_memory", "reason": "no memory"}


def test_a_ceiling_that_cannot_be_measured_is_none() -> None:
    """Without the memory for it a run goes on without."""
    case = "multihead/B1.L8.S8.E16.H2/bias/mask=none/regime=plain/seed=0/float32/cpu/inference"
    plan = Plan(case=case, checks=("forward_parity",), missing=None, flop=1)
    assert not list(measure_ceilings(Refusing(), [plan], run="r"))  # type: ignore[arg-type]
