"""``attnbench model``: whether attention functions do in a real model what its layers ask for.

What comes in: a model of transformers with random weights, and names of attention functions. What goes out: for each
function and situation, the first layer that deviates, with the ignored argument. Times do not belong here.
"""

from attnbench.plugins.commands import PluginCommand

__all__ = ["COMMAND"]

COMMAND = PluginCommand(
    summary="Check attention functions at each call inside a model of transformers.",
    place="attnmodels.command:command",
)
