"""Cost of a report on many results: ``python -m research.report_scale --help``.

The study writes two synthetic run files. A new process makes the report of each file:

- ``conformance``: 100,000 conformance results of 20 implementations; 10,000 of the results have a failed check
- ``profile``: 20,000 timed rows of 20 implementations, with 5 to 9 processes of 46 cycles; a row is one implementation
  on one case

The costs of a report are the processor time and the largest resident memory of its process, and the number of bytes and
of HTML elements of its page. If playwright and Chromium are installed, the study also measures how long the page takes
to open, and how long its longest table takes to sort.
"""

import argparse
import importlib
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

from attnbench.cases import CaseId
from attnbench.checks.catalogue import read_checks
from attnbench.records.run_file import format_line
from attnbench.records.types import (
    SAMPLE_FIELDS,
    Ceiling,
    End,
    Finding,
    Machine,
    Memory,
    Record,
    Result,
    Run,
    Samples,
    Timing,
)
from research.process_cost import measure_command

__all__ = [
    "Cost", "list_cases", "main", "make_failure", "make_finding", "make_timing", "measure_report", "write_conformance",
    "write_profile",
]  # fmt: skip

# Defaults. RESULTS: number of conformance results. FAILURES: how many of the results have a failed check. ROWS: number
# of timed rows.
RESULTS, FAILURES, ROWS = 100_000, 10_000, 20_000
IMPLEMENTATIONS = ("torch_mha", *(f"implementation_{number:02}" for number in range(1, 20)))
# Number of findings of each conformance result.
FINDINGS = 5
# Number of cycles of each process. A profile makes about as many cycles if a call takes a millisecond.
SAMPLES = 46
# Smallest and largest number of processes of a timing.
PROCESSES = (5, 9)
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
# Modes of a timed case: the forward pass alone, and forward with backward.
MODES = ("inference", "train")
MACHINE = Machine(name="synthetic-cpu", cpu="Synthetic CPU", cores=16, memory_bytes=2**36)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Costs of one report.

    ``cpu_s`` and ``resident_bytes`` are the processor time and the largest resident memory of the process that made the
    report. ``page_bytes`` and ``elements`` are the numbers of bytes and of HTML elements of the page. ``opened_ms`` and
    ``sorted_ms`` are how long the page took to open, and its longest table to sort, in a browser; None if not measured.
    """

    cpu_s: float
    resident_bytes: int
    page_bytes: int
    elements: int
    opened_ms: float | None = None
    sorted_ms: float | None = None
    # Number of rows of the sorted table; None if no table was sorted.
    rows: int | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both run files, make both reports, and print a table of the costs."""
    options = _make_parser().parse_args(arguments)
    print("| run file | CPU, s | resident, MiB | page, MB | elements | opened, ms | sorted, ms (rows) |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="attnbench-scale-") as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        if options.results:
            write_conformance(folder / "conformance.jsonl", options.results, options.failures, options.findings)
            _print_row("conformance", measure_report(folder / "conformance.jsonl", folder / "conformance"))
        if options.rows:
            write_profile(folder / "profile.jsonl", options.rows, options.lengths)
            _print_row("profile", measure_report(folder / "profile.jsonl", folder / "profile"))
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m research.report_scale", description="Cost of a report.")
    parser.add_argument(
        "--results", type=int, default=RESULTS, help="number of conformance results; 0 makes no conformance report"
    )
    parser.add_argument(
        "--failures", type=int, default=FAILURES, help="number of conformance results with a failed check"
    )
    parser.add_argument("--findings", type=int, default=FINDINGS, help="number of findings of each conformance result")
    parser.add_argument("--rows", type=int, default=ROWS, help="number of timed rows; 0 makes no profile report")
    parser.add_argument(
        "--lengths", type=int, default=len(LENGTHS), help="number of sequence lengths for each width of the timed cases"
    )
    parser.add_argument("--folder", type=Path, help="folder in which run files and reports are kept")
    return parser


def write_conformance(path: Path, results: int, failures: int, findings: int = FINDINGS) -> None:
    """Write a run file of conformance results.

    ``results`` is the number of results, and ``failures`` is how many of them have one failed check. ``findings`` is
    the number of findings of each result.
    """
    _write(path, _make_run("conformance", "core"), _make_conformance(results, failures, findings))


def write_profile(path: Path, rows: int, lengths: int = len(LENGTHS)) -> None:
    """Write a run file of timed rows; ``rows`` is their number.

    The cases combine each width with both passes and ``lengths`` lengths. All implementations are timed on each case.
    """
    _write(path, _make_run("profile", "perf"), _make_profile(rows, lengths))


def _write(path: Path, run: Run, records: Iterator[Record]) -> None:
    with path.open("wb") as stream:
        stream.write(format_line(run))
        stream.writelines(map(format_line, records))
        stream.write(format_line(End(run=run.id, time=run.time, outcome="finished", exit_code=0)))


def _make_run(name: str, suite: str) -> Run:
    return Run(
        id=name, time="2026-01-01T00:00:00+00:00", command=f"attnbench run --suite {suite}", machine=MACHINE,
        versions={"torch": "2.13.0"}, threads=2, suite=suite, suite_digest="0" * 12, implementations=IMPLEMENTATIONS,
    )  # fmt: skip


def _make_conformance(results: int, failures: int, findings: int) -> Iterator[Result]:
    draw = random.Random(0)  # noqa: S311  # the same results every time
    checks = list(read_checks())[:60]
    failing = set(draw.sample(range(results), failures))
    cases = list_cases(-(-results // len(IMPLEMENTATIONS)))
    for number in range(results):
        place, own = divmod(number, len(IMPLEMENTATIONS))
        first = (7 * place) % len(checks)
        made = [make_finding(checks[(first + one) % len(checks)], draw) for one in range(findings)]
        if number in failing:
            made[0] = make_failure(made[0].check, draw)
        yield Result(
            run="conformance", implementation=IMPLEMENTATIONS[own], case=cases[place], findings=tuple(made),
            flop=10_000, bytes=4_000, suite="core",
        )  # fmt: skip


def list_cases(count: int) -> list[str]:
    """Return ``count`` ids of different cases, written like the case ids of the operator ``multihead``."""
    sizes = ("B2.L5.S7.E24.H3", "B4.L33.S47.E21.H3", "B1.L64.S64.E256.H4", "B8.L1.S65.E64.H8")
    flags = ("-", "bias+batch_first", "bias+batch_first+need_weights", "bias+self_attention", "add_bias_kv+bias")
    masks, regimes = ("none", "bool2d", "float3d", "padding", "causal"), ("plain", "identity", "large")
    dtypes, modes = ("float32", "float64", "bfloat16"), ("eval", "train", "inference")
    forms = product(range(count), sizes, flags, masks, regimes, dtypes, modes)
    return [
        str(
            CaseId(
                operator="multihead",
                problem=f"{size}/{flag}/mask={mask}/regime={regime}/seed={seed}",
                dtype=dtype,
                device="cpu",
                mode=mode,
            )
        )
        for (seed, size, flag, mask, regime, dtype, mode), _ in zip(forms, range(count), strict=False)
    ]


def make_finding(check: str, draw: random.Random) -> Finding:
    """Return a finding that is no failure: one of ten is refused, and one of a hundred is an expected failure."""
    share = draw.random()
    if share < 0.1:
        return Finding(check=check, status="unsupported", reason="keys of another width than queries are not taken")
    if share < 0.11:
        reason = "weights are NaN in rows without a key (https://example.org/issues/1): got NaN"
        return Finding(check=check, status="expected_failure", reason=reason)
    return Finding(check=check, status="passed", measured=1e-7 * draw.random(), allowed=1e-6)


def make_failure(check: str, draw: random.Random) -> Finding:
    """Return a failed finding, with a reason as the check ``forward_parity`` gives it."""
    off, worst = draw.randint(1, 240), draw.random()
    reason = (
        f"The output equals the oracle's within the error budget. But {off} of 240 elements ({off / 2.4:.1f}%) of the "
        f"output are off; the worst by {worst:.3g} at query {off % 5}, batch 0, feature {off % 24}; allowed 5.29e-06 "
        "= twice 4 × the larger of the rounding model's error 6.61e-07 and the reference's own 4.98e-07."
    )
    return Finding(check=check, status="failed", reason=reason, measured=worst, allowed=5.29e-6)


def _make_profile(rows: int, lengths: int) -> Iterator[Record]:
    yield Ceiling(run="profile", device="cpu", dtype="float32", threads=2, flop_per_s=1e11, bytes_per_s=1e10)
    draw, made = random.Random(1), 0  # noqa: S311  # the same results every time
    for number in range(rows):
        form, rest = divmod(number, lengths * len(MODES))
        length, mode = _choose_length(rest % lengths), MODES[rest // lengths]
        problem = f"B1.L{length}.S{length}.E{64 * (form + 1)}.H4/bias/mask=none/regime=plain/seed=0"
        case = CaseId(operator="multihead", problem=problem, dtype="float32", device="cpu", mode=mode)
        processes = draw.randint(*PROCESSES)
        timed = [
            _make_timed(name, str(case), place, length, processes, draw)
            for place, name in enumerate(IMPLEMENTATIONS[: rows - made])
        ]
        yield from (replace(result, timing=None) for result in timed)
        yield from _divide_timings(timed, processes)
        made += len(timed)
        if made == rows:
            return


def _divide_timings(results: Sequence[Result], processes: int) -> Iterator[Samples]:
    """Yield the samples of each process on one case, as a profile stores them."""
    for number, one in product(range(processes), results):
        if one.timing is not None:
            timing = _take_process(one.timing, number)
            yield Samples(run=one.run, implementation=one.implementation, case=one.case, first=number, timing=timing)


def _take_process(timing: Timing, number: int) -> Timing:
    """Return the samples of one process of a timing."""
    columns = {
        name: getattr(timing, name)[number : number + 1]
        for name in ("samples_ns", "build_ns", "first_call_ns", *SAMPLE_FIELDS)
    }
    partners = () if number else timing.interleaved_with
    return replace(
        timing, **columns, interleaved_with=partners, twin=_take_process(timing.twin, number) if timing.twin else None
    )


def _choose_length(place: int) -> int:
    """Return the length with the index ``place``: the lengths are powers of two, then grow in steps of 128."""
    return LENGTHS[place] if place < len(LENGTHS) else LENGTHS[-1] + 128 * (place - len(LENGTHS) + 1)


def _make_timed(name: str, case: str, place: int, length: int, processes: int, draw: random.Random) -> Result:
    base_ns = length**2 * (8 + place) // 8 + 20_000
    others = tuple(one for one in IMPLEMENTATIONS if one != name)
    # A cycle calls either the reference or its A/A control.
    cycles = range(0, SAMPLES, 2) if place == 0 else range(SAMPLES)
    twin = make_timing(base_ns, range(1, SAMPLES, 2), processes, others, draw) if place == 0 else None
    return Result(
        run="profile", implementation=name, case=case,
        findings=(Finding(check="forward_parity", status="passed", measured=1e-7, allowed=1e-6),),
        timing=make_timing(base_ns, cycles, processes, others, draw, twin),
        memory=Memory(
            peak_bytes=length**2 * (4 + place), saved_bytes=length * 4096, workspace_bytes=length**2,
            physical_bytes=length**2 * 5, threads=2, method="allocator",
        ),
        flop=length**2 * 1024, bytes=length * 2048, kernels=("aten::bmm ×2", "aten::_softmax", "aten::mm ×4"),
        suite="perf",
    )  # fmt: skip


def make_timing(
    base_ns: int,
    cycles: range,
    processes: int,
    others: tuple[str, ...],
    draw: random.Random,
    twin: Timing | None = None,
) -> Timing:
    """Make a timing: each process has its own level, each call has noise of up to 2 %; some calls wait for a core."""
    levels = [base_ns * (1 + 0.02 * draw.random()) for _ in range(processes)]
    return Timing(
        samples_ns=tuple(tuple(int(level * (1 + 0.02 * draw.random())) for _ in cycles) for level in levels),
        waited_ns=tuple(tuple(base_ns // 10 if draw.random() < 0.05 else 0 for _ in cycles) for _ in levels),
        switches=tuple(tuple(1 if draw.random() < 0.05 else 0 for _ in cycles) for _ in levels),
        cycles=(tuple(cycles),) * processes,
        threads=2, interleaved_with=others, build_ns=(700_000,) * processes, first_call_ns=(9_000_000,) * processes,
        twin=twin,
    )  # fmt: skip


def measure_report(path: Path, folder: Path, *, browser: bool = True) -> Cost:
    """Make the report of a run file in a new process, and return its costs.

    Raises: RuntimeError if the command does not end with the exit code 0 or 1.
    """
    process = measure_command("report", str(path), "--reports", str(folder), exit_codes=(0, 1))
    page = folder / "index.html"
    counter = _ElementCounter()
    counter.feed(page.read_text(encoding="utf-8"))
    opened = _open_page(page) if browser else {}
    return Cost(
        cpu_s=process.cpu_s,
        resident_bytes=process.resident_bytes,
        page_bytes=page.stat().st_size,
        elements=counter.count,
        **opened,
    )


class _ElementCounter(HTMLParser):
    """HTML parser that counts the elements of a page."""

    count = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.count += 1


# Script that brings the table with the most rows into view, sorts it by the last column that can be sorted, and waits
# until the page is drawn again. The script returns how many milliseconds the sorting took, and the number of rows.
SORT = """async () => {
  const tables = [...document.querySelectorAll("table.sortable")];
  if (!tables.length) return [null, null];
  const table = tables.reduce((a, b) => (b.rows.length > a.rows.length ? b : a));
  for (let part = table; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  const draw = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  table.scrollIntoView();
  await draw();
  await draw();
  const head = [...table.querySelectorAll("th[data-sort]")].pop();
  const begin = performance.now();
  (head.querySelector("button") ?? head).click();
  await draw();
  return [performance.now() - begin, table.rows.length];
}"""


def _open_page(page: Path) -> dict[str, Any]:
    """Open a page in Chromium, sort its longest table, and return the fields of ``Cost`` that need a browser.

    The result is empty if playwright or Chromium is missing.
    """
    try:
        playwright = importlib.import_module("playwright.sync_api")  # optional: all other costs need no browser
    except ImportError:
        return {}
    with playwright.sync_playwright() as play:
        try:
            chromium = play.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"))
        except playwright.Error:
            return {}
        with chromium:
            tab = chromium.new_page(viewport={"width": 1440, "height": 900})
            tab.goto(page.absolute().as_uri(), wait_until="load")
            opened = tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventStart")
            took, rows = tab.evaluate(SORT)
    return {"opened_ms": opened, "sorted_ms": took, "rows": rows}


def _print_row(name: str, cost: Cost) -> None:
    opened = "–" if cost.opened_ms is None else f"{cost.opened_ms:.0f}"
    took = "–" if cost.sorted_ms is None else f"{cost.sorted_ms:.0f} ({cost.rows})"
    print(
        f"| {name} | {cost.cpu_s:.1f} | {cost.resident_bytes / 2**20:.0f} | {cost.page_bytes / 1e6:.2f} | "
        f"{cost.elements} | {opened} | {took} |"
    )


if __name__ == "__main__":
    sys.exit(main())
