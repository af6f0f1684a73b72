"""``attnbench cheats``: which cheats the timing's defences stop, and whether honest oddities are accused."""

from typing import IO

import click

from attnbench.cli.options import options

__all__ = ["command"]


@click.command("cheats")
@options("json")
def command(json_file: IO[str] | None) -> int:
    """Time the shipped cheats, and print which of them the defences of the timing stop.

    Honest oddities, which only look like cheats, are timed as well. Exit code 0: every cheat is stopped, and no oddity
    is accused; 1: otherwise.
    """
    # Imported here, because the cheats import torch.
    from attncheats.score import score_cheats

    return score_cheats(json_file)
