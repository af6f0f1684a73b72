"""The process that computes studies: one request a study, answered with plain lists and numbers."""

import sys
from collections.abc import Callable
from typing import Any

from attnbench.plugins.registry import PluginError
from attnbench.processes.rpc import serve
from attnbench.study.attending import StudyError
from attnbench.study.maps import maps
from attnbench.study.padding import padding
from attnmechanisms.studies.additive import additive
from attnmechanisms.studies.saturation import saturation

__all__: list[str] = []

STUDIES: dict[str, Callable[..., dict[str, Any]]] = {
    "saturation": saturation,
    "additive": additive,
    "maps": maps,
    "padding": padding,
}


def study(*, name: str, **asked: Any) -> dict[str, Any]:
    """What a study found, or the fault that kept it from being made."""
    try:
        return STUDIES[name](**asked)
    except (StudyError, PluginError) as error:
        return {"fault": str(error)}


def main() -> None:
    """Serve on the descriptor given as first argument."""
    serve({"study": study}, int(sys.argv[1]))


if __name__ == "__main__":
    main()
