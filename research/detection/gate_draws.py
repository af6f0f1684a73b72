"""How often a gate tells a slowdown, or finds one: gates drawn from the stored processes of real runs.

A drawn gate has processes of each of the timed cases, and decides as a real one: processes are added while a case is
open, and the gate is worse if one case is slower. A slowdown is planted by multiplying the times of the new side. The
rules of other tools decide the same cases, in the same wall time; with them too, one slower case fails the gate.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from attnbench.analysis.speed_verdict import decide_speed, find_slowdown
from attnbench.runner.timing_processes import Effort
from attngate.outcome import SLOWDOWN
from attngate.outcome import Rule as GateRule
from attngate.planning import GateJob, plan_effort
from research.detection.comparisons import STEP, DrawSettings, decide_by_rule, draw_comparisons, upper_bound
from research.detection.gate_runs import NEW
from research.detection.plants import BASE
from research.detection.pools import Condition, Pool, Process, make_timing
from research.detection.rules import Cost, make_rules
from research.lines import read

__all__ = ["GateTally", "count_gates", "evaluate_gates", "format_gate_table", "read_gates"]

# Planted slowdowns in percent: none, at the threshold, and above it.
SLOWDOWNS = (0, 2, 3, 5)
OUR_RULE = "attnbench gate"
# The other tools whose rules decide: names of ``rules.make_rules`` begin with these.
OTHERS = ("asv", "pytest-benchmark")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateTally:
    """Outcomes of the gates that were drawn for one rule, one planted slowdown and one condition."""

    condition: str
    rule: str
    # In percent.
    slowdown: int
    worse: int
    undecided: int
    gates: int
    # Number of gates that can be drawn if no two of them share a process.
    disjoint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The stored runs of a condition, and a pool of processes for each of the timed cases."""

    condition: Condition
    runs: Sequence[Mapping[str, Any]]
    pools: Sequence[Pool]

    @property
    def took_s(self) -> float:
        """Median wall time of a run in seconds, checks included."""
        return float(statistics.median(run["took_s"] for run in self.runs))


def read_gates(path: Path) -> Gates | None:
    """Read stored runs; None if the file does not exist or has no run."""
    found = read(path)
    if found is None:
        return None
    header, records = found
    runs = [record for record in records if record["kind"] == "gate"]
    by_case: dict[str, list[Process]] = {}
    for record in records:
        if record["kind"] == "process" and all(side["times_ns"] for side in record["sides"].values()):
            by_case.setdefault(record["case"], []).append(_slow(record))
    condition = Condition(threads=header["threads"], load=header["load"])
    pools = [Pool(header=header, processes=processes) for processes in by_case.values()]
    return Gates(condition=condition, runs=runs, pools=pools) if runs else None


def _slow(process: Process) -> Process:
    """Add a side for each planted slowdown."""
    new = process["sides"][NEW]
    slowed = {
        str(percent): new | {"times_ns": [round(time * (1 + percent / 100)) for time in new["times_ns"]]}
        for percent in SLOWDOWNS
    }
    return process | {"sides": process["sides"] | slowed}


def count_gates(gates: Gates) -> dict[str, int]:
    """Return how many real runs had each outcome."""
    outcomes = [run["outcome"] for run in gates.runs]
    return {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(sorted(outcomes))}


def evaluate_gates(gates: Gates, *, draws: int, start_s: float) -> list[GateTally]:
    """Draw gates, and decide each by our rule and by those of other tools; ``start_s`` is the start of a process."""
    effort, _ = plan_effort(GateJob(), GateRule(), len(gates.pools))
    settings = DrawSettings(seconds={}, processes={}, most=0, draws=draws)
    make_tally = partial(GateTally, condition=gates.condition.label, gates=draws)
    most = effort.most or effort.processes
    pools = gates.pools
    tallies = []
    for percent in SLOWDOWNS:
        drawn = zip(*(draw_comparisons(pool, most, settings) for pool in pools), strict=True)
        marks = [[_decide(processes, percent, pools[0].threads, effort) for processes in gate] for gate in drawn]
        worse = sum("slower" in gate for gate in marks)
        undecided = sum("slower" not in gate and "unknown" in gate for gate in marks)
        disjoint = min(len(pool.processes) for pool in pools) // most
        tallies.append(make_tally(rule=OUR_RULE, slowdown=percent, worse=worse, undecided=undecided, disjoint=disjoint))
        for rule in make_rules(effort.effect):
            if not rule.name.startswith(OTHERS):
                continue
            layouts = [
                rule.layout(Cost(seconds=gates.took_s / len(pools), start_s=start_s, call_s=pool.call_s)).limit_calls(
                    pool.calls
                )
                for pool in pools
            ]
            needed = [2 * layout.processes for layout in layouts]
            drawn = zip(*map(partial(_draw, settings), pools, needed), strict=True)
            verdicts = (
                [decide_by_rule(rule, layout, own, percent) for layout, own in zip(layouts, gate, strict=True)]
                for gate in drawn
            )
            worse = sum("slower" in gate for gate in verdicts)
            disjoint = min(len(pool.processes) // need for pool, need in zip(pools, needed, strict=True))
            tallies.append(make_tally(rule=rule.name, slowdown=percent, worse=worse, undecided=0, disjoint=disjoint))
    return tallies


def _draw(settings: DrawSettings, pool: Pool, needed: int) -> Iterator[list[Process]]:
    return draw_comparisons(pool, needed, settings)


def _decide(processes: Sequence[Process], percent: int, threads: int, effort: Effort) -> str:
    """Return what a gate tells of a case; processes are added as in a run."""
    taken = effort.processes
    while True:
        own, base = (make_timing(processes[:taken], side, threads=threads) for side in (str(percent), BASE))
        if taken >= len(processes) or not effort.list_open({BASE: base, "new": own}, BASE, verdicts=True):
            found = decide_speed(own, base, effect=effort.effect, level=effort.level)
            return SLOWDOWN[find_slowdown(found, effort.slower or 0.0)]
        taken = min(taken + STEP, len(processes))


def format_gate_table(tallies: Sequence[GateTally]) -> str:
    """Format the tallies as a Markdown table: a row for each condition and rule, a column for each slowdown."""
    head = [*(f"{percent} % slower" if percent else "no change" for percent in SLOWDOWNS)]
    lines = [f"| condition | rule | {' | '.join(head)} | undecided | disjoint gates |"]
    lines.append("|---|---|" + "---:|" * (len(head) + 2))
    by_row: dict[tuple[str, str], list[GateTally]] = {}
    for tally in tallies:
        by_row.setdefault((tally.condition, tally.rule), []).append(tally)
    for (condition, rule), own in by_row.items():
        cells = [condition, rule]
        cells += [
            f"{100 * one.worse / one.gates:.1f} % (≤ {100 * upper_bound(one.worse, one.gates):.1f} %)" for one in own
        ]
        cells += [f"{100 * own[0].undecided / own[0].gates:.1f} %", str(own[0].disjoint)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
