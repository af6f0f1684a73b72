"""Tests of the pools of samples of the reference and its copies."""

from pathlib import Path
from typing import Any

import pytest

from attnbench.processes.oracle_requests import DrawInputs, ListProfile
from attnbench.runner.candidate_pool import WorkerKind
from research.detection import plants, pools
from research.detection.command import DATA
from research.detection.pools import Condition, Setup
from research.lines import StudyError, read
from research.tests.detection.samples import CASE, make_pool


def test_rows_of_plants_are_corrected_by_their_measured_time() -> None:
    """The numbers of rows of all plants are multiplied by one bounded factor.

    If the samples are disturbed, the numbers of rows stay the same.
    """
    rows = {"2": 100, "3": 150}
    assert pools._correct_rows(rows, make_pool(extra=0.02)) == pytest.approx({"2": 50, "3": 75}, abs=3)
    assert pools._correct_rows(rows, make_pool(extra=0.0))["2"] in (33, 300)
    assert pools._correct_rows({"2": 1, "3": 2}, make_pool(extra=0.1)) == {"2": 1, "3": 1}
    assert pools._correct_rows(rows, make_pool(disturbed=True)) == rows
    assert pools.estimate_size(make_pool(disturbed=True), 2) is None


@pytest.mark.extended
def test_a_pool_holds_all_sides_of_fresh_processes_and_can_be_resumed(tmp_path: Path) -> None:
    """Real workers time the reference, its A/A control and all plants; stored processes are not measured again."""
    path, rows = tmp_path / "pool.jsonl", {"1": 1, "2": 1, "3": 1, "5": 1}
    settings: Any = {"rows": rows, "say": lambda _: None}
    condition, setup = Condition(threads=1, load="quiet"), Setup(length=8, budget_s=0.05)
    pools.gather_pool(path, condition, setup, processes=1, resume=False, **settings)
    before = path.read_bytes()
    found = pools.gather_pool(path, condition, setup, processes=2, resume=True, **settings)
    assert path.read_bytes().startswith(before)
    assert [process["seed"] for process in found.processes] == [0, 1]
    assert {frozenset(process["sides"]) for process in found.processes} == {
        frozenset({"torch_mha", "twin", *map(str, plants.SHARES)})
    }
    assert found.calls_per_cycle == 2
    base = pools.make_timing(found.processes, plants.BASE, threads=1, calls=7)
    assert base.twin is not None
    for own, twin, process in zip(base.cycles, base.twin.cycles, found.processes, strict=True):
        assert len({*own, *twin}) == len((*own, *twin)) == 7
        assert min(len(own), len(twin)) >= 2
        sides = process["sides"]
        both = sides["torch_mha"]["times_ns"] + sides["twin"]["times_ns"]
        assert sorted(pools.collect_times_ns(process, plants.BASE)) == sorted(both)
        assert pools.collect_times_ns(process, "0") == sides["0"]["times_ns"]
    assert found.header["rows"] == rows


def test_older_pools_called_the_reference_and_its_copy_in_every_cycle() -> None:
    """A cycle of an older pool has three calls. In such a pool, ``calls`` limits a process to its first calls."""
    older = make_pool()
    assert older.calls_per_cycle == 3
    timing = pools.make_timing(older.processes, plants.BASE, threads=1, calls=7)
    assert {len(process) for process in timing.cycles} == {7}


@pytest.mark.parametrize("name", sorted(str(path.relative_to(DATA)) for path in DATA.rglob("runs-*.jsonl.gz")))
def test_the_stored_pools_can_be_read(name: str) -> None:
    """Every process in the repository's data has samples of the reference and of all its copies.

    Every field of the samples of one implementation has one number per call.
    """
    pool = pools.read_pool(DATA / name.removesuffix(".gz"))
    assert pool is not None
    assert pool.processes
    for side in ("torch_mha", "twin", "0", "2", "3"):
        timing = pools.make_timing(pool.processes, side, threads=pool.threads)
        assert len(timing.samples_ns) == len(pool.processes)


def test_gathering_ends_after_ten_processes_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason of each failed process is stored."""

    class Failing:
        folder = tmp_path

        def __init__(self, **_: object) -> None: ...
        def __enter__(self) -> "Failing":
            return self

        def __exit__(self, *_: object) -> None: ...
        def ask_oracle(self, request: ListProfile | DrawInputs) -> list[str] | str:
            return [CASE] if isinstance(request, ListProfile) else ""

        @property
        def workers(self) -> "Failing":
            return self

        def get(self, names: list[str], _: WorkerKind) -> None:
            raise OSError(f"no process for {len(names)}")

    monkeypatch.setattr(pools, "Session", Failing)
    monkeypatch.setattr(pools, "PAUSE_S", 0.0)
    monkeypatch.setattr(pools, "WINDOW_S", 0.0)
    path, condition = tmp_path / "pool.jsonl", Condition(threads=1, load="quiet")
    with pytest.raises(StudyError, match="10 processes failed; the last failed with: no process for 4"):
        pools.gather_pool(path, condition, Setup(length=8, budget_s=0.1), rows={}, processes=1, resume=False)
    stored = read(path)
    assert stored is not None
    assert [record["kind"] for record in stored[1]] == ["failed"] * 10
