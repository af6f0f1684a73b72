"""The longest sequence that each implementation can process (max length), among the lengths that were tried."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnbench.cases import Case, CaseId
from attnbench.plugins.registry import load_operator, load_problem_types
from attnbench.records.types import FRONTIER, Finding, Result

__all__ = ["FITS", "MaxLength", "find_length", "find_max_lengths"]

# Check name of the finding that says whether a length fits.
FITS = "fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxLength:
    """Longest sequence of an implementation that fits the limits, for one pass, dtype and device."""

    implementation: str
    # Id of the shortest case that was tried; the other cases that were tried differ from it only in
    # length.
    case: str
    # Greatest length that fits; None if no length fits.
    length: int | None
    # Seconds of a call at the length ``length``; None if no length fits.
    took_s: float | None = None
    # Peak bytes of a call at the length ``length``; None if no length fits, or the peak was not
    # measured.
    peak_bytes: int | None = None
    # Smallest length that does not fit; None if all lengths that were tried fit.
    beyond: int | None = None
    # The finding on the length ``beyond``; None if all lengths that were tried fit.
    failure: Finding | None = None


def find_max_lengths(results: Iterable[Result]) -> list[MaxLength]:
    """Return the longest sequence of each implementation for each pass, dtype and device."""
    tried: dict[tuple[str, ...], dict[int, Result]] = {}
    for result in results:
        if result.suite == FRONTIER:
            case = CaseId.parse(result.case)
            key = result.implementation, case.operator, case.dtype, case.device, case.mode
            tried.setdefault(key, {})[find_length(result.case)] = result
    return [_find_max_length(by_length) for by_length in tried.values()]


def _find_max_length(tried: Mapping[int, Result]) -> MaxLength:
    name, case = tried[min(tried)].implementation, tried[min(tried)].case
    findings = {length: _find_decisive(result.findings) for length, result in tried.items()}
    fitting = [length for length, finding in findings.items() if finding.status == "passed"]
    longest = max(fitting, default=None)
    beyond = min((length for length in findings if length not in fitting), default=None)
    failure = None if beyond is None else findings[beyond]
    if longest is None:
        return MaxLength(implementation=name, case=case, length=None, beyond=beyond, failure=failure)
    memory = tried[longest].memory
    return MaxLength(
        implementation=name,
        case=case,
        length=longest,
        took_s=findings[longest].measured,
        peak_bytes=None if memory is None else memory.peak_bytes,
        beyond=beyond,
        failure=failure,
    )


def _find_decisive(findings: Sequence[Finding]) -> Finding:
    """Return the first finding that did not pass, or the first finding if all passed."""
    return next((finding for finding in findings if finding.status != "passed"), findings[0])


def find_length(case: str) -> int:
    """Return the sequence length of a case id, as the case's operator defines the length.

    Raises: ValueError or PluginError if the operator is not installed here, or the id is not one of its cases.
    """
    parsed = Case.parse(case, load_problem_types())
    return load_operator(parsed.operator).length(parsed)
