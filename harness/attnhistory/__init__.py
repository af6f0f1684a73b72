"""The history: ``attnbench history`` shows where stored measurements moved from commit to commit.

What comes in: result files of asv and run files. What goes out: series with their steps as typed facts. How a number is
measured, and whether a step is the fault of the code, does not belong here: ``attnbench gate`` settles it.
"""

from attnbench.plugins.commands import PluginCommand

__all__ = ["COMMAND"]

COMMAND = PluginCommand(
    summary="Show between which commits stored counters and ratios moved.",
    place="attnhistory.command:command",
)
