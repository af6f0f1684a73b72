"""``attnbench gate``: whether a change made implementations wrong, slower or bigger."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from attnbench.api.execution import make_session
from attnbench.api.interleaving import collect_sides
from attnbench.api.selection import choose_implementations
from attnbench.cli.job_options import build_job
from attnbench.cli.options import AXES, complete_names, options
from attnbench.cli.output_files import OutputFiles
from attnbench.cli.recording import print_stored_path
from attnbench.jobs.command_lines import format_command
from attnbench.jobs.values import BYTES
from attnbench.plugins.registry import IMPLEMENTATIONS, list_names
from attnbench.report.console import Console
from attnbench.report.text_table import print_tables
from attngate.annotations import annotate
from attngate.conformance import Pair
from attngate.gating import Gated, GateJob, gate, make_pairs
from attngate.outcome import BIGGER, FAULTS, SLOWER, Rule
from attngate.revisions import GateError, find_top, open_base
from attngate.texts import describe_outcome, list_notes, name_title, summarize, tabulate

__all__ = ["command"]


def _read_share(ctx: click.Context, param: click.Parameter, word: str) -> float:  # noqa: ARG001
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
    "--fail-on", callback=_read_faults, default=",".join(FAULTS), show_default=True, metavar="FAULTS",
    help="What fails. Without slower, nothing is timed.",
)  # fmt: skip
@click.option(
    "--slower", callback=_read_share, default=f"{100 * SLOWER:g}%", show_default=True, metavar="PERCENT",
    help="Smallest slowdown that counts.",
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
    fail_on: Any,
    slower: float,
    bigger: int,
    undecided: Any,
    annotations: bool,
    json_file: IO[str] | None,
    markdown_file: IO[str] | None,
    **raw: Any,
) -> int:
    """Say whether a change made an IMPLEMENTATION wrong, slower or bigger.

    The base is a revision of git, of which a worktree is made and removed, or another checkout. Both sides are checked
    on the suite core, bytes are counted, and cases that stand for real use are timed with interleaved calls. Without
    IMPLEMENTATION, those that pyproject.toml of the repository registers are compared. Exit code 0: the gate holds; 1:
    something became worse; 2: usage error; 3: undecided.
    """
    files = OutputFiles(json_file=json_file, markdown_file=markdown_file)
    files.refuse_same()
    rule = Rule(fail_on=fail_on, slower=slower, bigger_bytes=bigger, undecided=undecided)
    try:
        names = raw["implementations"] or _read_registered(find_top(Path.cwd()) or Path.cwd())
        # Times of one thread are the least disturbed by other work, and what else a machine does matters least.
        job, _ = build_job(GateJob, raw | {"implementations": names, "threads": raw["threads"] or "1"})
        chosen = choose_implementations(job.implementations)
        with open_base(base, Path.cwd()) as (folder, version):
            pairs = make_pairs(chosen, folder, version)
            with make_session(job) as session:
                words = format_command(["gate", *(pair.name for pair in pairs), "--base", base])
                found = gate(session, job, pairs, base=version, rule=rule, command=words)
    except GateError as error:
        raise click.UsageError(str(error)) from error
    _write(found, pairs, files, annotations=annotations)
    return found.outcome.exit_code


def _read_registered(top: Path) -> tuple[str, ...]:
    """Return the implementations that the project in a folder registers.

    Raises: GateError where there are none.
    """
    try:
        project = tomllib.loads((top / "pyproject.toml").read_text("utf-8")).get("project", {})
    except OSError:
        project = {}
    except ValueError as error:
        raise GateError(f"pyproject.toml cannot be read: {error}; name an IMPLEMENTATION") from error
    entries = project.get("entry-points", {}).get(IMPLEMENTATIONS, {})
    installed = list_names()
    if not entries:
        raise GateError(
            f"IMPLEMENTATION is missing, and no pyproject.toml of the repository has entry points {IMPLEMENTATIONS!r}: "
            "name one, such as mine.py:attend"
        )
    return tuple(name if name in installed else place for name, place in entries.items())


def _write(found: Gated, pairs: Sequence[Pair], files: OutputFiles, *, annotations: bool) -> None:
    """Write the files that were asked for, and print the outcome."""
    outcome = found.outcome
    content = collect_sides(
        found.changes, found.recorded, {pair.name: pair.shown for pair in pairs},
        names=(outcome.base.label, outcome.new.label), title=name_title(outcome),
    )  # fmt: skip
    if files.json_file:
        files.json_file.write(msgspec.json.format(msgspec.json.encode(outcome), indent=1).decode() + "\n")
    if files.markdown_file:
        from attnbench.report.comparison import markdown

        files.markdown_file.write(markdown.render(summarize(outcome, content)))
    tables, lines = tabulate(content)
    for line in list_notes(outcome):
        click.echo(line, err=files.to_stderr)
    print_tables(tables, Console.of(err=files.to_stderr))
    told = annotate(outcome, content) if annotations else ()
    for line in (*lines, describe_outcome(outcome), *told):
        click.echo(line, err=files.to_stderr)
    print_stored_path(found.recorded)
