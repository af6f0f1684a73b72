"""The profile that ``attnbench profile`` and ``attnbench.profile`` record."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from attnbench.api.axes import Axes
from attnbench.api.before_timing import announce
from attnbench.api.defaults import EFFORTS, LENGTHS, QUICK_LENGTHS
from attnbench.api.jobs import Choice, choose_effort, count_planned, make_session, plan_profile, profile_with_ceilings
from attnbench.api.progress import ShownProgress, show_progress
from attnbench.api.recording import Recording
from attnbench.api.subjects import choose_implementations, choose_timed_implementations, find_operators
from attnbench.records.types import PERF
from attnbench.runner import Session

__all__ = ["record_profile"]


def record_profile(
    implementations: Sequence[str],
    given: Mapping[str, Any],
    *,
    start_recording: Callable[..., AbstractContextManager[Recording]],
    show: Callable[[], ShownProgress] = show_progress,
    announces: bool = True,
    kind: type[Session] = Session,
) -> Recording:
    """Measure speed and memory of implementations and of their references, and return the stored run.

    ``given`` has the values of the command's options, by parameter name. ``start_recording`` opens the run file with
    the arguments of ``record`` but the command line, ``show`` the progress, and ``kind`` the session. ``announces``
    says whether stderr gets a line on what will be timed.

    Raises: UsageError for options that exclude one another or that an operator does not have; PluginError where an
    implementation cannot be loaded.
    """
    choice = Choice.from_options(given)
    chosen = choose_implementations(implementations)
    axes = Axes.from_options(given, lengths=QUICK_LENGTHS if given["suite"] == "quick" else LENGTHS)
    with make_session(given, kind) as session:
        chosen = choose_timed_implementations(
            session, chosen, asked=bool(implementations), operators=given["operators"], keeps=announces
        )
        operators = find_operators(session, chosen)
        plans = plan_profile(session, choice, operators, axes=axes, passes=given["passes"])
        effort = choose_effort(EFFORTS[given["suite"]], given)
        if announces:
            announce(session, chosen, plans, effort, axes)
        with start_recording(
            session, results=given["results"], suite=PERF, cases=[plan.case for plan in plans],
            implementations=chosen, resume=given["resume"],
            planned=count_planned(session, chosen, timed=plans, effort=effort),
        ) as recorded:  # fmt: skip
            profile_with_ceilings(recorded, session, chosen, plans, given, show=show)
            recorded.exit_code = recorded.choose_exit_code(implementations)
    return recorded
