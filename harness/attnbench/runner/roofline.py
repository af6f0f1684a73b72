"""Ceilings (highest measured rates) of the machine, for the dtypes, devices and number of threads of a timed run."""

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import asdict

from attnbench.cases import CaseId
from attnbench.processes.candidate_requests import MeasureRates, Rates
from attnbench.records.types import Ceiling
from attnbench.runner.candidate_pool import TIMING
from attnbench.runner.session import Plan, Session

__all__ = ["measure_ceilings", "measure_rates"]


def measure_ceilings(
    session: Session, plans: Sequence[Plan], *, run: str, done: Collection[Ceiling] = ()
) -> Iterator[Ceiling]:
    """Yield a ceiling for each device and dtype of the plans that is not in ``done`` and can be measured."""
    known = {(one.device, one.dtype) for one in done}
    for (device, dtype), reached in measure_rates(session, plans, without=known).items():
        yield Ceiling(run=run, device=device, dtype=dtype, **asdict(reached))


def measure_rates(
    session: Session, plans: Sequence[Plan], *, without: Collection[tuple[str, str]] = ()
) -> dict[tuple[str, str], Rates]:
    """Return the highest rates on each device and dtype of the plans; those ``without`` are left out.

    A rate that cannot be measured is left out, too. A session measures them once. The measuring process is started like
    a timing process, and loads no implementation.
    """
    cases = [CaseId.parse(plan.case) for plan in plans if plan.missing is None]
    wanted = dict.fromkeys(place for case in cases if (place := (case.device, case.dtype)) not in without)
    if left := [place for place in wanted if place not in session.rates]:
        with session.workers.get([], TIMING) as worker:
            for device, dtype in left:
                reached = worker.ask(MeasureRates(dtype=dtype, device=device))
                if isinstance(reached, Rates):
                    session.rates[device, dtype] = reached
    return {place: session.rates[place] for place in wanted if place in session.rates}
