"""The job of a run, as its run file stores it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnbench.api.command_line import strip_folder
from attnbench.records.types import Job

__all__ = ["OUTPUTS", "make_job"]

# Parameters that are no part of a job: the run that is resumed, and files that the command writes.
OUTPUTS = frozenset({"resume", "json_file", "html_file", "markdown_file", "certificate_file", "keep_found"})


def make_job(command: str, values: Mapping[str, Any]) -> Job:
    """Return the job of a command with these values of its options and arguments, by parameter name.

    Values are stored as JSON has them. Paths lose their folders if they are outside the working directory.
    """
    plain = {name: _make_plain(value) for name, value in values.items() if name not in OUTPUTS}
    # 0 is a value, although it equals False.
    given = {name: one for name, one in plain.items() if one is not None and one is not False and one != []}
    return Job(command=command, options=given)


def _make_plain(value: Any) -> Any:
    if isinstance(value, Path | str):
        return strip_folder(str(value))
    if isinstance(value, tuple | list):
        return [_make_plain(one) for one in value]
    return value
