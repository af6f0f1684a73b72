"""Nodes of the same kind that disagree: on a check, or on the ratio of a call by more than the intervals of both nodes.

Nodes of one kind have the same description of the machine. Everywhere else in a report they are one machine: of a call
that several of them timed, the last timing counts, and of a case that several of them checked, a failure counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnbench.analysis.speed_verdict import EFFECT, LEVEL
from attnbench.analysis.stats import Estimate, rank_of
from attnbench.analysis.summary import Place
from attnbench.analysis.timing_rows import TimingRow, find_reference, measure_calls
from attnbench.cases import CaseId
from attnbench.records.run_file import StoredRun, has_failure, identify_code
from attnbench.records.types import Result, find_pass
from attnbench.report.case_forms import describe_form, describe_length, describe_pass
from attnbench.report.columns import Columns, TableColumn
from attnbench.report.numbers import format_estimate
from attnbench.words import nodes as words
from attnbench.words.say import say_count
from attnbench.words.summary import describe_place

__all__ = ["NODES", "NodeRow", "Nodes", "collect_nodes"]

NODES: Columns = (
    TableColumn("machine", "name of the machine"),
    TableColumn("threads", "number of threads"),
    TableColumn("implementation", "name of the implementation"),
    TableColumn("case", "id of the case"),
    TableColumn("node", "label of one node", "one.node"),
    TableColumn("ratio", "ratio to the reference's time on this node", "one.ratio.value"),
    TableColumn("ratio_low", "lower end of its confidence interval", "one.ratio.low"),
    TableColumn("ratio_high", "upper end of this interval", "one.ratio.high"),
    TableColumn("processes", "number of processes of this ratio", "one.ratio.processes"),
    TableColumn("run", "id of the run", "one.run"),
    TableColumn("other_node", "label of the other node", "other.node"),
    TableColumn("other_ratio", "ratio on the other node", "other.ratio.value"),
    TableColumn("other_ratio_low", "lower end of its confidence interval", "other.ratio.low"),
    TableColumn("other_ratio_high", "upper end of this interval", "other.ratio.high"),
    TableColumn("other_processes", "number of processes of this ratio", "other.ratio.processes"),
    TableColumn("other_run", "id of the other run", "other.run"),
)
# Most rows of the table on the page; nodes.csv has all.
MOST_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """The time of a call divided by the reference's time, on one node."""

    node: str
    run: str
    ratio: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A call whose ratio differs between two nodes; of several nodes, those with the smallest and the largest ratio."""

    machine: str
    threads: int
    implementation: str
    case: str
    one: _Timed
    other: _Timed

    @property
    def cells(self) -> tuple[str, ...]:
        """The row in words: machine, implementation, shape, length, pass, and each node with its ratio."""
        case = CaseId.parse(self.case)
        return (
            describe_place(Place(self.machine, case.device, case.dtype, self.threads)),
            self.implementation,
            describe_form(case.form),
            describe_length(*case.lengths),
            describe_pass(find_pass(self.case), case.mode),
            *(
                text
                for timed in (self.one, self.other)
                for text in (
                    timed.node,
                    format_estimate(timed.ratio.value, timed.ratio.low, timed.ratio.high, timed.ratio.processes),
                )
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailures:
    """The cases of one implementation that failed on some nodes of one kind and not on others."""

    machine: str
    implementation: str
    cases: int
    # The nodes with a failure, and those without, on any of these cases.
    failing: tuple[str, ...]
    passing: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Where the implementation failed and where it did not, in words."""
        return words.describe_failures(
            self.implementation, self.machine, cases=self.cases, failing=self.failing, passing=self.passing
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What several nodes of one kind checked or timed: how much, and where the nodes disagree."""

    # Number of calls that were timed on several nodes, and how many of them have ratios that can be compared.
    timed: int
    compared: int
    # The disagreements on ratios, the largest first.
    rows: tuple[NodeRow, ...]
    # Number of results on cases that several nodes checked, and the disagreements on failures.
    checked: int = 0
    failures: tuple[NodeFailures, ...] = ()

    head = ("machine", "implementation", "shape", "length", "pass", "node", "ratio", "other node", "its ratio")

    @property
    def shown(self) -> tuple[NodeRow, ...]:
        """The rows of the page."""
        return self.rows[:MOST_ROWS]

    @property
    def checks(self) -> tuple[str, ...]:
        """Where nodes disagree on failures, in sentences; that they agree; empty if no two nodes checked the same."""
        if not self.checked:
            return ()
        return tuple(one.sentence for one in self.failures[:MOST_ROWS]) or (say_count(words.AGREED, self.checked),)

    @property
    def times(self) -> str:
        """How many calls several nodes timed, and on how many of them the ratios disagree; empty if there are none."""
        if not self.timed:
            return ""
        return words.describe_times(self.timed, compared=self.compared, rows=len(self.rows), most_rows=MOST_ROWS)


def collect_nodes(runs: Sequence[StoredRun]) -> Nodes:
    """Compare the nodes of each kind of machine on the calls that several of them timed."""
    stored = {one.run.id: one for one in runs if one.run.node}
    repeated = _select_repeated(stored.values())
    of_call: dict[tuple[str, int, str, str], dict[str, _Timed]] = {}
    for row in measure_calls(repeated, may_choose=lambda _: False).rows:
        run = stored[row.run].run
        if (ratio := _read_ratio(row)) is not None:
            key = run.machine.name, run.threads, row.implementation, row.case
            of_call.setdefault(key, {})[run.node] = _Timed(node=run.node, run=run.id, ratio=ratio)
    compared = {key: [*own.values()] for key, own in of_call.items() if len(own) > 1}
    rows = []
    for (machine, threads, name, case), own in compared.items():
        one = min(own, key=lambda timed: timed.ratio.value)
        other = max(own, key=lambda timed: timed.ratio.value)
        if one.ratio.high < other.ratio.low and other.ratio.value > (1 + EFFECT) * one.ratio.value:
            rows.append(NodeRow(machine=machine, threads=threads, implementation=name, case=case, one=one, other=other))
    rows.sort(key=lambda row: -row.other.ratio.low / row.one.ratio.high)
    calls = {
        (run.machine.name, run.threads, one.implementation, one.case)
        for one in repeated
        for run in [stored[one.run].run]
        if one.implementation != find_reference(one.case)
    }
    checked, failures = _compare_failures(stored.values())
    return Nodes(timed=len(calls), compared=len(compared), rows=tuple(rows), checked=checked, failures=failures)


def _compare_failures(runs: Iterable[StoredRun]) -> tuple[int, tuple[NodeFailures, ...]]:
    """Return the number of results on cases that several nodes checked, and those that failed on some nodes only.

    Only results of the same code are compared, as where they are merged.
    """
    stored = list(runs)
    nodes: dict[tuple[str, str], set[str]] = {}
    for one in stored:
        for case in {result.case for result in one.results}:
            nodes.setdefault((one.run.machine.name, case), set()).add(one.run.node)
    # Whether each node saw a failure, by machine, implementation, case and code.
    seen: dict[tuple[str, str, str, object], dict[str, bool]] = {}
    for one in stored:
        machine = one.run.machine.name
        for result in one.results:
            if len(nodes[machine, result.case]) > 1:
                code = identify_code(one.run, result.implementation)
                own = seen.setdefault((machine, result.implementation, result.case, code), {})
                own[one.run.node] = own.get(one.run.node, False) or has_failure(result)
    several = {key: own for key, own in seen.items() if len(own) > 1}
    split: dict[tuple[str, str], list[dict[str, bool]]] = {}
    for (machine, name, _, _), own in several.items():
        if len(set(own.values())) > 1:
            split.setdefault((machine, name), []).append(own)
    return len(several), tuple(
        NodeFailures(
            machine=machine, implementation=name, cases=len(cases),
            failing=tuple(sorted({node for own in cases for node, failed in own.items() if failed})),
            passing=tuple(sorted({node for own in cases for node, failed in own.items() if not failed})),
        )
        for (machine, name), cases in split.items()
    )  # fmt: skip


def _select_repeated(runs: Iterable[StoredRun]) -> list[Result]:
    """Return the timed results on the cases that several nodes of one kind timed; of each node, the last of a call."""
    stored = list(runs)
    # The node of each case, or None if there are several.
    nodes: dict[tuple[str, int, str], str | None] = {}
    for one in stored:
        for case in {result.case for result in one.results if result.timing}:
            key = one.run.machine.name, one.run.threads, case
            nodes[key] = one.run.node if nodes.get(key, one.run.node) == one.run.node else None
    found: dict[tuple[str, str, str], Result] = {}
    for one in stored:
        for result in one.results:
            key = one.run.machine.name, one.run.threads, result.case
            if result.timing and key in nodes and nodes[key] is None:
                found[result.run, result.case, result.implementation] = result
    return list(found.values())


def _read_ratio(row: TimingRow) -> Estimate | None:
    """Return the ratio of a timed call; None if it has no interval that may be compared."""
    if row.is_reference or row.state in (None, "inconclusive") or row.ratio is None:
        return None
    return row.ratio if rank_of(row.ratio.processes, LEVEL) else None
