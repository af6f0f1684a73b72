"""How often the bound on regret is too small, and how long it takes until the bound is 1 %.

What to use is chosen among the reference and its copies, by the harness's rule, from randomly drawn processes of a pool
of stored runs. Of the copies, one makes the same calls as the reference, and the others have extra work. So the true
regret of each choice is known. As in a run, processes are added until the answer is decided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnbench.analysis.answers import DECIDED, Answer, choose
from attnbench.analysis.pairs import bound_pairs
from attnbench.analysis.speed_verdict import decide_speed
from research.detection.comparisons import STEP, DrawSettings, draw_comparisons, upper_bound
from research.detection.plants import BASE, SHARES
from research.detection.pools import Pool, Process, estimate_size, make_timing

__all__ = ["RegretTally", "evaluate_regret", "format_regret_table"]

# What is chosen from: the reference with a copy that makes the same calls; with a copy that has extra work; with all.
FIELDS: Mapping[str, tuple[int, ...]] = {
    "identical code": (0,),
    **{f"{share} % slower": (share,) for share in SHARES if share},
    "all copies": tuple(SHARES),
}
# Numbers of processes at first and at most: those of the suites quick, and core and full.
EFFORTS = ((7, 12), (10, 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretTally:
    """The answers to one question, drawn many times from one pool."""

    condition: str
    # What is chosen from, and the number of processes at first and at most.
    field: str
    first: int
    most: int
    answers: int
    # How often the true regret exceeds the told bound: at the first number of processes, and where it stopped.
    false_at_first: int
    false: int
    # How often the bound is at most 1 % where it stopped; how often there is no bound.
    decided: int
    unbounded: int
    # Number of processes where it stopped, on average; and where a rule stops that adds processes until every speed
    # verdict against the reference is known.
    processes: float
    processes_by_verdicts: float
    # Number of answers that can be drawn if no two of them share a process.
    disjoint: int


def evaluate_regret(condition: str, pool: Pool, plants: Pool | None, settings: DrawSettings) -> list[RegretTally]:
    """Draw answers from a pool; ``plants`` is the pool from which the true slowdowns of the copies are estimated."""
    true = {BASE: 0.0, "0": 0.0}
    if plants:
        true |= {str(one): found.value - 1 for one in SHARES if one and (found := estimate_size(plants, one))}
    fields = {name: shares for name, shares in FIELDS.items() if all(str(share) in true for share in shares)}
    return [
        _tally(condition, pool, name, [BASE, *map(str, shares)], true, first, most, settings)
        for first, most in EFFORTS
        if most <= len(pool.processes)
        for name, shares in fields.items()
    ]


def _tally(
    condition: str,
    pool: Pool,
    field: str,
    names: Sequence[str],
    true: Mapping[str, float],
    first: int,
    most: int,
    settings: DrawSettings,
) -> RegretTally:
    counts = dict.fromkeys(("false_at_first", "false", "decided", "unbounded"), 0)
    used, used_by_verdicts = 0, 0
    least = min(true[name] for name in names)
    for processes in draw_comparisons(pool, most, settings):
        taken = first
        answer = _answer(processes[:taken], names, pool.threads)
        counts["false_at_first"] += _is_false(answer, true, least)
        while answer.more_would_help and taken < most:
            taken = min(taken + STEP, most)
            answer = _answer(processes[:taken], names, pool.threads)
        used += taken
        used_by_verdicts += _count_by_verdicts(processes, names, pool.threads, first)
        counts["false"] += _is_false(answer, true, least)
        counts["decided"] += answer.decided
        counts["unbounded"] += answer.regret is None
    return RegretTally(
        condition=condition,
        field=field,
        first=first,
        most=most,
        answers=settings.draws,
        processes=used / settings.draws,
        processes_by_verdicts=used_by_verdicts / settings.draws,
        disjoint=len(pool.processes) // most,
        **counts,
    )


def _answer(processes: Sequence[Process], names: Sequence[str], threads: int) -> Answer:
    timings = {name: make_timing(processes, name, threads=threads) for name in names}
    answer = choose(bound_pairs(timings, BASE, names), {}, names)
    assert answer is not None  # every name is timed
    return answer


def _count_by_verdicts(processes: Sequence[Process], names: Sequence[str], threads: int, first: int) -> int:
    """Return the number of processes after which no speed verdict against the reference is ``unknown``."""
    taken = first
    while taken < len(processes):
        timings = {name: make_timing(processes[:taken], name, threads=threads) for name in names}
        if all(decide_speed(timings[name], timings[BASE]).state != "unknown" for name in names if name != BASE):
            break
        taken = min(taken + STEP, len(processes))
    return taken


def _is_false(answer: Answer, true: Mapping[str, float], least: float) -> bool:
    """Whether the true regret of an answer exceeds its bound; an answer without a bound promises nothing."""
    return answer.regret is not None and (1 + true[answer.name]) / (1 + least) - 1 > answer.regret


def format_regret_table(tallies: Sequence[RegretTally]) -> str:
    """Format the tallies as a Markdown table, a row for each."""
    lines = ["| condition | chosen from the reference and | processes | bound too small, at first | bound too small |"]
    lines[0] += f" bound at most {100 * DECIDED:g} % | no bound | processes used | processes until all verdicts |"
    lines += ["|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for one in tallies:
        rates = [
            f"{100 * count / one.answers:.1f} % (≤ {100 * upper_bound(count, one.answers):.1f} %)"
            for count in (one.false_at_first, one.false)
        ]
        shares = [f"{100 * count / one.answers:.0f} %" for count in (one.decided, one.unbounded)]
        cells = [one.condition, one.field, f"{one.first} to {one.most}", *rates, *shares, f"{one.processes:.1f}"]
        cells.append(f"{one.processes_by_verdicts:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
