"""``attnbench merge``: joins the run files of shards and of tasks into one run set."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attnbench.plugins.registry import list_names, load
from attnbench.records.exit_codes import INCONCLUSIVE

if TYPE_CHECKING:
    from attnbench.records.parts import Part, PartsOrigin

# Entry-point group of functions that know the wholes to which run files belong. Each gets what is to be merged, and the
# run files, and returns a ``PartsOrigin``.
ORIGINS = "attnbench.part_origins"


@click.command("merge")
@click.argument(
    "inputs", nargs=-1, required=True, metavar="FILE-OR-FOLDER...", type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "--into", required=True, metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the merged run files.",
)  # fmt: skip
def command(inputs: tuple[Path, ...], into: Path) -> int:
    """Join the run files of shards (--shard I/N) and of tasks into one run set.

    The set has one run file for each machine and number of threads; if several nodes of one kind ran the same case,
    each of these nodes has a file of its own. The paths of the files are printed, one a line; they are what attnbench
    report takes. Nothing of the inputs is changed. Exit code 2: the inputs are of different lists, suites, versions or
    implementations, or a shard is there twice. Exit code 3: a shard or a task is missing, or an input is not whole; the
    merged files say so, too.
    """
    from attnbench.records.joined_file import join_parts
    from attnbench.records.parts import describe_missing, find_parts, group_parts
    from attnbench.report.numbers import format_count

    parts = list(find_parts(inputs))
    groups = group_parts(parts)
    origins = _find_origins(inputs, parts)
    missing = [*describe_missing(parts), *(line for origin in origins for line in origin.missing)]
    made = join_parts(groups, into, missing=bool(missing))
    faults = [*missing, *(problem for one in made for problem in one.problems)]
    for fault in faults:
        click.echo(f"warning: {fault}", err=True)
    # Kinds of nodes by run of a part: the report has the hardware only, and a hash of each node's name.
    kinds = {part.run.id: origin.kinds[part.path] for part in parts for origin in origins if part.path in origin.kinds}
    for one in made:
        joined = f"{format_count(one.results, 'result')} of {format_count(len(one.run.parts), 'run')}"
        repeated = f", {format_count(one.repeated, 'repeated result')} left out" if one.repeated else ""
        node = f", node {one.run.node}" if one.run.node else ""
        own = sorted({kinds[run] for run in one.run.parts if run in kinds})
        kind = f", kind{'s' * (len(own) > 1)} of node: {', '.join(own)}" if own else ""
        click.echo(f"{joined} on {one.run.machine.name}{node}{kind}{repeated}", err=True)
        click.echo(one.path)
    return INCONCLUSIVE if faults else 0


def _find_origins(inputs: Sequence[Path], parts: "Sequence[Part]") -> "list[PartsOrigin]":
    """Return what plug-ins know of the run files.

    Raises: PluginError if a plug-in cannot be imported.
    """
    return [load(name, ORIGINS)(inputs, [part.path for part in parts]) for name in list_names(ORIGINS)]
