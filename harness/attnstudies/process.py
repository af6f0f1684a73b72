"""The process that computes studies: one request per study, answered with numbers, strings, lists and dictionaries."""

import sys

from attnbench.plugins.registry import PluginError, load
from attnbench.processes.request import Fault
from attnbench.processes.rpc import serve
from attnstudies import STUDIES, StudyError
from attnstudies.request import ComputeStudy, StudyResult

__all__ = ["compute"]


def compute(request: ComputeStudy) -> StudyResult | Fault:
    """Return the result of a registered study, or why the study has no result."""
    try:
        return StudyResult(found=load(load(request.name, STUDIES).compute)(**request.options))
    except (StudyError, PluginError) as error:
        return Fault(reason=str(error))


def main() -> None:
    """Answer requests on the socket whose file descriptor is the first command-line argument."""
    serve([ComputeStudy.answered_by(compute)], int(sys.argv[1]))


if __name__ == "__main__":
    main()
