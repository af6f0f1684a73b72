"""Cheats, and ``attnbench cheats``: how many of them the defences of the timing stop.

What comes in: the defences of ``attnbench``, which can be turned off one by one. What goes out: the time of each cheat
with them and without. Mutants of the checks do not belong here.
"""

from attnbench.plugins.commands import PluginCommand

__all__ = ["COMMAND"]

COMMAND = PluginCommand(
    summary="Time the shipped cheats, and show which of them the defences of the timing stop.",
    place="attncheats.command:command",
)
