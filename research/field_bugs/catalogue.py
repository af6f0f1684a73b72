"""All bugs, mutants and correct variants of the study, by name.

A name is an attribute of this module, so a conformance run finds an implementation as
``research.field_bugs.catalogue:NAME``.
"""

from attnbench.interface import Implementation
from research.field_bugs import branches, calls, core, empty, masks, modes, sizes, strides, threads
from research.field_bugs.faults import Fault
from research.field_bugs.variants import VARIANTS

__all__ = ["FAULTS", "IMPLEMENTATIONS"]

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for topic in (sizes, core, masks, calls, modes, empty, threads, strides, branches)
    for fault in topic.fault
}
IMPLEMENTATIONS: dict[str, Implementation] = {
    **{name: fault.implementation for name, fault in FAULTS.items()},
    **{variant.name: variant for variant in VARIANTS},
}


def __getattr__(name: str) -> Implementation:
    """Return an implementation.

    Raises: AttributeError if there is none of this name.
    """
    if name in IMPLEMENTATIONS:
        return IMPLEMENTATIONS[name]
    raise AttributeError(name)
