"""Ceilings (highest measured rates) of the machine, for the dtypes, devices and number of threads of a timed run."""

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import asdict

from attnbench.cases import CaseId
from attnbench.processes.candidate_requests import MeasureRates, Rates
from attnbench.records.types import Ceiling
from attnbench.runner.session import Plan, Session

__all__ = ["measure_ceilings"]


def measure_ceilings(
    session: Session, plans: Sequence[Plan], *, run: str, done: Collection[Ceiling] = ()
) -> Iterator[Ceiling]:
    """Yield a ceiling for each device and dtype of the plans that is not in ``done`` and can be measured.

    The measuring process is started like a timing process, and loads no implementation.
    """
    known = {(one.device, one.dtype) for one in done}
    cases = [CaseId.parse(plan.case) for plan in plans if plan.missing is None]
    wanted = dict.fromkeys((case.device, case.dtype) for case in cases)
    left = [place for place in wanted if place not in known]
    if not left:
        return
    with session.supervise_together([]) as worker:
        for device, dtype in left:
            reached = worker.ask(MeasureRates(dtype=dtype, device=device))
            if isinstance(reached, Rates):
                yield Ceiling(run=run, device=device, dtype=dtype, **asdict(reached))
