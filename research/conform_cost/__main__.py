"""CPU time of a conformance run, and the share of the harness itself: ``python -m research.conform_cost``.

The CPU time of all threads of every process is divided among six parts: the candidate (building, preparing, calls and
backward passes), the oracle, its rounding model, the yardsticks, the start of processes, and the harness itself. The
part of the harness is the CPU time that belongs to no other part. Two implementations run one after the other in one
session. The second run reuses the expected values that the first run left in the cache.
"""

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path

from attnbench.plugins.registry import OPERATORS, list_names
from attnbench.processes.oracle_requests import ListSuite
from attnbench.records.types import Result
from attnbench.runner import Limits, NoProgress, Session, conform
from research.conform_cost.cpu_time import SECONDS_FOLDER
from research.conform_cost.requests import ReadSeconds

PARTS = ("candidate", "oracle", "rounding model", "yardsticks", "process start", "the harness itself")
ROOT = str(Path(__file__).parents[2])


class _TimedSession(Session):
    """A session whose candidate workers write their CPU times to files when they end."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(
            limits=limits,
            cache_folder=None,
            oracle_module="research.conform_cost.timed_oracle_worker",
            worker_module="research.conform_cost.timed_candidate_worker",
        )

    @property
    def seconds_folder(self) -> Path:
        """Folder of the files of CPU times."""
        return self.folder / "seconds"

    def read_seconds(self) -> dict[str, float]:
        """Return the CPU seconds of each part of the work in all candidate workers that have ended."""
        return _add_parts(*(json.loads(path.read_text()) for path in self.seconds_folder.glob("*.json")))

    def find_variables(self) -> Mapping[str, str]:
        self.seconds_folder.mkdir(exist_ok=True)
        return {"PYTHONPATH": ROOT, SECONDS_FOLDER: str(self.seconds_folder)}


def main() -> None:
    """Run a suite on two implementations, and print the CPU seconds of each part of the work."""
    parser = argparse.ArgumentParser(prog="python -m research.conform_cost", description=__doc__.partition(":")[0])
    parser.add_argument("first", nargs="?", default="reshaped", help="implementation that runs first")
    parser.add_argument("second", nargs="?", default="sdpa", help="implementation that runs second")
    parser.add_argument("--suite", default="core", help="suite of cases, such as core")
    parser.add_argument("--threads", type=int, help="number of threads of each call")
    options = parser.parse_args()
    before: Mapping[str, float] = {}
    columns: dict[str, tuple[dict[str, float], list[Result]]] = {}
    begin = time.perf_counter()
    with _TimedSession(Limits(threads=options.threads)) as session:
        listed = [
            case
            for name in list_names(OPERATORS)
            for case in session.ask_oracle(ListSuite(operator=name, level=options.suite))
        ]
        plans = session.plan(listed)
        for name in (options.first, options.second):
            results = list(conform(session, [name], plans, run="", progress=NoProgress()))
            now = _add_parts(
                session.read_seconds(),
                session.ask_oracle(ReadSeconds()),
                {"the harness itself": time.process_time()},
            )
            now["wall"] = time.perf_counter() - begin
            columns[name] = ({part: now[part] - before.get(part, 0.0) for part in (*PARTS, "wall")}, results)
            before = now
    _print_table(options.suite, columns)


def _add_parts(*parts: Mapping[str, float]) -> dict[str, float]:
    return {name: sum(part.get(name, 0.0) for part in parts) for name in PARTS}


def _print_table(suite: str, columns: dict[str, tuple[dict[str, float], list[Result]]]) -> None:
    print(f"{f'{suite}: seconds of CPU time':40}", *(f"{name:>14}" for name in columns))
    for part in PARTS:
        print(f"{part:40}", *(f"{seconds[part]:14.1f}" for seconds, _ in columns.values()))
    totals = [sum(seconds[part] for part in PARTS) for seconds, _ in columns.values()]
    print(f"{'total':40}", *(f"{total:14.1f}" for total in totals))
    own = [seconds["the harness itself"] for seconds, _ in columns.values()]
    print(f"{'share of the harness itself':40}", *(f"{a / b:14.0%}" for a, b in zip(own, totals, strict=True)))
    print(f"{'wall time, s':40}", *(f"{seconds['wall']:14.1f}" for seconds, _ in columns.values()))
    print(f"{'cases':40}", *(f"{len(results):14}" for _, results in columns.values()))
    counts = [sum(len(result.findings) for result in results) for _, results in columns.values()]
    print(f"{'findings':40}", *(f"{count:14}" for count in counts))
    rest = [total - seconds["candidate"] for total, (seconds, _) in zip(totals, columns.values(), strict=True)]
    print(
        f"CPU time of the second implementation divided by the first's: {totals[1] / totals[0]:.0%}; "
        f"without the part 'candidate': {rest[1] / rest[0]:.0%}"
    )


if __name__ == "__main__":
    main()
