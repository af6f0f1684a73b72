"""``attnbench invariance``: which changes of a call leave its bits as they are.

What comes in: implementations, and the sizes to sweep. What goes out: results of the suite ``invariance`` with a grade
for each property. Comparisons with expected values do not belong here: they have an error budget, and grades have none.
"""

from attnbench.plugins.commands import PluginCommand

__all__ = ["COMMAND"]

COMMAND = PluginCommand(
    summary="Measure which changes of a call leave the bits of its results as they are.",
    place="attninvariance.command:command",
)
