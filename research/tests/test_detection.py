"""Tests of the study of detection: the rules of other tools, the draws, the stored data, and one tiny pool."""

import gzip
import itertools
import json
import random
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.plugins.registry import load_operator, load_problem_types
from attnbench.records.run_file import RunFile
from attnbench.records.types import Finding, Machine, Result, Run
from attnbench.workers.oracle_worker import OracleWorker
from research.detection import agreement, judging, load, plants, pools, rules, runs, showing, starts
from research.detection.comparisons import DrawSettings, Tally, evaluate_rules, upper_bound
from research.detection.load import Competitor, run_competitor, measure_busy_cores
from research.detection.pools import Condition, Pool, Setup
from research.detection.rules import Cost, Layout
from research.lines import Lines, StudyError, read

CASE = "multihead/B1.L4.S4.E8.H2/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/inference"
COST = Cost(seconds=15.0, start_s=1.0, call_s=0.0025)
# Of a start alone, and of one beside others.
STARTS_S = (1.0, 1.0)
CALL_NS = 1_000_000


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the study tells its children is told them for one test."""
    monkeypatch.setenv(plants.ROWS, "{}")
    monkeypatch.setenv("PYTHONPATH", pools.ROOT)


def noisy(mean: float, *, count: int, seed: int, spread: float = 0.01) -> list[float]:
    """Samples around a mean."""
    draw = random.Random(seed)
    return [mean * draw.gauss(1.0, spread) for _ in range(count)]


def side(ratio: float, *, seed: int, calls: int, disturbed: bool) -> dict[str, list[int]]:
    """Samples of one side in one process, as a worker answers."""
    times = [round(time) for time in noisy(CALL_NS * ratio, count=calls, seed=seed, spread=0.005)]
    waited = [time // 4 if disturbed else 0 for time in times]
    return {"times_ns": times, "waited_ns": waited, "switches": [0] * calls, "cycles": list(range(calls))}


def pool(
    *, processes: int = 24, threads: int = 1, disturbed: bool = False, twin: float = 1.0, extra: float = 0.01
) -> Pool:
    """A pool in which a plant of so many percent costs so many times ``extra``."""
    made = []
    for number in range(processes):
        ratios = {plants.BASE: 1.0, "twin": twin} | {str(share): 1 + share * extra for share in plants.SHARES}
        sides = {
            name: side(ratio, seed=100 * number + place, calls=40, disturbed=disturbed)
            for place, (name, ratio) in enumerate(ratios.items())
        }
        made.append(
            {"kind": "process", "seed": number, "took_s": 0.5, "others": 0.1, "competitor": 0.0, "sides": sides}
        )
    return Pool(header={"kind": "pool", "threads": threads, "load": "quiet"}, processes=made)


def asked(**changed: Any) -> DrawSettings:
    """Few draws of few processes."""
    return DrawSettings(**({"seconds": {1: 15.0, 2: 30.0}, "processes": {1: 10, 2: 12}, "most": 20, "draws": 20} | changed))


def tallies(found: judging.Evaluation, rule: str) -> dict[int, Tally]:
    """Tallies of one rule by plant."""
    return {tally.share: tally for tally in found.tallies if tally.rule == rule}


def store(folder: Path, found: Pool, name: str) -> None:
    """A pool as it is stored."""
    lines = [json.dumps(dict(found.header)), *(json.dumps(process) for process in found.processes)]
    folder.joinpath(name).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("freedom", "critical"), [(4, 2.776), (10, 2.228), (20, 2.086), (120, 1.980)])
def test_student_critical_is_that_of_the_tables(freedom: int, critical: float) -> None:
    """Two-sided, at 95 %."""
    assert rules.student_critical(freedom) == pytest.approx(critical, rel=0.003)


def test_mann_whitney_of_separated_samples_is_the_number_of_orderings() -> None:
    """Two of the 252 orderings of five and five are as far apart."""
    assert rules.mann_whitney_p([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(2 / 252)


@pytest.mark.parametrize("counts", [(5, 5), (10, 10), (7, 12), (25, 30)])
def test_mann_whitney_is_that_of_asv(counts: tuple[int, int]) -> None:
    """Exact up to twenty samples, by the normal distribution beyond; ties count against a difference."""
    theirs = pytest.importorskip("asv._stats")
    draw = random.Random(sum(counts))
    for shift in (0, 2, 5):
        one, other = ([draw.randrange(12) + by for _ in range(n)] for n, by in zip(counts, (0, shift), strict=True))
        _, expected = theirs.mann_whitney_u(one, other)
        assert rules.mann_whitney_p(one, other) == pytest.approx(min(1.0, expected), rel=1e-6)


def test_pyperf_takes_values_of_a_process_for_independent() -> None:
    """Three values each of four processes that differ among themselves are twelve values."""
    base = [[1.00, 1.00, 1.00], [1.01, 1.01, 1.01], [1.00, 1.00, 1.00], [1.01, 1.01, 1.01]]
    new = [[value * 1.006 for value in process] for process in base]
    assert rules.decide_by_pyperf(base, new) == "slower"
    assert rules.decide_by_pyperf(new, base) == "faster"
    assert rules.decide_by_pyperf(base, new, least=0.01) == "same"
    assert rules.decide_by_pyperf(base, [[value * 1.001 for value in process] for process in base]) == "same"
    assert rules.decide_by_pyperf(base, base) == "same"


def test_pyperf_calls_sides_of_unequal_size_different() -> None:
    """Its test raises, and what raises counts as significant."""
    assert rules.decide_by_pyperf([[1.0, 1.2, 0.8]], [[1.001, 1.201, 0.801, 1.001]]) == "slower"


def test_asv_needs_significance_and_a_factor() -> None:
    """Neither a small certain change nor a large uncertain one is told, and too few samples tell nothing."""
    base = [noisy(1.0, count=5, seed=seed, spread=0.002) for seed in range(2)]
    larger = [[value * 1.12 for value in process] for process in base]
    smaller = [[value * 1.08 for value in process] for process in base]
    assert rules.decide_by_asv(base, larger) == "slower"
    assert rules.decide_by_asv(larger, base) == "faster"
    assert rules.decide_by_asv(base, smaller) == "same"
    assert rules.decide_by_asv(base, smaller, factor=1.05) == "slower"
    assert rules.decide_by_asv(base[:1], larger[:1]) == "same"
    assert rules.decide_by_asv([[1, 2, 3, 4, 5, 6, 7]], [[2, 3, 4, 5, 6, 7, 8]]) == "same"


def test_pytest_benchmark_compares_one_number_with_a_threshold() -> None:
    """The fastest or the middle round; what became faster is not told."""
    assert rules.decide_by_pytest_benchmark([[1.0, 9.0]], [[1.06, 1.06]], field="min") == "slower"
    assert rules.decide_by_pytest_benchmark([[1.0, 9.0]], [[1.04, 9.0]], field="min") == "same"
    assert rules.decide_by_pytest_benchmark([[1.0, 1.0, 9.0]], [[1.02, 1.02, 1.02]], field="median", threshold=0.01) == "slower"
    assert rules.decide_by_pytest_benchmark([[2.0]], [[1.0]], field="median") == "same"


def test_torch_compare_shows_medians_within_a_percent_as_equal() -> None:
    """Beyond, one of them is no longer the best."""
    assert rules.decide_by_torch([[1.0]], [[1.009]]) == "same"
    assert rules.decide_by_torch([[1.0]], [[1.02]]) == "slower"
    assert rules.decide_by_torch([[1.02]], [[1.0]]) == "faster"


def test_criterion_needs_significance_and_an_interval_beyond_its_noise_threshold() -> None:
    """A certain change of half a percent, and an uncertain one of three, are none."""
    base = [noisy(1.0, count=100, seed=1, spread=0.005)]
    assert rules.decide_by_criterion(base, [noisy(1.03, count=100, seed=2, spread=0.005)]) == "slower"
    assert rules.decide_by_criterion([noisy(1.03, count=100, seed=2, spread=0.005)], base) == "faster"
    assert rules.decide_by_criterion(base, [noisy(1.005, count=100, seed=2, spread=0.005)]) == "same"
    assert rules.decide_by_criterion(base, [noisy(1.03, count=100, seed=2, spread=0.2)]) == "same"
    assert rules.decide_by_criterion(base, base) == "same"
    assert rules.decide_by_criterion([[1.0, 1.0]], [[1.1, 1.1]]) == "slower"


def test_a_tool_gets_as_many_processes_as_the_time_allows_and_no_fewer_than_it_needs() -> None:
    """What measures in one process a side stays with one."""
    layouts = {rule.name: rule.layout(COST) for rule in rules.make_rules(0.01)}
    assert all(layout.wall_s <= COST.seconds for name, layout in layouts.items() if name != "Criterion")
    # 64 calls of 2.5 ms take more than 0.1 s; three values and one to warm up take 0.64 s beside the start of 1 s.
    assert (layouts["pyperf compare_to"].processes, layouts["pyperf compare_to"].loops) == (4, 64)
    assert (layouts["asv continuous"].values, layouts["asv continuous"].loops) == (5, 4)
    assert layouts["pytest-benchmark median:δ"].values == 400
    assert (layouts["torch.utils.benchmark"].values, layouts["torch.utils.benchmark"].loops) == (80, 1)
    assert layouts["Criterion"].loops == 20
    short = Cost(seconds=0.1, start_s=1.0, call_s=0.0025)
    assert {rule.layout(short).processes for rule in rules.make_rules(0.01)} == {1, 2}


def test_a_value_is_the_mean_of_calls_in_a_row() -> None:
    """Where a process made fewer calls than a tool would, a value is made of fewer."""
    layout = Layout(processes=1, values=2, loops=3, wall_s=1.0)
    assert rules.average_calls([1, 2, 3, 4, 5, 6, 7], layout) == [2, 5]
    assert layout.limit_calls(5) == Layout(processes=1, values=2, loops=2, wall_s=1.0)
    assert layout.limit_calls(1) == Layout(processes=1, values=1, loops=1, wall_s=1.0)


@pytest.mark.parametrize(("count", "of", "bound"), [(0, 200, 0.01487), (0, 30, 0.09503), (1, 10, 0.39416), (7, 7, 1.0)])
def test_upper_bound_is_that_of_clopper_and_pearson(count: int, of: int, bound: float) -> None:
    """One-sided, at 95 %: with nothing seen, 1 − 0.05^(1/n)."""
    assert upper_bound(count, of) == pytest.approx(bound, abs=1e-5)


def test_our_rule_finds_plants_and_nothing_where_there_is_none() -> None:
    """Of a quiet pool with little noise."""
    found = evaluate_rules("1 thread, quiet", pool(), pool(), asked(), starts_s=STARTS_S)
    ours = tallies(found, "attnbench")
    assert ours[0].states == {"same": 20}
    assert ours[0].wrong == 0
    assert ours[3].states == {"slower": 20}
    assert ours[3].true == pytest.approx(0.03, abs=0.003)
    assert ours[0].disjoint == 2


def test_beside_other_work_our_rule_tells_nothing_and_others_do() -> None:
    """Every call waited for its cores."""
    found = evaluate_rules("1 thread, busy", pool(disturbed=True), None, asked(), starts_s=STARTS_S)
    assert {tally.states["inconclusive"] for tally in tallies(found, "attnbench").values()} == {20}
    assert tallies(found, "torch.utils.benchmark")[3].states == {"slower": 20}


def test_a_twin_that_is_off_makes_our_rule_inconclusive() -> None:
    """The null arm is the judge's own; here it is seen to be handed over."""
    ours = tallies(evaluate_rules("1 thread, quiet", pool(twin=1.03), None, asked(), starts_s=STARTS_S), "attnbench")
    assert ours[3].states == {"inconclusive": 20}


def test_more_processes_are_taken_while_it_is_undecided() -> None:
    """Five do not have a verdict, ten do; the time tells of it."""
    found = evaluate_rules("1 thread, quiet", pool(), None, asked(processes={1: 5}, most=10), starts_s=STARTS_S)
    few, more = tallies(found, "attnbench"), tallies(found, "attnbench, up to 10 processes")
    assert few[3].states == {"unknown": 20}
    assert more[3].states == {"slower": 20}
    assert more[3].wall_s == pytest.approx(2 * few[3].wall_s)


def test_another_difference_that_counts_is_asked_for() -> None:
    """A plant of 2 % is none where 5 % count."""
    wanted = asked(effect=0.05)
    found = evaluate_rules("1 thread, quiet", pool(), pool(), wanted, starts_s=STARTS_S)
    assert found.delta == 0.05
    assert tallies(found, "attnbench")[2].states == {"same": 20}


def test_a_comparison_is_of_neighbours_in_their_order() -> None:
    """Within twice as many processes as it takes."""
    for drawn in judging._draw_comparisons(pool(processes=100), 10, asked(draws=50)):
        numbers = [process["seed"] for process in drawn]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] - numbers[0] < 20


def test_a_pool_that_is_too_small_is_told() -> None:
    """With what to do about it."""
    with pytest.raises(StudyError, match=r"needs 10 processes and the pool has 8: .*--resume"):
        evaluate_rules("1 thread, quiet", pool(processes=8), None, asked(), starts_s=STARTS_S)


@pytest.mark.parametrize(
    ("share", "true", "sized", "wrong"),
    [(0, 0.0, True, 5), (2, 0.02, True, 6), (2, 0.005, True, 5), (2, None, True, 2), (2, 0.02, False, 2)],
)
def test_a_wrong_verdict_is_one_that_the_true_size_contradicts(
    share: int, true: float | None, sized: bool, wrong: int
) -> None:
    """Of 3 slower, 2 faster and 4 same, where 1 % counts."""
    tally = Tally(
        rule="", share=share, true=true, delta=0.01, sized=sized, layout="", wall_s=0.0, disjoint=1,
        states={"slower": 3, "faster": 2, "same": 4},
    )  # fmt: skip
    assert tally.wrong == wrong


def test_stored_lines_are_gone_on_with_and_a_cut_one_is_thrown_away(tmp_path: Path) -> None:
    """Nothing that is whole is measured twice."""
    path = tmp_path / "deep" / "pool.jsonl"
    with Lines.open(path, {"case": "a", "begun": "now"}, resume=False) as lines:
        lines.add({"n": 1})
    with path.open("ab") as stream:
        stream.write(b'{"n": ')
    with Lines.open(path, {"case": "a", "begun": "later"}, resume=True) as lines:
        assert lines.records == [{"n": 1}]
        lines.add({"n": 2})
    assert read(path) == ({"case": "a", "begun": "now"}, [{"n": 1}, {"n": 2}])


def test_stored_lines_are_not_written_over(tmp_path: Path) -> None:
    """Nor mixed with what was measured otherwise."""
    path = tmp_path / "pool.jsonl"
    Lines.open(path, {"case": "a"}, resume=True).__exit__(None, None, None)
    with pytest.raises(StudyError, match="is there already; go on with it by --resume"):
        Lines.open(path, {"case": "a"}, resume=False)
    with pytest.raises(StudyError, match="was measured with another case; name another --data folder"):
        Lines.open(path, {"case": "b"}, resume=True)


def test_packed_lines_are_read(tmp_path: Path) -> None:
    """As they are kept in a repository."""
    tmp_path.joinpath("pool.jsonl.gz").write_bytes(gzip.compress(b'{"case":"a"}\n{"n":1}\n'))
    assert read(tmp_path / "pool.jsonl") == ({"case": "a"}, [{"n": 1}])
    assert read(tmp_path / "other.jsonl") is None


def test_rows_of_a_plant_are_corrected_by_what_they_cost() -> None:
    """All by the same factor, and never by more than one in which the measurement could be believed."""
    rows = {"2": 100, "3": 150}
    assert pools._correct_rows(rows, pool(extra=0.02)) == pytest.approx({"2": 50, "3": 75}, abs=3)
    assert pools._correct_rows(rows, pool(extra=0.0))["2"] in (33, 300)
    assert pools._correct_rows({"2": 1, "3": 2}, pool(extra=0.1)) == {"2": 1, "3": 1}
    assert pools._correct_rows(rows, pool(disturbed=True)) == rows
    assert pools.estimate_size(pool(disturbed=True), 2) is None


def candidate(implementation: Any, folder: Path) -> Candidate:
    """A planted copy on a case."""
    from attnbench.oracle.inputs import load_inputs

    case = Case.parse(CASE, load_problem_types())
    return Candidate(
        implementation, load_operator("multihead"), case, load_inputs(OracleWorker(folder).draw_inputs(case=CASE), case.device)
    )


def test_a_plant_computes_what_the_reference_does_and_some_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many rows as the environment says; without any, the call is that of the reference itself."""
    monkeypatch.setenv(plants.ROWS, json.dumps({"2": 3}))
    plain, planted, byte = (candidate(one, tmp_path) for one in (plants.PLUS_0, plants.PLUS_2, plants.PLUS_BYTE))
    assert isinstance(plain.call, torch.nn.MultiheadAttention)
    rows: list[int] = []
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, out: rows.append(len(a)) or product(a, b, out=out))
    for other in (planted, byte):
        assert all(torch.equal(value, other.run()[name]) for name, value in plain.run().items())
    assert rows == [3]


def test_a_plant_of_unknown_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable that would tell it."""
    monkeypatch.delenv(plants.ROWS, raising=False)
    case = Case.parse(CASE, load_problem_types())
    assert plants.PLUS_2.unsupported(case) == "ATTNBENCH_PLANTED_ROWS does not say how many rows are to be planted"
    assert plants.PLUS_0.unsupported(case) is None


def test_a_pool_holds_every_side_of_fresh_processes_and_is_gone_on_with(tmp_path: Path) -> None:
    """Measured by the worker of real runs; what is there is not measured again."""
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
    older = pool()
    assert older.calls_per_cycle == 3
    assert {len(process) for process in pools.make_timing(older.processes, plants.BASE, threads=1, calls=7).cycles} == {7}
    assert found.header["rows"] == rows


def test_processes_that_cannot_start_are_stored_and_end_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few may fail; their reasons stay."""

    class Failing:
        folder = tmp_path

        def __init__(self, **_: object) -> None: ...
        def __enter__(self) -> "Failing":
            return self

        def __exit__(self, *_: object) -> None: ...
        def ask_oracle(self, do: str, **_: object) -> Any:
            return [CASE] if do == "profile" else ""

        def supervise_together(self, names: list[str]) -> None:
            raise OSError(f"no process for {len(names)}")

    monkeypatch.setattr(pools, "Session", Failing)
    monkeypatch.setattr(pools, "PAUSE_S", 0.0)
    monkeypatch.setattr(pools, "WINDOW_S", 0.0)
    path, condition = tmp_path / "pool.jsonl", Condition(threads=1, load="quiet")
    with pytest.raises(StudyError, match="10 processes failed, the last time: no process for 4"):
        pools.gather_pool(path, condition, Setup(length=8, budget_s=0.1), rows={}, processes=1, resume=False)
    stored = read(path)
    assert stored is not None
    assert [record["kind"] for record in stored[1]] == ["failed"] * 10


def test_a_competitor_ends_with_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processor time is told; without load there is none."""
    monkeypatch.setattr(load, "STARTING_S", 0.0)
    with run_competitor("busy") as somebody:
        assert Path("/proc", str(somebody.pid)).exists()
        assert somebody.read_cpu_s() >= 0.0
    assert not Path("/proc", str(somebody.pid)).exists()
    with run_competitor("quiet") as nobody:
        assert nobody == Competitor(pid=None)
        assert nobody.read_cpu_s() == 0.0
    assert (measure_busy_cores(0.05) or 0.0) >= 0.0
    assert Competitor(pid=2**22 + 1).read_cpu_s() == 0.0


def answering(byte: str | None, measured: Pool | None) -> Any:
    """A ``compare`` that tells a verdict on a byte, and a ``profile`` that stores samples of a pool."""

    def done(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if "compare" in command and byte:
            changes = [{"aspect": "peak_bytes", "verdict": byte, "told": ""}]
            Path(command[command.index("--json") + 1]).write_text(json.dumps({"changes": changes}))
        elif "profile" in command and measured:
            keep(Path(command[command.index("--results") + 1]), measured, command)
        elif "--results" not in command:
            raise FileNotFoundError(command[0])  # what the machine's description asks
        return subprocess.CompletedProcess(command, 1, "", "it went wrong")

    return done


def keep(folder: Path, measured: Pool, command: list[str]) -> None:
    """Store what was asked for as a run does."""
    machine = Machine(name="m", cpu="c", cores=2, memory_bytes=1)
    run = Run(id="r", time="t", command="c", machine=machine, versions={}, threads=1)
    names = {name: str(share) for share, name in plants.PATHS.items() if name in command} | {plants.BASE: plants.BASE}
    passed = (Finding(check="forward_parity", status="passed"),)
    with RunFile.create(folder, run) as file:
        for name, share in names.items():
            timing = pools.make_timing(measured.processes, share, threads=1)
            file.append(Result(run="r", implementation=name, case=CASE, findings=passed, timing=timing))


def test_runs_are_counted_by_what_they_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time for a plant of some percent, peak bytes for the one of a byte; what is there is not run again."""
    monkeypatch.setattr(runs.subprocess, "run", answering("bigger", pool()))
    path = tmp_path / "runs-1-quiet.jsonl"
    condition, setup = Condition(threads=1, load="quiet"), Setup(length=8, budget_s=0.0)
    settings: Any = {"rows": {}, "shares": (0, 2, plants.BYTE_SHARE), "say": lambda _: None}
    runs.gather_runs(path, condition, setup, runs=2, resume=False, **settings)
    monkeypatch.setattr(runs.subprocess, "run", answering("same", pool(disturbed=True)))
    assert len(runs.gather_runs(path, condition, setup, runs=3, resume=True, **settings)) == 9
    counted = {share: states for _, share, states, _ in runs.count_verdicts(tmp_path)}
    assert counted == {
        0: {"same": 2, "inconclusive": 1},
        2: {"slower": 2, "inconclusive": 1},
        plants.BYTE_SHARE: {"bigger": 2, "same": 1},
    }
    shown = showing.format_runs_table(runs.count_verdicts(tmp_path))
    assert "| 1 thread, quiet | about 2 % | 3 |" in shown
    assert "| one byte | 3 |" in shown
    assert "66.7 % (≤ 98.3 %)" in shown


def test_runs_that_say_nothing_of_the_plant_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last line that was written; after some of them the study ends, and can be gone on with."""
    monkeypatch.setattr(runs.subprocess, "run", answering(None, None))
    for resume in (False, True):
        with pytest.raises(StudyError, match=r"5 runs failed, the last time: exit code 1, no verdict on time: it went"):
            runs.gather_runs(
                tmp_path / "runs.jsonl", Condition(threads=1, load="quiet"), Setup(length=8, budget_s=0.0),
                rows={}, shares=(2,), runs=1, resume=resume, say=lambda _: None,
            )  # fmt: skip


def test_both_timers_are_asked_of_the_same_call(tmp_path: Path) -> None:
    """Block by block in one process, with what a call that does nothing takes."""
    record = agreement.measure_process(CASE, OracleWorker(tmp_path).draw_inputs(case=CASE), 1, 0, blocks=2, block_s=0.02)
    assert (len(record["ours_ns"]), len(record["theirs_ns"]), len(record["disturbed"])) == (2, 2, 2)
    assert 0 < record["added_ns"] < statistics.median(record["ours_ns"])


def test_disturbed_blocks_do_not_speak_of_agreement(tmp_path: Path) -> None:
    """A process without any other is counted, and has no ratio."""
    records = [
        {"ours_ns": [101, 900], "theirs_ns": [100, 100], "disturbed": [False, True]},
        {"ours_ns": [103, 103], "theirs_ns": [100, 100], "disturbed": [False, False]},
        {"ours_ns": [500, 500], "theirs_ns": [100, 100], "disturbed": [True, True]},
    ]
    lines = [{"threads": 2}, *(record | {"added_ns": 400.0, "direct_ns": 60.0} for record in records)]
    tmp_path.joinpath("agreement-2.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    told = agreement.format_agreement(tmp_path)
    assert "2 threads, quiet, 3 processes: our median over Timer's is 1.0200 [1.0100, 1.0300] in 2 processes" in told
    assert "in 2 processes that nothing disturbed, 1 of them within 2%" in told
    assert "takes 400 [400, 400] ns (60 ns in a plain loop), at the most 400 ns" in told


def test_pools_become_a_table_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every rate has its bound; a condition that was not measured is named."""
    store(tmp_path, pool(), "runs-1-quiet.jsonl")
    store(tmp_path, pool(), "true-1.jsonl")
    lines = [{"together": 2}, {"alone_s": 1.0, "together_s": 1.6}]
    tmp_path.joinpath("starts-1.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    given = ["judge", "--data", str(tmp_path), "--threads", "1", "--draws", "20", "--most", "20"]
    assert detection.main(given) == 0
    told = capsys.readouterr().out
    assert "no runs of 1-busy" in told
    assert "**1 thread, quiet**: δ, the difference that counts, is 1 %; 24 processes; 0.10 cores in use before" in told
    row = next(line for line in told.splitlines() if line.startswith("| attnbench |"))
    assert row.split(" | ")[3] == "0.0 % (≤ 13.9 %)"
    assert row.split(" | ")[5] == "100.0 % (≤ 100.0 %)"
    assert {path.suffix for path in tmp_path.glob("detection.*")} == {".md", ".json", ".svg", ".png"}
    told_as_json = json.loads(tmp_path.joinpath("detection.json").read_text())
    assert told_as_json[0]["tallies"][0]["states"] == {"same": 20}


def test_without_pools_there_is_nothing_to_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that measures them is told."""
    assert detection.main(["judge", "--data", str(tmp_path)]) == 1
    assert "measure them with: python -m research.detection runs" in capsys.readouterr().err
    assert detection.main(["runs", "--data", str(tmp_path)]) == 1
    assert "rows-1.json is missing" in capsys.readouterr().err


def test_starts_are_measured_alone_and_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By turns, each process closed; a start among several costs its share of the time."""
    begun: list[int] = []
    closed: list[int] = []

    class Worker:
        def close(self) -> None:
            closed.append(1)

    def together(session: object, names: list[str], count: int) -> list[Worker]:
        begun.append(count)
        return [Worker() for _ in range(count)]

    clock = itertools.count()
    monkeypatch.setattr(starts, "start_together", together)
    monkeypatch.setattr(starts, "STARTS", 2)
    monkeypatch.setattr(starts.time, "monotonic", lambda: next(clock))
    path, condition = tmp_path / "starts-1.jsonl", Condition(threads=1, load="quiet")
    starts.measure_starts(path, condition, Setup(length=8, budget_s=0.0), rounds=3, resume=False)
    assert begun == [1, 2] * 3
    assert len(closed) == 9
    assert starts.read_costs_s(path) == (1.0, 0.5)
    assert starts.read_costs_s(tmp_path / "nothing.jsonl") is None
