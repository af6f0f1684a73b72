"""Time to start one process alone, and time per process if several start together, as in a run."""

import statistics
import time
from pathlib import Path

from attnbench.runner import Limits, Session
from attnbench.runner.timing_processes import STARTS, start_together
from research.detection.pools import IMPLEMENTATIONS, Condition, Setup, make_header, set_child_environment
from research.lines import Lines, read

__all__ = ["measure_starts", "read_start_times_s"]


def measure_starts(path: Path, condition: Condition, setup: Setup, *, rounds: int, resume: bool) -> None:
    """Time the start of processes until the file has the records of ``rounds`` rounds.

    Every round starts one process alone, then ``STARTS`` processes together, as a run does.
    """
    set_child_environment({})
    head = make_header(condition, setup, "", {}) | {"kind": "starts", "together": STARTS}
    with (
        Session(limits=Limits(threads=condition.threads)) as session,
        Lines.open(path, head, resume=resume) as lines,
    ):
        while len(lines.records) < rounds:
            alone_s, together_s = _measure_start_s(session, 1), _measure_start_s(session, STARTS)
            lines.add({"kind": "start", "alone_s": round(alone_s, 3), "together_s": round(together_s, 3)})


def read_start_times_s(path: Path) -> tuple[float, float] | None:
    """Return the median seconds to start one process: alone, and as one of several processes that start together.

    The result is None if the times were not measured.
    """
    found = read(path)
    if found is None or not found[1]:
        return None
    head, records = found
    alone_s, together_s = (statistics.median(record[name] for record in records) for name in ("alone_s", "together_s"))
    return float(alone_s), float(together_s) / int(head["together"])


def _measure_start_s(session: Session, count: int) -> float:
    begin = time.monotonic()
    workers = start_together(session, IMPLEMENTATIONS, count)
    took_s = time.monotonic() - begin
    for worker in workers:
        worker.close()
    return took_s
