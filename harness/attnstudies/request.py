"""The request to a separate process to compute a study, and the reply of that process."""

import msgspec

from attnbench.processes.request import Fault, Request

__all__ = ["ComputeStudy", "StudyResult"]


class StudyResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a study computed: numbers, strings, lists and dictionaries, in the form that the study's ``draw`` takes."""

    found: dict[str, object]


class ComputeStudy(Request[StudyResult | Fault], frozen=True, kw_only=True):
    """Compute a registered study with the values of its command's options."""

    name: str
    options: dict[str, object]
