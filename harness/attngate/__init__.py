"""The gate: ``attnbench gate`` says whether a change made an implementation wrong, slower or bigger.

What comes in: implementations, and a revision or another checkout as the base. What goes out: an outcome as typed
facts, and an exit code for a continuous integration. How a case is checked, counted or timed does not belong here.
"""

from attnbench.plugins.commands import PluginCommand

__all__ = ["COMMAND"]

COMMAND = PluginCommand(
    summary="Say whether a change made an implementation wrong, slower or bigger than its base in git.",
    place="attngate.command:command",
)
