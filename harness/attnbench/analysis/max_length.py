"""The longest sequence that each implementation gets through, read from the lengths that were tried."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnbench.cases import Case
from attnbench.plugins.registry import load_operator, problems
from attnbench.records.types import FRONTIER, Finding, Result, pass_of

__all__ = ["FITS", "HEAD", "Frontier", "frontiers", "row"]

# Name of the finding on a length.
FITS = "fits"
# What stands above the rows of a table.
HEAD = ("implementation", "pass", "dtype", "longest", "s a call", "peak MiB", "beyond")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """How far one implementation gets in one pass, dtype and device."""

    implementation: str
    # The case at the shortest length; those that were tried differ in length alone.
    case: str
    # The longest that fits, its seconds a call and its bytes; None where not even the shortest does.
    length: int | None
    took_s: float | None = None
    peak_bytes: int | None = None
    # The shortest that does not fit, and why; None where the longest length of all fits.
    beyond: int | None = None
    reason: str = ""


def frontiers(results: Iterable[Result]) -> list[Frontier]:
    """How far each got, from the lengths that were tried."""
    tried: dict[tuple[str, str], dict[int, Result]] = {}
    for result in results:
        if result.suite == FRONTIER:
            length, shortest = _length(result.case)
            tried.setdefault((result.implementation, shortest), {})[length] = result
    return [_frontier(name, case, of) for (name, case), of in tried.items()]


def _frontier(name: str, case: str, tried: Mapping[int, Result]) -> Frontier:
    findings = {length: _decisive(result.findings) for length, result in tried.items()}
    fitting = [length for length, finding in findings.items() if finding.status == "passed"]
    longest = max(fitting, default=None)
    beyond = min((length for length in findings if length not in fitting), default=None)
    reason = "" if beyond is None else f"{findings[beyond].status}: {findings[beyond].reason}"
    if longest is None:
        return Frontier(implementation=name, case=case, length=None, beyond=beyond, reason=reason)
    memory = tried[longest].memory
    return Frontier(
        implementation=name,
        case=case,
        length=longest,
        took_s=findings[longest].measured,
        peak_bytes=None if memory is None else memory.peak_bytes,
        beyond=beyond,
        reason=reason,
    )


def _decisive(findings: Sequence[Finding]) -> Finding:
    """The first finding that did not hold, or the first of all."""
    return next((finding for finding in findings if finding.status != "passed"), findings[0])


def _length(case: str) -> tuple[int, str]:
    """Length of a case, and what it has in common with those of other lengths: operator, dtype, device and mode."""
    parsed = Case.parse(case, problems())
    return load_operator(parsed.operator).length(parsed), "/".join([parsed.operator, *case.split("/")[-3:]])


def row(frontier: Frontier) -> tuple[str, ...]:
    """A frontier in words, as they stand under ``HEAD``."""
    dtype = frontier.case.split("/")[1]
    peak = "–" if frontier.peak_bytes is None else f"{frontier.peak_bytes / 2**20:.4g}"
    took = "–" if frontier.took_s is None else f"{frontier.took_s:.3g}"
    length = "–" if frontier.length is None else str(frontier.length)
    beyond = "" if frontier.beyond is None else f"{frontier.beyond}: {frontier.reason}"
    return frontier.implementation, pass_of(frontier.case), dtype, length, took, peak, beyond
