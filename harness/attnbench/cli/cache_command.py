"""``attnbench cache``: show or empty the cache of expected values, and those of plug-ins beside it."""

from pathlib import Path

import click

from attnbench.oracle.disk_cache import LIMIT_BYTES, DiskCache, find_folder

# Bytes per megabyte, the unit of the sizes that this command prints.
MB = 10**6


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove everything from the cache.")
def command(*, clear: bool) -> int:
    """Show folder, size and number of entries of the cache of expected values, or empty it.

    Caches of other commands, such as the gate, are in folders beside it.
    """
    folder = find_folder()
    if folder is None:
        raise click.UsageError("there is no home directory, and so no cache: set ATTNBENCH_CACHE to a folder")
    for own in [folder, *(one for one in sorted(folder.parent.glob("*")) if one.is_dir() and one != folder)]:
        _handle(own, is_limited=own == folder, clear=clear)
    return 0


def _handle(folder: Path, *, is_limited: bool, clear: bool) -> None:
    """Show or empty a cache.

    Raises: UsageError where its folder cannot be used.
    """
    cache = DiskCache(folder)
    try:
        usage = cache.clear() if clear else cache.measure()
    except OSError as error:
        raise click.UsageError(f"the cache {folder} cannot be used: {error.strerror}") from error
    if clear:
        click.echo(f"removed {usage.entries} entries, {usage.bytes / MB:.1f} MB, from {folder}")
        return
    click.echo(f"folder   {folder}")
    click.echo(f"entries  {usage.entries}")
    limit = f" of at most {LIMIT_BYTES / MB:.0f} MB" if is_limited else ""
    click.echo(f"size     {usage.bytes / MB:.1f} MB{limit}")
