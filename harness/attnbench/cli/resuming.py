"""``--resume RUN``: the command gets the arguments with which the stored run was started."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from attnbench.api.command_line import strip_folder
from attnbench.api.stored_job import OUTPUTS
from attnbench.cli.options import Shard
from attnbench.records.run_file import find_runs, read_run
from attnbench.records.types import Job

__all__ = ["ResumableCommand"]

# Words of a command line by parameter name: the values given to an option or argument. A flag has
# no values, so its tuple is empty.
Words = Mapping[str, tuple[str, ...]]
# Parameters that are not taken from the stored run: --resume, and the paths of files and folders.
# A run stores a path outside the working directory without its folders, so such a path cannot be
# used again.
PLACES = OUTPUTS | {"results", "reports"}
# Parameters that may differ from those of the stored run. --timeout is one of these, because it
# limits the waiting time and does not change what is measured.
FREE = PLACES | {"timeout"}
# Key in ``click.Context.meta`` under which the words of the current command line are kept.
META = "attnbench.cli.resuming"


class ResumableCommand(click.Command):
    """A command with the option ``--resume``.

    If the command is interrupted, the error message contains the command line that resumes the run.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; with ``--resume``, add the arguments of the stored run first.

        Raises: UsageError where an argument contradicts the stored run; ResultsError where there is no such run.
        """
        given = self._split(ctx, args)
        if "resume" in given:
            given = self._add_stored(ctx, given)
            args = self._join(given)
        ctx.meta[META] = given
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises: Abort after an interrupt; its arguments are the command line that resumes the run, and the one that
        reports on the results so far.
        """
        try:
            return super().invoke(ctx)
        except click.Abort as interrupt:
            if not interrupt.args:
                raise
            words, run = ctx.meta[META], interrupt.args[0]
            raise click.Abort(self._format_resuming(words, run), _format_reporting(words, run)) from None

    def _split(self, ctx: click.Context, args: list[str]) -> Words:
        """Parse ``args`` into words, keyed by parameter name; parameters that are not given have no entry."""
        values, _, _ = self.make_parser(ctx).parse_args(list(args))
        words: dict[str, tuple[str, ...]] = {}
        for name, value in values.items():
            if isinstance(value, str):
                words[name] = (value,)
            elif isinstance(value, list | tuple) and value:
                words[name] = tuple(value)
            elif value is True:
                words[name] = ()
        return words

    def _join(self, words: Words) -> list[str]:
        """Return these words as a list of command-line arguments, options first."""
        options: list[str] = []
        arguments: list[str] = []
        for parameter in self.params:
            values = words.get(parameter.name or "")
            if values is None:
                continue
            if isinstance(parameter, click.Argument):
                arguments += values
            else:
                options += [word for value in values for word in (parameter.opts[0], value)] or [parameter.opts[0]]
        return [*options, *arguments]

    def _add_stored(self, ctx: click.Context, given: Words) -> Words:
        """Return the given words, and add the stored run's words for parameters that are not given.

        Raises: UsageError where a given word contradicts the stored run; ResultsError where there
        is no such run.
        """
        (run,) = given["resume"]
        (path,) = find_runs(Path(given.get("results", ("results",))[0]), [run])
        before = read_run(path).run
        name, *args = shlex.split(before.command)[1:] or [""]
        if (before.job.command or name) != self.name:
            raise click.UsageError(f"--resume: {run} was started by {before.command!r}, not by attnbench {self.name}")
        try:
            stored = self._format_job(before.job) if before.job.command else self._split(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(
                f"--resume: {before.command!r} cannot be repeated: {error.format_message()}"
            ) from error
        for parameter in self.params:
            own = given.get(parameter.name or "")
            if own is not None and parameter.name not in FREE:
                self._check_same(ctx, parameter, own, stored.get(parameter.name or ""), run)
        return {parameter: words for parameter, words in stored.items() if parameter not in PLACES} | dict(given)

    def _format_job(self, job: Job) -> Words:
        """Return the words of a stored job.

        Raises: UsageError where this command has no such parameter.
        """
        parameters = {parameter.name: parameter for parameter in self.params}
        if unknown := [name for name in job.options if name not in parameters]:
            raise click.UsageError(f"attnbench {self.name} has no parameter {unknown[0]!r}")
        return {name: format_value(parameters[name], value) for name, value in job.options.items()}

    def _check_same(
        self,
        ctx: click.Context,
        parameter: click.Parameter,
        own: tuple[str, ...],
        before: tuple[str, ...] | None,
        run: str,
    ) -> None:
        """Check that a parameter has the same value on this command line as in the stored run.

        ``own`` has the parameter's words on this command line, ``before`` its words in the stored
        run; None means that the stored run was started without this parameter.

        Raises: UsageError where the values differ.
        """
        if _mean_the_same(ctx, parameter, own, before):
            return
        name = parameter.name or ""
        lacking = parameter.opts[0] if isinstance(parameter, click.Option) else "names"
        stored = f"without {lacking}" if before is None else f"with {shlex.join(self._join({name: before}))}"
        raise click.UsageError(
            f"--resume: {run} was started {stored}, got {shlex.join(self._join({name: own}))}: "
            "leave this argument out, or start a new run without --resume"
        )

    def _format_resuming(self, words: Words, run: str) -> str:
        """Return the command line that resumes a run.

        The command line repeats only what a resumed command cannot take from the stored run: the
        parameters in ``PLACES``, and paths that the run stores without their folders.
        """
        needed = {
            name: values
            for name, values in words.items()
            if name != "resume" and (name in PLACES or any(strip_folder(value) != value for value in values))
        }
        return shlex.join(["attnbench", self.name or "", "--resume", run, *self._join(needed)])


def format_value(parameter: click.Parameter, value: Any) -> tuple[str, ...]:
    """Return the words that give a parameter the value that a job has; none for a flag."""
    if value is True:
        return ()
    several = isinstance(value, list) and (parameter.multiple or parameter.nargs != 1)
    return tuple(_format_one(parameter, one) for one in (value if several else [value]))


def _format_one(parameter: click.Parameter, value: Any) -> str:
    if not isinstance(value, list):
        return f"{value}"
    between = "/" if isinstance(parameter.type, Shard) else ","
    return between.join(":".join(map(str, one)) if isinstance(one, list) else f"{one}" for one in value)


def _format_reporting(words: Words, run: str) -> str:
    """Return the command line that reports on an interrupted run."""
    folder = words.get("results", ())
    return shlex.join(["attnbench", "report", *(word for value in folder for word in ("--results", value)), run])


def _mean_the_same(
    ctx: click.Context, parameter: click.Parameter, own: tuple[str, ...], before: tuple[str, ...] | None
) -> bool:
    """Return whether the words ``own`` and ``before`` give a parameter the same value.

    ``own`` is from the command line, ``before`` from the stored run. If ``before`` is None, the
    stored run used the parameter's default.
    """
    if before is None:
        return bool(_convert(ctx, parameter, own) == parameter.get_default(ctx))
    if sorted(map(strip_folder, own)) == sorted(map(strip_folder, before)):
        return True
    try:
        return bool(_convert(ctx, parameter, own) == _convert(ctx, parameter, before))
    except click.UsageError:  # for example, the stored words name a file that no longer exists
        return False


def _convert(ctx: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> Any:
    """Return the value that a parameter gets from these words; the value of a flag is True."""
    several = parameter.multiple or parameter.nargs != 1
    return parameter.type_cast_value(ctx, words if several else words[0] if words else True)
