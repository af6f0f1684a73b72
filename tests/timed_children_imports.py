"""What a process that times needs: the server that forks these processes imports this module.

Each process looks for garbage before it times. It does not look through what was imported before the fork.
"""

import gc
import importlib

from attnbench.checks.catalogue import read_checks
from attnbench.runner.candidate_pool import IMPORTED_LATE

__all__: list[str] = []

for module in (
    "timed_children", "attnbench.operators.multihead", "attnzoo.torch_mha", "attncheats.catalogue", IMPORTED_LATE,
):  # fmt: skip
    importlib.import_module(module)
read_checks()
gc.freeze()
