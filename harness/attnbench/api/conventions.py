"""By which convention the objects that a user names give the right result; asked before a suite is run."""

import logging
import math
from collections.abc import Sequence

from attnbench.processes.candidate_requests import Outcome
from attnbench.processes.convention_requests import FindConvention, Proposal
from attnbench.runner import Session
from attnbench.words.conventions import describe_proposal

__all__ = ["announce_conventions", "find_convention"]

LOGGER = logging.getLogger(__name__)


# Longest time of a trial before a suite, in seconds: trials of usual objects take less than two.
TRIAL_S = 20.0


def find_convention(session: Session, name: str, *, most_s: float = math.inf) -> Proposal | Outcome:
    """Try the usual conventions of an object in a process of its own; an outcome if the process gives no answer.

    Raises: PluginError if the object cannot be loaded.
    """
    with session.workers.get([name]) as worker:
        return worker.ask(FindConvention(implementation=name), most_s=most_s)


def announce_conventions(session: Session, names: Sequence[str]) -> None:
    """Log a line for each object of a file or a module that would be right if it was called in another way.

    The run that follows uses what is declared, and no convention that was found.
    """
    for name in names:
        if ":" not in name:
            continue
        found = find_convention(session, name, most_s=TRIAL_S)
        line = None if isinstance(found, Outcome) else describe_proposal(name, found)
        if line:
            LOGGER.warning("%s", line)
