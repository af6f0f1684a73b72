"""``attnbench.load``: the implementation that a choice names."""

from typing import Protocol

from attnbench.interface import Implementation
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.file_objects import read_name

__all__ = ["load"]


class Named(Protocol):
    """The result of ``attnbench.choose``, of which only the name is needed."""

    @property
    def name(self) -> str:
        """Name of an implementation."""


def load(choice: Named | str) -> Implementation:
    """Return the chosen implementation.

    Of ``multihead``, ``build(reference)`` makes a module with the parameters of ``reference``, which is a
    ``torch.nn.MultiheadAttention``, and with its forward signature. Of ``attention_core``, ``build(None)`` makes a
    module without parameters, which is called with queries, keys and values.

    Raises: PluginError where the implementation is not installed.
    """
    return load_implementation(read_name(choice if isinstance(choice, str) else choice.name))
