"""The files that a command writes besides its run file."""

from dataclasses import dataclass
from typing import IO

import click

from attnbench.cli.options import OUTPUT_FILES

__all__ = ["OutputFiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFiles:
    """Open files by the parameter of their option; - is standard output."""

    json_file: IO[str] | None = None
    html_file: IO[str] | None = None
    markdown_file: IO[str] | None = None
    certificate_file: IO[str] | None = None

    @property
    def to_stderr(self) -> bool:
        """Whether standard output has a file, so that tables go to standard error."""
        files = (self.json_file, self.html_file, self.markdown_file, self.certificate_file)
        return any(file is not None and file.name == "-" for file in files)

    def refuse_same(self) -> None:
        """Refuse to write two outputs to one file.

        Raises: UsageError with the names of the options.
        """
        options: dict[str, str] = {}
        for parameter, option in OUTPUT_FILES.items():
            file = getattr(self, parameter)
            if file is not None and (other := options.setdefault(file.name, option)) != option:
                raise click.UsageError(f"{other} and {option} name the same file {file.name!r}: give each its own")
