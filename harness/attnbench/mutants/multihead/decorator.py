"""The list that makes module classes mutants of multi-head attention, and cases on which several of them fail."""

from dataclasses import replace
from functools import partial
from typing import Any

from attnbench.cases import Case, Dtype, Mode
from attnbench.mutants.mutant import MutantList
from attnbench.operators.multihead.suites import CROSS

__all__ = ["PROBED", "MultiheadMutants", "build_case_id"]

MultiheadMutants = partial(MutantList, "multihead", CROSS)
# Changes that give CROSS many elements. A mean over many elements has a small rounding error, so a
# check can detect a small error that all elements have. head_dim is then 21 / 3 = 7.
PROBED: dict[str, Any] = {
    "batch": 4, "queries": 33, "keys": 47, "embed_dim": 21, "bias": False, "regime": "identity",
}  # fmt: skip


def build_case_id(*, dtype: Dtype = "float32", mode: Mode = "eval", **changes: Any) -> str:
    """Return the id of a case whose problem is ``CROSS`` with some fields changed."""
    return Case(operator="multihead", problem=replace(CROSS, **changes), dtype=dtype, mode=mode).id
