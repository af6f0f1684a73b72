"""What a process costs to start, alone and beside others: a run starts as many at a time as it may."""

import statistics
import time
from pathlib import Path

from attnbench.runner import Limits, Session
from attnbench.runner.timing import STARTS, start_together
from research.detection.pools import HELD, Condition, Setup, header, tell_children
from research.lines import Lines, read

__all__ = ["costs", "measure"]


def measure(path: Path, condition: Condition, setup: Setup, *, rounds: int, resume: bool) -> None:
    """Start one process, and then as many as a run does, so many times."""
    tell_children({})
    head = header(condition, setup, "", {}) | {"kind": "starts", "together": STARTS}
    with (
        Session(limits=Limits(threads=condition.threads)) as session,
        Lines.opened(path, head, resume=resume) as lines,
    ):
        while len(lines.held) < rounds:
            alone_s, together_s = _took_s(session, 1), _took_s(session, STARTS)
            lines.add({"kind": "start", "alone_s": round(alone_s, 3), "together_s": round(together_s, 3)})


def costs(path: Path) -> tuple[float, float] | None:
    """Median wall time of a start alone, and of each of several together, in seconds; None if not measured."""
    found = read(path)
    if found is None or not found[1]:
        return None
    head, records = found
    alone_s, together_s = (statistics.median(record[name] for record in records) for name in ("alone_s", "together_s"))
    return float(alone_s), float(together_s) / int(head["together"])


def _took_s(session: Session, count: int) -> float:
    begin = time.monotonic()
    workers = start_together(session, HELD, count)
    took_s = time.monotonic() - begin
    for worker in workers:
        worker.close()
    return took_s
