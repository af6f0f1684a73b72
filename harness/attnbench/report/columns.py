"""Columns of tables: the name, the meaning and the source of each, described once.

The CSV files of a report, tables of pandas and docs/formats.md are made from them. The columns of tables that only a
section of the page needs are in the module of that section.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter
from typing import Any

from attnbench.cases import CaseId
from attnbench.checks.catalogue import find_chapter
from attnbench.records.types import find_pass
from attnbench.report.kernel_paths import find_way
from attnbench.words.changes import describe_change
from attnbench.words.exclusions import describe_fault
from attnbench.words.findings import describe_finding, describe_reason
from attnbench.words.speed import explain_no_verdict

__all__ = [
    "CEILINGS", "CHANGES", "DECISIONS", "EXCLUSIONS", "FINDINGS", "KERNELS", "MEMORY", "SUMMARY", "TIMINGS", "UNTIMED",
    "CellValue", "Columns", "TableColumn", "list_cells",
]  # fmt: skip

# A cell of a table; None where nothing was measured.
CellValue = str | int | float | bool | None
# The reason of a planned call that was not reached before its run ended.
ENDED = "the run ended before this call was timed"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table."""

    name: str
    # What it is, in Markdown.
    meaning: str
    # Where a row has its value: a function of the row, or the path of an attribute, by default the name.
    source: str | Callable[[Any], CellValue] = ""


Columns = tuple[TableColumn, ...]


def list_cells(columns: Columns, rows: Iterable[Any]) -> Iterator[list[CellValue]]:
    """Yield the cells of each row; a cell is None if the row lacks the value, or what has it."""
    readers = [_make_reader(column.source or column.name) for column in columns]
    for row in rows:
        yield [read(row) for read in readers]


def _make_reader(source: str | Callable[[Any], CellValue]) -> Callable[[Any], CellValue]:
    if not isinstance(source, str):
        return source
    if "." not in source:
        return attrgetter(source)
    names = source.split(".")
    return lambda row: reduce(lambda value, name: None if value is None else getattr(value, name), names, row)


def _read_id(part: str) -> Callable[[Any], CellValue]:
    return lambda row: getattr(CaseId.parse(row.case), part)


def _read_pass(row: Any) -> CellValue:
    return find_pass(row.case)


CALL: Columns = (
    TableColumn("implementation", "name of the implementation"),
    TableColumn("case", "id of the case"),
    TableColumn("pass", "`forward` or `forward+backward`", _read_pass),
    TableColumn("length", "length of the case", _read_id("length")),
    TableColumn("dtype", "dtype of the case", _read_id("dtype")),
    TableColumn("device", "device of the case", _read_id("device")),
)
TIMINGS: Columns = (
    *CALL,
    TableColumn("median_ns", "median time of a call", "time.value"),
    TableColumn("low_ns", "lower end of the confidence interval of the median time", "time.low"),
    TableColumn("high_ns", "upper end of this interval", "time.high"),
    TableColumn("level", "confidence level of this interval", "time.level"),
    TableColumn("processes", "number of processes that timed the call", "time.processes"),
    TableColumn("samples", "number of samples: times of single calls"),
    TableColumn("threads", "number of threads of a call"),
    TableColumn("method", "how the call was timed"),
    TableColumn(
        "measure", "`device` if `median_ns` and `ratio` are from times on the device; `wall` if from end to end"
    ),
    TableColumn("end_to_end_ns", "only on CUDA: median time from end to end"),
    TableColumn("graph_ns", "only on CUDA: median time of the replayed graph"),
    TableColumn("throttled", "only on CUDA: number of samples left out because the clock changed or was throttled"),
    TableColumn("clock", "only on CUDA: how the clock was read"),
    TableColumn(
        "state", "speed verdict: `faster`, `slower`, `same`, `unknown` or `inconclusive`", lambda row: row.state or ""
    ),
    TableColumn("ratio", "time divided by the reference's time: the median of the processes' ratios", "ratio.value"),
    TableColumn("ratio_low", "lower end of the confidence interval of the ratio", "ratio.low"),
    TableColumn("ratio_high", "upper end of this interval", "ratio.high"),
    TableColumn("ratio_level", "confidence level of this interval", "ratio.level"),
    TableColumn("counted", "how many of the processes that `of` counts have enough clean calls", "verdict.counted"),
    TableColumn("of", "number of processes that timed both the implementation and the reference", "verdict.of"),
    TableColumn("reason", "why `state` is `unknown` or `inconclusive`", lambda row: explain_no_verdict(row.reason)),
    TableColumn(
        "null_state",
        "verdict of the A/A control",
        lambda row: (row.verdict and row.verdict.control and row.verdict.control.state) or "",
    ),
    TableColumn("null_ratio", "ratio of the A/A control", "verdict.control.ratio.value"),
    TableColumn("build_ns", "time to build and prepare the module"),
    TableColumn("first_call_ns", "time of the first call"),
    TableColumn("flop", "operations of the case", "rates.flop"),
    TableColumn("bytes", "bytes of the case", "rates.bytes"),
    TableColumn("gflop_per_s", "operations divided by the time", "rates.gflop_per_s"),
    TableColumn("gbyte_per_s", "bytes divided by the time", "rates.gbyte_per_s"),
    TableColumn("share", "shortest possible time by the measured ceilings, divided by the time", "rates.share"),
    TableColumn("bound", "the ceiling that gives this shortest time: `product` or `copy`", "rates.bound"),
    TableColumn("run", "id of the run"),
    TableColumn(
        "reference_ns",
        "the reference's time in the calls of `ratio`; only if `ratio` differs from the quotient of the two medians by "
        "more than 2 %, or by more than 1 % with the quotient outside the interval",
    ),
    TableColumn("values", "`fresh` if each call had new input values, else `fixed`"),
    TableColumn("judged", "number of calls whose results were compared with the oracle"),
    TableColumn(
        "calls",
        "the calls behind `median_ns`. `clean`: the undisturbed ones. `few`: all, none disturbed, but no process has "
        "enough. `disturbed`: all, because no process has enough undisturbed ones",
        "basis",
    ),
    TableColumn(
        "seen_ratio",
        "where `ratio` is missing: the ratio in the undisturbed cycles; no verdict follows from it",
        "rough_ratio",
    ),
)
MEMORY: Columns = (
    *CALL,
    TableColumn(
        "peak_bytes",
        "most bytes that torch's allocator had allocated at any time of the pass, beyond the inputs",
        "memory.peak_bytes",
    ),
    TableColumn(
        "workspace_bytes", "the part of the peak that is neither output nor gradient", "memory.workspace_bytes"
    ),
    TableColumn("saved_bytes", "bytes that a forward pass keeps for its backward pass", "memory.saved_bytes"),
    TableColumn(
        "physical_bytes",
        "highest resident size of the process during the pass, minus the size before",
        "memory.physical_bytes",
    ),
    TableColumn(
        "outside_bytes",
        "memory that a library allocated without torch; empty where it is within the noise",
        "memory.outside_bytes",
    ),
    TableColumn(
        "reserved_bytes", "only on CUDA: bytes that torch's caching allocator reserved", "memory.reserved_bytes"
    ),
    TableColumn("threads", "number of threads of the call", "memory.threads"),
    TableColumn("method", "how memory was measured", "memory.method"),
    TableColumn("run", "id of the run"),
)
KERNELS: Columns = (
    *CALL,
    TableColumn(
        "way",
        "kind of kernel: a fused kernel of torch, a composition of operators, or a kernel of its own",
        lambda result: find_way(result.kernels),
    ),
    TableColumn(
        "kernels",
        "operators and kernels that ran, by their names in torch's profiler, the longest time first",
        lambda result: "; ".join(result.kernels),
    ),
    TableColumn("run", "id of the run"),
)
CEILINGS: Columns = (
    TableColumn("run", "id of the run"),
    TableColumn("device", "device"),
    TableColumn("dtype", "dtype"),
    TableColumn("threads", "number of threads"),
    TableColumn("gflop_per_s", "rate of the matrix product", lambda ceiling: ceiling.flop_per_s / 1e9),
    TableColumn(
        "gbyte_per_s", "rate of the copy, bytes read plus bytes written", lambda ceiling: ceiling.bytes_per_s / 1e9
    ),
)
FINDINGS: Columns = (
    TableColumn("implementation", "name of the implementation", "result.implementation"),
    TableColumn("case", "id of the case", "result.case"),
    TableColumn("check", "name of the check", "finding.check"),
    TableColumn("chapter", "chapter of the check", lambda row: find_chapter(row.finding.check)),
    TableColumn("status", "status of the finding", "finding.status"),
    TableColumn("reason", "why the check did not pass", lambda row: describe_finding(row.finding)),
    TableColumn("measured", "largest measured error", "finding.measured"),
    TableColumn("allowed", "allowed error", "finding.allowed"),
    TableColumn("warnings", "warnings, one a line", lambda row: "\n".join(map(describe_reason, row.finding.warnings))),
    TableColumn("run", "id of the run", "result.run"),
)
EXCLUSIONS: Columns = (
    TableColumn("kind", "what was left out, such as `timing`"),
    TableColumn("run", "id of the run"),
    TableColumn("implementation", "name of the implementation; empty if it belongs to none"),
    TableColumn("case", "id of the case; empty if it belongs to none"),
    TableColumn("reason", "why it cannot be right", lambda one: describe_fault(one.reason)),
)
UNTIMED: Columns = (
    TableColumn("implementation", "name of the implementation"),
    TableColumn("length", "length of the case", _read_id("length")),
    TableColumn("pass", "`forward` or `forward+backward`", _read_pass),
    TableColumn(
        "reason",
        "why the call was not timed",
        lambda result: describe_reason(result.untimed) if result.untimed else ENDED,
    ),
    TableColumn("case", "id of the case"),
    TableColumn("run", "id of the run"),
)
DECISIONS: Columns = (
    TableColumn("machine", "name of the machine", "table.place.machine"),
    TableColumn("device", "device", "table.place.device"),
    TableColumn("dtype", "dtype", "table.place.dtype"),
    TableColumn("threads", "number of threads", "table.place.threads"),
    TableColumn("form", "flags, masks and sizes of the case, without the length", "table.form"),
    TableColumn("queries", "number of queries", "column.queries"),
    TableColumn("keys", "number of keys", "column.keys"),
    TableColumn("mode", "call mode", "column.mode"),
    TableColumn("pass", "`forward` or `forward+backward`", "column.pass_"),
    TableColumn("reference", "the implementation by whose time others are divided", "table.baseline"),
    TableColumn("implementation", "what to use", "answer.name"),
    TableColumn("regret", "the bound on its regret: 0.006 is at most 0.6 % behind any other", "answer.regret"),
    TableColumn("unbounded", "why there is no bound", "answer.unbounded"),
    TableColumn("behind", "the implementation at which the bound is reached", "answer.behind"),
    TableColumn("decided", "whether the bound is at most 1 %", "answer.decided"),
    TableColumn("ratio", "its time divided by the reference's", "chosen.ratio.value"),
    TableColumn("ratio_low", "lower end of the confidence interval of the ratio", "chosen.ratio.low"),
    TableColumn("ratio_high", "upper end of this interval", "chosen.ratio.high"),
    TableColumn("processes", "number of processes that timed the call", "answer.processes"),
    TableColumn("more_would_help", "whether more processes would lower the bound", "answer.more_would_help"),
    TableColumn("conforming", "whether it is known to conform", "table.conforming"),
    TableColumn("suite", "suite of this verdict", "verdict.suite"),
    TableColumn("checked", "number of checked cases behind this verdict", "verdict.checked"),
    TableColumn("peak_bytes", "peak memory of the call", "chosen.peak_bytes"),
    TableColumn("reference_peak_bytes", "peak memory of the reference's call", "reference.peak_bytes"),
)
SUMMARY: Columns = (
    TableColumn("machine", "name of the machine", "table.place.machine"),
    TableColumn("device", "device", "table.place.device"),
    TableColumn("dtype", "dtype", "table.place.dtype"),
    TableColumn("threads", "number of threads", "table.place.threads"),
    TableColumn("form", "flags, masks and sizes of the case, without the length", "table.form"),
    TableColumn("implementation", "name of the implementation", "row.subject"),
    TableColumn("conforms", "verdict on conformance", "row.conformance.verdict"),
    TableColumn("suite", "suite of this verdict", "row.conformance.suite"),
    TableColumn("checked", "number of checked cases behind it", "row.conformance.checked"),
    TableColumn(
        "failed_checks", "names of the failed checks", lambda call: "; ".join(call.row.conformance.failed_checks)
    ),
    TableColumn("pass", "`forward` or `forward+backward`", lambda call: call.column.pass_ if call.column else ""),
    TableColumn("mode", "call mode", lambda call: call.column.mode if call.column else ""),
    TableColumn("queries", "number of queries", "column.queries"),
    TableColumn("keys", "number of keys", "column.keys"),
    TableColumn("case", "id of the case", lambda call: call.column.case if call.column else ""),
    TableColumn("time_ns", "time of a call", "cell.time_ns.value"),
    TableColumn("time_low_ns", "lower end of its confidence interval", "cell.time_ns.low"),
    TableColumn("time_high_ns", "upper end of this interval", "cell.time_ns.high"),
    TableColumn("ratio", "time divided by the reference's", "cell.ratio.value"),
    TableColumn("ratio_low", "lower end of the confidence interval of the ratio", "cell.ratio.low"),
    TableColumn("ratio_high", "upper end of this interval", "cell.ratio.high"),
    TableColumn(
        "mark", "the verdict on the ratio, or which verdict its interval excludes", lambda call: call.cell.mark or ""
    ),
    TableColumn("peak_bytes", "peak memory of the call", "cell.peak_bytes"),
    TableColumn("processes", "number of processes that timed the call", "cell.processes"),
    TableColumn("chosen", "whether it is the implementation to use", lambda call: call.answer is not None),
    TableColumn("regret", "if it is: the bound on its regret", "answer.regret"),
    TableColumn("run", "id of the run", "cell.run"),
    TableColumn("line", "number of the line of the run file that has the timing", "cell.line"),
)
CHANGES: Columns = (
    TableColumn("implementation", "name of the implementation"),
    TableColumn("case", "id of the case"),
    TableColumn("aspect", "what was compared, such as `time`, `peak_bytes`, `flop` or the name of a check"),
    TableColumn("verdict", "the verdict, such as `same`"),
    TableColumn("told", "the change in words", describe_change),
    TableColumn(
        "base",
        "the number in the base run: bytes, operations, kernel calls, or the ratio to the reference's time",
        "base.value",
    ),
    TableColumn("base_low", "lower end of its interval", "base.low"),
    TableColumn("base_high", "upper end of this interval", "base.high"),
    TableColumn("new", "the same number in the new run", "new.value"),
    TableColumn("new_low", "lower end of its interval", "new.low"),
    TableColumn("new_high", "upper end of this interval", "new.high"),
    TableColumn("factor", "`new` divided by `base`", "factor.value"),
    TableColumn("factor_low", "lower end of its interval", "factor.low"),
    TableColumn("factor_high", "upper end of this interval", "factor.high"),
)
