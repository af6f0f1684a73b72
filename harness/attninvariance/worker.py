"""The worker process that measures invariance: a candidate worker that answers one more request."""

import sys
import time
from collections.abc import Sequence

from attnbench.interface import Refusal
from attnbench.processes.candidate_requests import Outcome
from attnbench.processes.request import Handler
from attnbench.processes.rpc import serve
from attnbench.records.environment import count_cores
from attnbench.records.outcome_facts import InvarianceGrade, Size, SweptSize
from attnbench.records.value_facts import store_number
from attnbench.workers.candidate_worker import CandidateWorker
from attnbench.workers.loaded_implementations import LoadedImplementations
from attnbench.workers.outcomes import run_for_outcome
from attninvariance.calls import Subject
from attninvariance.properties import COMPARISONS
from attninvariance.requests import MeasureInvariance
from attninvariance.sweep import Point, Sweep, is_declared, iterate_sizes, list_points
from attninvariance.texts import NO_KEY_SPLITS, NOTHING_IN_COMMON, NOTHING_TO_SWEEP
from attninvariance.ulps import count_ulps, find_difference

__all__ = ["InvarianceWorker", "measure"]


class InvarianceWorker:
    """Answers the requests to a candidate worker, and the request to measure invariance."""

    def __init__(self) -> None:
        self._loaded = LoadedImplementations()
        self._candidate_worker = CandidateWorker(self._loaded)

    def handlers(self) -> list[Handler]:
        """Return the handlers of all requests."""
        return [
            *self._candidate_worker.handlers(),
            MeasureInvariance.answered_by(self.measure_invariance),
        ]

    def measure_invariance(self, request: MeasureInvariance) -> InvarianceGrade | Outcome:
        """Compare the results of pairs of calls at every point of a sweep."""
        self._loaded.restore_settings()
        self._loaded.restore_threads()
        case = self._loaded.parse_case(request.case)
        subject = Subject(self._loaded.get(request.implementation), self._loaded.load_operator(case.operator), case)
        return run_for_outcome(lambda: measure(subject, request.name, request.sweep))


def measure(subject: Subject, name: str, sweep: Sweep) -> InvarianceGrade:
    """Return the grade of a property; the sweep ends at its time limit.

    Raises: Refusal if every comparison is refused; what the implementation raises.
    """
    points = list_points(name, sweep, _list_own_values(subject, name))
    compared: list[Point] = []
    largest, farthest, differing, refused = 0, 0.0, 0, 0
    first: Point | None = None
    refusal: Refusal | None = None
    begin, complete = time.monotonic(), True
    for point in points:
        if compared and time.monotonic() - begin > sweep.limit_s:
            complete = False
            break
        try:
            apart, difference = _compare(subject, name, point)
        except Refusal as error:
            refusal, refused = refusal or error, refused + 1
            continue
        if apart:
            first = first or point
            differing += 1
        compared.append(point)
        largest, farthest = max(largest, apart), max(farthest, difference)
    if not compared:
        raise refusal or Refusal(NOTHING_TO_SWEEP)
    quantity = "gradients" if subject.case.differentiates else "output"
    return InvarianceGrade(
        largest_ulp=largest,
        largest_difference=store_number(farthest),
        first=tuple(Size(name=size, value=value) for size, value in first.name_sizes(name).items()) if first else (),
        compared=len(compared),
        differing=differing,
        refused=refused,
        swept=tuple(SweptSize(name=size, values=values) for size, values in iterate_sizes(name, compared)),
        complete=complete,
        declared=is_declared(subject.implementation.policies, name, quantity, subject.case.device),
    )


def _list_own_values(subject: Subject, name: str) -> Sequence[int]:
    """Return the values of a property's own size that depend on the implementation or on the machine."""
    if name == "key_split":
        if not subject.implementation.key_splits:
            raise Refusal(NO_KEY_SPLITS)
        return sorted(subject.implementation.key_splits)
    # On a single core, two threads still divide the work as they would on two.
    return range(2, max(count_cores(), 2) + 1) if name == "threads" else ()


def _compare(subject: Subject, name: str, point: Point) -> tuple[int, float]:
    """Return the largest distance in ulp, and the largest difference, of results that should have the same bits.

    Raises: Refusal if the calls have no results in common.
    """
    pairs = [(one[quantity], other[quantity]) for one, other in COMPARISONS[name](subject, point) for quantity in one]
    if not pairs:
        raise Refusal(NOTHING_IN_COMMON)
    return max(count_ulps(*pair) for pair in pairs), max(find_difference(*pair) for pair in pairs)


def main() -> None:
    """Answer the requests on the socket whose file descriptor is the first command-line argument."""
    serve(InvarianceWorker().handlers(), int(sys.argv[1]))


if __name__ == "__main__":
    main()
