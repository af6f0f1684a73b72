"""What a conformance run costs, and what of it is the harness's own: ``python -m research.conform_cost``.

CPU time of every process, all threads together, by what it was spent on: the candidate (building, preparing, calling
it and its backward), the oracle, its rounding model, the yardsticks, the start of processes, and the rest, which is the
harness itself. The second implementation runs in the same session as the first.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from attnbench.plugins.registry import OPERATORS, list_names
from attnbench.runner import Limits, NoProgress, Plan, Session, conform
from attnbench.runner.session import PATIENT, Supervisor

PARTS = ("candidate", "oracle", "rounding model", "yardsticks", "process start", "the harness itself")
HERE = str(Path(__file__).parents[2])


class _Timed(Session):
    """A session whose workers say what they spent before they end."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(
            limits=limits,
            oracle_module="research.conform_cost.timed_oracle_worker",
            worker_module="research.conform_cost.timed_candidate_worker",
        )
        self.spent: defaultdict[str, float] = defaultdict(float)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count what a process spent."""
        for part, number in seconds.items():
            self.spent[part] += number

    def supervise(
        self, implementation: str, environment: Mapping[str, str] = PATIENT, *, parallel: int = 1
    ) -> Supervisor:
        return _Telling(self, [implementation], {**environment, "PYTHONPATH": HERE}, parallel=parallel)


class _Telling(Supervisor):
    def close(self) -> None:
        if self._child is not None:
            self._session.add(self.ask("spent"))  # type: ignore[attr-defined]
        super().close()


def main() -> None:
    """Run a suite on two implementations, and print a table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("first", nargs="?", default="reshaped")
    options.add_argument("second", nargs="?", default="sdpa")
    options.add_argument("--suite", default="core")
    options.add_argument("--threads", type=int)
    asked = options.parse_args()
    before: Mapping[str, float] = {}
    columns: dict[str, tuple[dict[str, float], int]] = {}
    begin = time.perf_counter()
    with _Timed(Limits(threads=asked.threads)) as session:
        listed = [
            case for name in list_names(OPERATORS) for case in session.ask_oracle("suite", operator=name, level=asked.suite)
        ]
        plans = session.plan(listed)
        for name in (asked.first, asked.second):
            findings = _run(session, name, plans)
            now = _sum(session.spent, session.ask_oracle("spent"), {"the harness itself": time.process_time()})
            now["wall"] = time.perf_counter() - begin
            columns[name] = ({part: now[part] - before.get(part, 0.0) for part in (*PARTS, "wall")}, findings)
            before = now
    _print(asked.suite, len(plans), columns)


def _sum(*parts: Mapping[str, float]) -> dict[str, float]:
    return {name: sum(part.get(name, 0.0) for part in parts) for name in PARTS}


def _run(session: Session, name: str, plans: list[Plan]) -> int:
    return sum(len(result.findings) for result in conform(session, [name], plans, run="", progress=NoProgress()))


def _print(suite: str, cases: int, columns: dict[str, tuple[dict[str, float], int]]) -> None:
    print(f"{suite}: {cases} cases; seconds of CPU time", *(f"{name:>14}" for name in columns))
    for part in PARTS:
        print(f"{part:40}", *(f"{seconds[part]:14.1f}" for seconds, _ in columns.values()))
    totals = [sum(seconds[part] for part in PARTS) for seconds, _ in columns.values()]
    print(f"{'total':40}", *(f"{total:14.1f}" for total in totals))
    own = [seconds["the harness itself"] for seconds, _ in columns.values()]
    print(f"{'share of the harness itself':40}", *(f"{a / b:14.0%}" for a, b in zip(own, totals, strict=True)))
    print(f"{'wall time, s':40}", *(f"{seconds['wall']:14.1f}" for seconds, _ in columns.values()))
    print(f"{'findings':40}", *(f"{count:14}" for _, count in columns.values()))
    beside = [total - seconds["candidate"] for total, (seconds, _) in zip(totals, columns.values(), strict=True)]
    print(f"second over first: {totals[1] / totals[0]:.0%}; {beside[1] / beside[0]:.0%} beside the candidate")


if __name__ == "__main__":
    main()
