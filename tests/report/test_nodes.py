"""Tests of nodes of the same kind that disagree: which calls are compared, and what a reader is told."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.records.run_file import StoredRun
from attnbench.records.types import Finding, Result
from attnbench.report import write
from attnbench.report.nodes import Nodes, collect_nodes
from tests.timed_runs import REFERENCE, case_of, check, store, time_calls


def run_on(
    node: str, *ratios: float, run: str, machine: str = "some-cpu", case: str = "", processes: int = 9
) -> StoredRun:
    """Return a run of the reference and of sdpa on a node, where sdpa takes ``ratios`` times as long."""
    results: Sequence[Result] = [
        time_calls(REFERENCE, run=run, case=case, processes=processes),
        time_calls("sdpa", *ratios, run=run, case=case, processes=processes),
    ]
    stored = store(results, run=run, machine=machine)
    return replace(stored, run=replace(stored.run, node=node))


def compare(*ratios: float) -> Nodes:
    """Compare nodes a, b, ... on which sdpa took ``ratios`` times as long."""
    return collect_nodes([run_on(chr(97 + n), ratio, run=f"run-{n}") for n, ratio in enumerate(ratios)])


def test_nodes_that_differ_by_more_than_their_intervals_are_a_row() -> None:
    """The row has both nodes with both ratios; of several nodes, the smallest and the largest ratio."""
    (row,) = compare(0.55, 0.5, 0.75).rows
    assert (row.one.node, row.one.ratio.value, row.other.node, row.other.ratio.value) == ("b", 0.5, "c", 0.75)
    assert row.cells == (
        "some-cpu, cpu, float32, 2 threads", "sdpa", "batch 1, 4 heads, width 256", "64", "forward",
        "b", "0.500 [0.500 to 0.500]", "c", "0.750 [0.750 to 0.750]",
    )  # fmt: skip


@pytest.mark.parametrize("ratios", [(0.5, 0.5), (0.5, 0.504)])
def test_nodes_that_agree_are_counted_only(ratios: tuple[float, ...]) -> None:
    """Equal ratios, and ratios that differ by less than 1 %, are no row. The reference itself is not compared."""
    nodes = compare(*ratios)
    assert (nodes.compared, nodes.rows) == (1, ())
    assert nodes.times == (
        "1 call was timed on several nodes of one kind. Nowhere do the nodes disagree by more than the intervals of "
        "the ratios."
    )


def test_too_few_processes_are_said() -> None:
    """Calls that several nodes timed are told also if no ratio has an interval."""
    nodes = collect_nodes([run_on(node, 0.5, run=f"run-{node}", processes=2) for node in "ab"])
    assert (nodes.timed, nodes.compared) == (1, 0)
    assert nodes.times == (
        "1 call was timed on several nodes of one kind, in too few processes to compare the ratios of the nodes."
    )


def check_on(node: str, *failed: bool) -> StoredRun:
    """Return a run of sdpa on a node, in which the case of each place fails or passes."""
    passing = [check("sdpa", case_of(16 * place), run=f"run-{node}") for place, _ in enumerate(failed, start=1)]
    results = [
        replace(result, findings=(Finding(check="forward_parity", status="failed", reason="off"),)) if fails else result
        for result, fails in zip(passing, failed, strict=True)
    ]
    stored = store(results, run=f"run-{node}")
    return replace(stored, run=replace(stored.run, node=node))


def test_a_failure_on_one_node_is_told_and_counts(tmp_path: Path) -> None:
    """The page names the nodes, whichever run is named last."""
    runs = [check_on("a", True, True, False), check_on("b", False, False, False)]
    for order in (runs, runs[::-1]):
        nodes = collect_nodes(order)
        assert (nodes.checked, [one.cases for one in nodes.failures]) == (3, [2])
        assert nodes.checks == ("sdpa on some-cpu: 2 cases failed on node a and not on b. The failures count.",)
        write(order, tmp_path)
        assert "2 cases failed on node a and not on b" in (tmp_path / "index.html").read_text()
    assert collect_nodes([check_on("a", False), check_on("b", False)]).checks == (
        "1 result was checked on several nodes of one kind, and none failed on some of the nodes only.",
    )
    assert collect_nodes([check_on("a", True)]).checks == ()
    mended = check_on("b", False)
    mended = replace(mended, run=replace(mended.run, sources={"sdpa": "mended"}))
    assert collect_nodes([check_on("a", True), mended]).checks == ()


def test_intervals_that_overlap_are_no_disagreement() -> None:
    """Two ratios whose intervals overlap do not disagree, however far apart they are."""
    wide = run_on("a", 0.4, 0.4, 0.4, 0.5, 0.5, 0.5, 0.7, 0.7, 0.7, run="run-1")
    assert collect_nodes([wide, run_on("b", 0.6, run="run-2")]).rows == ()


def test_machines_of_different_kinds_are_not_compared() -> None:
    """Different machines, different cases, and runs whose node is not known are no nodes of one kind."""
    here = run_on("a", 0.5, run="run-1")
    for there in (
        run_on("b", 0.9, run="run-2", machine="other-cpu"),
        run_on("b", 0.9, run="run-2", case=case_of(128)),
        run_on("", 0.9, run="run-2"),
        run_on("a", 0.9, run="run-2"),
    ):
        assert collect_nodes([here, there]).compared == 0


def test_the_report_has_one_table_of_nodes(tmp_path: Path) -> None:
    """The page and nodes.csv have the disagreement; a report on one node has none of it."""
    write([run_on("a", 0.5, run="run-1"), run_on("b", 0.75, run="run-2")], tmp_path / "two")
    page = (tmp_path / "two" / "index.html").read_text()
    assert "Where nodes of the same kind disagree" in page
    assert "0.750" in page
    (row,) = csv.DictReader((tmp_path / "two" / "nodes.csv").read_text().splitlines())
    assert "<dt>node</dt><dd><code>b</code></dd>" in page
    assert (row["node"], row["ratio"], row["other_node"], row["other_ratio"]) == ("a", "0.5", "b", "0.75")
    write([run_on("a", 0.5, run="run-1")], tmp_path / "one")
    assert "nodes of the same kind" not in (tmp_path / "one" / "index.html").read_text()
    assert not (tmp_path / "one" / "nodes.csv").exists()
