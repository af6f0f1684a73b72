"""Runs for tests of the summary: made by hand, so that verdicts, ratios and what is missing are known."""

from dataclasses import replace

from attnbench.records.run_file import StoredRun
from attnbench.records.types import End, Finding, Planned, Result, StoredJob
from timed_runs import REFERENCE, case_of, check, store, time_calls

__all__ = ["check_cases", "end", "fail", "make_mixed_run"]

# As many cases as a verdict needs.
ENOUGH = 20


def check_cases(
    name: str, count: int = ENOUGH, *, suite: str = "quick", run: str = "run-1", device: str = "cpu"
) -> list[Result]:
    """Return the results of an implementation that passed a check on this many cases."""
    return [check(name, case_of(2 + n, "eval", device=device), suite=suite, run=run) for n in range(count)]


def fail(
    name: str, checks: tuple[str, ...] = ("forward_parity",), *, reason: str = "off", run: str = "run-1"
) -> Result:
    """Return a result in which each of these checks failed."""
    findings = tuple(Finding(check=one, status="failed", reason=reason) for one in checks)
    return Result(run=run, implementation=name, case=case_of(3, "eval"), findings=findings, suite="quick")


def end(stored: StoredRun) -> StoredRun:
    """Return the run with an end on record, as a finished run has one."""
    return replace(stored, end=End(run=stored.run.id, time="", outcome="finished", exit_code=0))


def make_mixed_run() -> StoredRun:
    """Return a run of six implementations.

    One is faster, one slower, two are wrong, one refuses every case, and one was checked on three cases only.
    """
    cases = [case_of(length, mode) for mode in ("inference", "train") for length in (32, 128, 512)]
    timed = {REFERENCE: 1.0, "fused_projection": 0.9, "slow": 1.3, "rare": 0.8}
    results = [result for name in (REFERENCE, "fused_projection", "slow") for result in check_cases(name)]
    results += check_cases("rare", 3)
    results += [fail("my_attention", ("forward_parity", "weights_parity"), reason="RuntimeError: no"), fail("other")]
    results += [check("xformers", case_of(2 + n, "eval"), refused="needs a CUDA device") for n in range(ENOUGH)]
    results += [time_calls(name, ratio, case=case) for case in cases for name, ratio in timed.items()]
    left = time_calls("my_attention", case=cases[0])
    results.append(replace(left, timing=None, memory=None, untimed="failed: off"))
    results.append(
        replace(left, implementation="rare", case=case_of(1024), timing=None, memory=None, untimed="too slow")
    )
    stored = store(results)
    names = (*timed, "my_attention", "other", "xformers")
    planned = {name: Planned(cases=0) for name in names}
    return end(replace(stored, run=replace(stored.run, implementations=names, job=StoredJob(planned=planned))))
