"""Ceilings of a run: what its machine reaches in the dtypes, on the devices and with the threads that are timed."""

from collections.abc import Collection, Iterator, Sequence

from attnbench.records.types import Ceiling
from attnbench.runner.session import Plan, Session

__all__ = ["ceilings"]


def ceilings(session: Session, plans: Sequence[Plan], *, run: str, done: Collection[Ceiling] = ()) -> Iterator[Ceiling]:
    """A ceiling for every device and dtype of the plans that has none yet; none where it cannot be measured.

    It is measured in a process that is started as the timing processes are, and that loads nobody's code.
    """
    known = {(one.device, one.dtype) for one in done}
    wanted = dict.fromkeys(tuple(plan.case.split("/")[-3:-1]) for plan in plans if plan.missing is None)
    left = [(device, dtype) for dtype, device in wanted if (device, dtype) not in known]
    if not left:
        return
    with session.supervise_together([]) as worker:
        for device, dtype in left:
            reached = worker.ask("ceiling", dtype=dtype, device=device)
            if "status" not in reached:
                yield Ceiling(run=run, device=device, dtype=dtype, **reached)
