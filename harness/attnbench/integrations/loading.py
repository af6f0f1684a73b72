"""``attnbench.load``: the implementation that a choice names."""

from attnbench.analysis.dispatch import Choice
from attnbench.interface import Implementation
from attnbench.plugins.adapters import load_implementation

__all__ = ["load"]


def load(choice: Choice | str) -> Implementation:
    """Return the chosen implementation.

    Of ``multihead``, ``build(reference)`` makes a module with the parameters of ``reference``, which is a
    ``torch.nn.MultiheadAttention``, and with its forward signature. Of ``attention_core``, ``build(None)`` makes a
    module without parameters, which is called with queries, keys and values.

    Raises: PluginError where the implementation is not installed.
    """
    return load_implementation(choice if isinstance(choice, str) else choice.name)
