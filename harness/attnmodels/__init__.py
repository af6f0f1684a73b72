"""``attnbench model``: whether attention functions do in a model what its layers ask for, and how fast the model is.

What comes in: a model of transformers or diffusers, or any module with its inputs, and names of attention functions.
What goes out: for each function and situation, the first layer that deviates, with the ignored argument; the error of
the whole model; and, where asked for, its time with a verdict.
"""

from attnbench.plugins.commands import PluginCommand

__all__ = ["COMMAND"]

COMMAND = PluginCommand(
    summary="Check and time attention functions inside models of transformers and diffusers.",
    place="attnmodels.command:command",
)
