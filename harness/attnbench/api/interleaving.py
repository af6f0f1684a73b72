"""Two sides of a comparison, a base and something new, that are timed with interleaved calls in the same processes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.analysis.run_diff import Change, compare_implementations
from attnbench.api.execution import profile_into
from attnbench.api.recording import Recording
from attnbench.jobs.errors import JobError
from attnbench.plugins.registry import display_name
from attnbench.records.run_file import StoredRun
from attnbench.runner import Effort, Plan, Session
from attnbench.runner.candidate_pool import TIMING
from attnbench.words.comparison import TITLE

if TYPE_CHECKING:
    # Not imported when a command starts, because it imports pandas, which takes a second.
    from attnbench.report.comparison.content import ComparisonContent

__all__ = ["collect_sides", "load_sides", "time_sides"]


def load_sides(session: Session, sides: Sequence[str]) -> str:
    """Load both sides in one process, before anything is measured, and return the operator that they compute.

    Raises: PluginError where a side cannot be loaded; JobError where they compute different operators.
    """
    session.workers.keep(session.workers.get(sides, TIMING))
    computed = [session.declared[name].operator for name in sides]
    if len(set(computed)) > 1:
        described = " and ".join(
            f"{display_name(name)} computes {own}" for name, own in zip(sides, computed, strict=True)
        )
        raise JobError(
            None, "BASE and NEW must compute the same operator, got two: {described}", described=described
        )  # fmt: skip
    return computed[0]


def time_sides(
    recorded: Recording, session: Session, sides: Sequence[str], plans: Sequence[Plan], effort: Effort
) -> list[Change]:
    """Check both sides on the cases of these plans, count, time and record them, and return what changed."""
    profile_into(recorded, session, sides, plans, effort=effort, baseline=sides[0])
    cases = {plan.case for plan in plans}
    results = [result for result in recorded.results.values() if result.case in cases]
    base, new = map(display_name, sides)
    return list(compare_implementations(results, base=base, new=new, effect=effort.effect, level=effort.level))


def collect_sides(
    found: Sequence[Change], recorded: Recording, shared: Mapping[str, tuple[str, str]], *, names: tuple[str, str],
    title: str = TITLE,
) -> "ComparisonContent":  # fmt: skip
    """Return the content of a comparison of two sides of one run, whose names are ``names``.

    ``shared`` maps the name of each implementation in ``found`` to the names of its two sides in results.
    """
    from attnbench.report.comparison.content import collect_comparison

    of_base, of_new = (
        StoredRun(
            run=recorded.run,
            results=tuple(
                replace(result, implementation=name)
                for name, own in shared.items()
                for result in recorded.results.values()
                if result.implementation == own[side]
            ),
            path=recorded.file.path,
        )
        for side in (0, 1)
    )
    return collect_comparison(found, of_base, of_new, names=names, title=title)
