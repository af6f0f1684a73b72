"""``attnbench gate``: whether a change made implementations wrong, slower or bigger."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from attnbench.api.execution import make_session
from attnbench.api.revisions import RevisionError, Version, find_top, is_folder, open_base
from attnbench.api.selection import choose_implementations
from attnbench.cli.job_options import build_job
from attnbench.cli.options import AXES, complete_names, options
from attnbench.cli.output_files import OutputFiles
from attnbench.jobs.command_lines import format_command
from attnbench.jobs.values import BYTES
from attnbench.plugins.registry import display_name
from attnbench.report.console import Console
from attnbench.report.text_table import print_tables
from attngate.annotations import annotate
from attngate.apart import build_sides, choose_sides, gate_apart
from attngate.errors import GateError
from attngate.gating import Gated, gate, make_pairs
from attngate.outcome import BIGGER, FAULTS, SLOWER, SLOWER_APART, Rule
from attngate.planning import GateJob
from attngate.registered import compare_registered, read_registered
from attngate.texts import describe_outcome, list_notes, summarize, tabulate, tabulate_ratios

__all__ = ["command"]


def _read_share(ctx: click.Context, param: click.Parameter, word: str | None) -> float | None:  # noqa: ARG001
    if word is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", word)
    share = float(found[1]) / 100 if found else 0.0
    if not 0 < share < 1:
        raise click.BadParameter(f"needs per cent above 0 and below 100, got {word!r}; for example 2%")
    return share


def _read_bytes(ctx: click.Context, param: click.Parameter, word: str) -> int:  # noqa: ARG001
    try:
        return int(BYTES.parse(word))
    except ValueError:
        raise click.BadParameter(f"needs {BYTES.need}, got {word!r}; for example 4KiB") from None


def _read_faults(ctx: click.Context, param: click.Parameter, word: str) -> tuple[str, ...]:  # noqa: ARG001
    named = word.split(",")
    if unknown := [one for one in named if one not in FAULTS]:
        raise click.BadParameter(f"needs words of {','.join(FAULTS)}, separated by commas, got {unknown[0]!r}")
    return tuple(fault for fault in FAULTS if fault in named)


@click.command("gate")
@click.argument("implementations", nargs=-1, shell_complete=complete_names)
@click.option("--base", required=True, metavar="REV_OR_PATH", help="Revision of git, or folder of another checkout.")
@click.option(
    "--base-python",
    metavar="PYTHON",
    help="Interpreter of the base, in whose environment it is measured at a moment of its own.",
)
@click.option(
    "--build",
    metavar="COMMAND",
    help="Command that builds each side in a worktree, into an environment of its own, such as 'pip install .'.",
)
@click.option(
    "--fail-on", callback=_read_faults, default=",".join(FAULTS), show_default=True, metavar="FAULTS",
    help="What fails. Without slower, nothing is timed.",
)  # fmt: skip
@click.option(
    "--slower", callback=_read_share, metavar="PERCENT",
    help=f"Smallest slowdown that counts.  [default: {100 * SLOWER:g}%, and {100 * SLOWER_APART:g}% between two "
    "environments]",
)  # fmt: skip
@click.option(
    "--bigger", callback=_read_bytes, default=f"{BIGGER // 1024}KiB", show_default=True, metavar="BYTES",
    help="Smallest growth of a number of bytes that counts.",
)  # fmt: skip
@click.option(
    "--undecided", type=click.Choice(("pass", "fail")), default="fail", show_default=True,
    help="What follows if a time has no verdict: exit code 0, or 3.",
)  # fmt: skip
@options("lengths", "passes", "case", "device", "dtype", "processes", "threads", "timeout", "memory_limit")
@options(*AXES)
@options("work_limit", "case_budget", "results", "json", "comparison_markdown", "no_cache")
@click.option("--annotations", is_flag=True, help="Also print what became worse as annotations of GitHub.")
def command(
    *,
    base: str,
    base_python: str | None,
    build: str | None,
    fail_on: Any,
    slower: float | None,
    bigger: int,
    undecided: Any,
    annotations: bool,
    json_file: IO[str] | None,
    markdown_file: IO[str] | None,
    **raw: Any,
) -> int:
    """Say whether a change made an IMPLEMENTATION wrong, slower or bigger.

    The base is a revision of git, of which a worktree is made and removed, or another checkout. Both sides are checked
    on the suite core, bytes are counted, and cases that stand for real use are timed with interleaved calls. Sides that
    need environments of their own are timed beside the reference, at two moments (--base-python, --build). Without
    IMPLEMENTATION, those that pyproject.toml of the repository registers are compared. Exit code 0: the gate holds; 1:
    something became worse; 2: usage error; 3: undecided.
    """
    files = OutputFiles(json_file=json_file, markdown_file=markdown_file)
    files.refuse_same()
    apart = bool(base_python or build)
    default = SLOWER_APART if apart else SLOWER
    rule = Rule(fail_on=fail_on, slower=slower or default, bigger_bytes=bigger, undecided=undecided)
    try:
        _refuse_both(base, base_python, build)
        registered = {} if raw["implementations"] else read_registered(find_top(Path.cwd()) or Path.cwd())
        # Times of one thread are the least disturbed by other work, and what else a machine does matters least.
        job, _ = build_job(GateJob, raw | {"threads": raw["threads"] or "1"})
        found = _compare(job, registered, rule, base, base_python, build)
    except (GateError, RevisionError) as error:
        raise click.UsageError(str(error)) from error
    _write(found, files, annotations=annotations)
    return found.outcome.exit_code


def _refuse_both(base: str, base_python: str | None, build: str | None) -> None:
    if base_python and build:
        raise GateError(
            "--base-python and --build exclude one another: name the base's interpreter, or build both sides"
        )
    if build and is_folder(base):
        raise GateError(
            f"--build builds worktrees of revisions, got the folder {base!r}: name a revision of it, or build it there "
            "and name its interpreter with --base-python"
        )


def _compare(
    job: GateJob, registered: Mapping[str, str], rule: Rule, base: str, base_python: str | None, build: str | None
) -> Gated:
    """Compare both sides in one environment, or each in its own.

    Of ``registered``, which nobody named, those are left out that the base does not register. The outcome names what
    only one side registers.
    """
    with open_base(base, Path.cwd()) as (folder, version):
        added, removed = compare_registered(registered, folder, version) if registered else ((), ())
        chosen = choose_implementations(job.implementations or [one for one in registered.values() if one not in added])
        job = replace(job, implementations=tuple(chosen))
        found = _gate(job, rule, base, (folder, version), base_python, build)
    return replace(found, outcome=msgspec.structs.replace(found.outcome, added=added, removed=removed))


def _gate(
    job: GateJob, rule: Rule, base: str, opened: tuple[Path, Version], base_python: str | None, build: str | None
) -> Gated:
    folder, version = opened
    shown = [display_name(name) for name in job.implementations]
    command = format_command(["gate", *shown, "--base", base])
    if build:
        with build_sides(job.implementations, opened, build) as sides:
            return gate_apart(job, shown, sides, rule=rule, command=command)
    pairs = make_pairs(job.implementations, folder, version)
    if base_python:
        return gate_apart(job, shown, choose_sides(pairs, version, base_python), rule=rule, command=command)
    with make_session(job) as session:
        return gate(session, job, pairs, base=version, rule=rule, command=command)


def _write(found: Gated, files: OutputFiles, *, annotations: bool) -> None:
    """Write the files that were asked for, and print the outcome."""
    outcome, content = found.outcome, found.content
    if files.json_file:
        files.json_file.write(msgspec.json.format(msgspec.json.encode(outcome), indent=1).decode() + "\n")
    if files.markdown_file:
        from attnbench.report.comparison import markdown

        files.markdown_file.write(markdown.render(summarize(outcome, content)))
    tables, lines = tabulate(content)
    for line in list_notes(outcome):
        click.echo(line, err=files.to_stderr)
    print_tables([*tabulate_ratios(outcome), *tables], Console.of(err=files.to_stderr))
    told = annotate(outcome, content) if annotations else ()
    for line in (*lines, describe_outcome(outcome), *told):
        click.echo(line, err=files.to_stderr)
    for path in found.paths:
        click.echo(f"stored in {path}", err=True)
