"""Copies of the reference with real extra work inside the call, to be found by whoever compares: ``PLUS_2`` and others.

The work is a matrix product of so many rows. How many make a copy slower by its share is measured beforehand, on the
machine and number of threads at hand, and told in the environment as JSON: ``{"2": 140, ...}``.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import torch

from attnbench.cases import Case
from attnbench.interface import Implementation, Inputs
from attnbench.plugins.registry import load

__all__ = [
    "BASE",
    "BYTE",
    "BYTE_SHARE",
    "PATHS",
    "PLUS_0",
    "PLUS_2",
    "PLUS_3",
    "PLUS_BYTE",
    "ROWS",
    "SHARES",
]

# What is copied.
BASE = "torch_mha"
# Name in the environment.
ROWS = "ATTNBENCH_PLANTED_ROWS"
# Columns of both factors; one row takes some tenths of a microsecond, a hundredth of what is planted at least.
COLUMNS = 128
# Extra work in percent of a call. Without any, the call is that of the reference itself.
SHARES = (0, 2, 3)
PATHS = {share: f"{__name__}:PLUS_{share}" for share in SHARES}
# The copy that takes one byte more, and what stands for it among percents.
BYTE_SHARE = -1
BYTE = f"{__name__}:PLUS_BYTE"


class Planted(Implementation):
    """The reference, which does some more."""

    source = "https://docs.pytorch.org/docs/stable/generated/torch.mm.html"

    def __init__(self, share: int) -> None:
        self.name = f"plus_{share}"
        self._share = share
        self._copied: Implementation = load(BASE)

    def unsupported(self, case: Case) -> str | None:
        """As what is copied; and it must be known how much work is to be planted."""
        if self._share and self._rows() is None:
            return f"{ROWS} does not say how many rows are to be planted"
        return self._copied.unsupported(case)

    def build(self, reference: Any) -> Any:
        """As what is copied."""
        return self._copied.build(reference)

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
        """The call of what is copied, and the work after it."""
        call, rows = self._copied.prepare(module, case, inputs), self._rows()
        if not rows:
            return call
        generator = torch.Generator().manual_seed(0)
        left = torch.randn(rows, COLUMNS, generator=generator)
        right = torch.randn(COLUMNS, COLUMNS, generator=generator)
        product = torch.empty(rows, COLUMNS)

        def planted(*arguments: Any, **named: Any) -> Any:
            result = call(*arguments, **named)
            torch.mm(left, right, out=product)
            return result

        return planted

    def _rows(self) -> int | None:
        told: dict[str, int] = json.loads(os.environ.get(ROWS, "{}"))
        return told.get(str(self._share))


PLUS_0, PLUS_2, PLUS_3 = (Planted(share) for share in SHARES)


class OneByte(Planted):
    """The reference, with one byte held while it computes."""

    def __init__(self) -> None:
        super().__init__(0)
        self.name = "plus_byte"

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
        """The call of what is copied, beside a tensor of one byte."""
        call = self._copied.prepare(module, case, inputs)

        def planted(*arguments: Any, **named: Any) -> Any:
            held = torch.empty(1, dtype=torch.uint8)
            result = call(*arguments, **named)
            del held
            return result

        return planted


PLUS_BYTE = OneByte()
