"""Sweeps, and ``attnbench sweep``: one configuration, divided into tasks that run on one or several kinds of machine.

What comes in: a configuration. What goes out: a run file for each try of a task, which ``attnbench merge`` joins. How a
task checks and measures does not belong here.
"""

from attnbench.plugins.commands import PluginCommand

__all__ = ["COMMAND"]

COMMAND = PluginCommand(
    summary="Run conform or profile as many tasks on the machines of a Slurm cluster, or here.",
    place="attnsweep.command:command",
)
