"""The process that computes studies: one request per study, answered with numbers, strings, lists and dictionaries."""

import sys
from typing import Any

from attnbench.plugins.registry import STUDIES, PluginError, load
from attnbench.processes.rpc import serve
from attnbench.study import StudyError

__all__ = ["study"]


def study(*, name: str, **asked: Any) -> dict[str, Any]:
    """Return the result of a registered study, or ``{"fault": reason}`` if the study has no result."""
    try:
        found: dict[str, Any] = load(load(name, STUDIES).compute)(**asked)
    except (StudyError, PluginError) as error:
        return {"fault": str(error)}
    return found


def main() -> None:
    """Answer requests on the file descriptor whose number is the first argument."""
    serve({"study": study}, int(sys.argv[1]))


if __name__ == "__main__":
    main()
