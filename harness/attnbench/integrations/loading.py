"""``attnbench.load``: the implementation that a choice names."""

from attnbench.analysis.dispatch import Choice
from attnbench.interface import Implementation
from attnbench.plugins.adapters import load_implementation

__all__ = ["load"]


def load(choice: Choice | str) -> Implementation:
    """Return the chosen implementation; its ``build(reference)`` makes a module with the reference's parameters.

    ``reference`` is a ``torch.nn.MultiheadAttention``, and the module has its forward signature.

    Raises: PluginError where the implementation is not installed.
    """
    return load_implementation(choice if isinstance(choice, str) else choice.name)
