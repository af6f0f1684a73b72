"""Tests of the study of gates: real runs are stored as pools, and gates drawn from them have the planted outcomes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from attnbench.records.run_file import RunFile
from attnbench.records.types import Finding, Machine, Result, Run
from research.detection import gate_runs, plants, pools
from research.detection.gate_draws import (
    OUR_RULE,
    SLOWDOWNS,
    GateTally,
    count_gates,
    evaluate_gates,
    format_gate_table,
    read_gates,
)
from research.detection.gate_runs import CHANGED, KERNEL, NEW, gather_gates
from research.detection.pools import Condition
from research.lines import Lines, StudyError
from research.tests.detection.samples import CASE, make_pool

PASSED = (Finding(check="forward_parity", status="passed"),)
QUIET = Condition(threads=1, load="quiet")
CASES = (CASE, CASE.replace("L4", "L8"))


def store_gates(path: Path, *, disturbed: bool = False, share: int = 0) -> None:
    """Store a gate of two cases, whose new side is slower by ``share`` percent."""
    with Lines.open(path, {"kind": "gates", "threads": 1, "load": "quiet"}, resume=False) as lines:
        for case in CASES:
            for process in make_pool(processes=64, disturbed=disturbed).processes:
                sides = {name: process["sides"][name] for name in (plants.BASE, "twin")}
                lines.add(process | {"case": case, "sides": sides | {NEW: process["sides"][str(share)]}})
        lines.add({"kind": "gate", "outcome": "holds", "took_s": 60.0})


def evaluate(path: Path) -> dict[str, list[GateTally]]:
    """Return the tallies of each rule, in the order of the slowdowns."""
    gates = read_gates(path)
    assert gates is not None
    assert count_gates(gates) == {"holds": 1}
    tallies = evaluate_gates(gates, draws=20, start_s=1.0)
    return {rule: [one for one in tallies if one.rule == rule] for rule in dict.fromkeys(one.rule for one in tallies)}


def test_planted_slowdowns_are_found(tmp_path: Path) -> None:
    """Without a change no gate fails; with a slowdown above the threshold each does; two cases have gates apart."""
    store_gates(tmp_path / "gates.jsonl")
    found = evaluate(tmp_path / "gates.jsonl")
    ours = {one.slowdown: one for one in found[OUR_RULE]}
    assert tuple(ours) == SLOWDOWNS
    assert [(ours[percent].worse, ours[percent].undecided) for percent in (0, 3, 5)] == [(0, 0), (20, 0), (20, 0)]
    assert {one.disjoint for one in found[OUR_RULE]} == {2}
    assert [rule.partition(" ")[0] for rule in found if rule != OUR_RULE] == ["asv", "asv", *["pytest-benchmark"] * 2]
    assert found["pytest-benchmark median:δ"][-1].worse == 20
    lines = format_gate_table([one for own in found.values() for one in own]).splitlines()
    assert len(lines) == 2 + len(found)
    assert len({line.count("|") for line in lines}) == 1


def test_a_pool_with_a_difference_shows_false_alarms(tmp_path: Path) -> None:
    """If unchanged code were slower by 3 % in the stored runs, the study would count it as false alarms."""
    store_gates(tmp_path / "gates.jsonl", share=3)
    assert evaluate(tmp_path / "gates.jsonl")[OUR_RULE][0].worse == 20


def test_disturbed_processes_leave_a_gate_undecided(tmp_path: Path) -> None:
    """Gates without a verdict are no alarms, and are counted apart."""
    store_gates(tmp_path / "gates.jsonl", disturbed=True)
    assert [(one.worse, one.undecided) for one in evaluate(tmp_path / "gates.jsonl")[OUR_RULE]] == [(0, 20)] * 4
    assert read_gates(tmp_path / "other.jsonl") is None


def test_the_change_computes_the_same() -> None:
    """The two commits differ in their text alone."""
    results = []
    for source in (KERNEL, CHANGED):
        names: dict[str, Any] = {}
        exec(source, names)  # the study's own source
        q = names["torch"].arange(8.0).view(1, 1, 2, 4)
        results.append(names["attend"](q, q, q, mask=None, scale=0.5))
    assert KERNEL != CHANGED
    assert results[0].equal(results[1])


def test_real_runs_are_stored_as_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run stores its outcome, and the samples of each process and case; a gate that tells nothing is an error."""
    pool = make_pool(processes=3)

    def gate(repository: Path, *options: str) -> subprocess.CompletedProcess[str]:
        if "--json" in options:
            told = dict.fromkeys(("worse", "undecided", "untimed", "kept", "rule", "changes"))
            Path(options[options.index("--json") + 1]).write_text(json.dumps({"outcome": "holds"} | told))
            run = Run(
                id="r", time="t", command="c", machine=Machine(name="m", cpu="c", cores=2, memory_bytes=1),
                versions={}, threads=1,
            )  # fmt: skip
            with RunFile.create(repository.with_name("results"), run) as file:
                for name, side in {"base": plants.BASE, "new": "0"}.items():
                    timing = pools.make_timing(pool.processes, side, threads=1)
                    file.append(Result(run="r", implementation=name, case=CASE, findings=PASSED, timing=timing))
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(gate_runs, "_gate", gate)
    path = tmp_path / "gates.jsonl"
    for runs in (1, 2):
        assert len(gather_gates(path, QUIET, runs=runs, resume=runs > 1, say=lambda _: None)) == runs
    stored = read_gates(path)
    assert stored is not None
    assert [len(one.processes) for one in stored.pools] == [6]
    assert stored.pools[0].processes[1]["sides"]["twin"] == pool.processes[1]["sides"]["twin"]
    done = subprocess.CompletedProcess[str]([], 2, "", "Error: no base")
    monkeypatch.setattr(gate_runs, "_gate", lambda *_: done)
    with pytest.raises(StudyError, match=r"4 gates failed; the last failed with: Error: no base$"):
        gather_gates(tmp_path / "none.jsonl", QUIET, runs=1, resume=False, say=lambda _: None)
