"""Plants: copies of the reference with extra work in every call. A comparison has to find that they are slower.

The extra work is a matrix product. It makes ``PLUS_2`` about 2 % slower than the reference, and ``PLUS_3`` about 3 %.
The number of rows of the product is measured beforehand, for the machine and the number of threads. An environment
variable passes the number of rows of each plant to the processes as JSON: ``{"2": 140, ...}``. ``PLUS_BYTE`` does no
extra work; it needs one more byte of memory.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import torch

from attnbench.cases import Case
from attnbench.interface import Implementation, Inputs
from attnbench.plugins.registry import load
from attnbench.refusals import TypedRefusal

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

# Name of the reference, which the plants copy.
BASE = "torch_mha"
# Environment variable with the number of rows of the matrix product of each plant, as JSON.
ROWS = "ATTNBENCH_PLANTED_ROWS"
# Columns of both factors of the matrix product. With this number, one row of the product takes some tenths of a
# microsecond. One row is at most 1 % of a plant's extra work, so the number of rows can set the work to within 1 %.
COLUMNS = 128
# Extra work of each plant, in percent of the time of a call. The plant without extra work makes the same calls as the
# reference.
SHARES = (0, 2, 3)
PATHS = {share: f"{__name__}:PLUS_{share}" for share in SHARES}
# A slowdown in percent stands for a plant in options and records. This number stands for ``PLUS_BYTE``.
BYTE_SHARE = -1
# Import path of ``PLUS_BYTE``.
BYTE = f"{__name__}:PLUS_BYTE"


class Planted(Implementation):
    """A copy of the reference that does extra work."""

    source = "https://docs.pytorch.org/docs/stable/generated/torch.mm.html"

    def __init__(self, share: int) -> None:
        self.name = f"plus_{share}"
        self._share = share
        self._copied: Implementation = load(BASE)

    def unsupported(self, case: Case) -> TypedRefusal | str | None:
        """Return a reason if the number of rows is missing or the copied implementation refuses the case, else None."""
        if self._share and self._read_rows() is None:
            return f"{ROWS} sets no number of rows for {self.name}: run python -m research.detection plants"
        return self._copied.unsupported(case)

    def build(self, reference: Any) -> Any:
        """Build the module of the copied implementation."""
        return self._copied.build(reference)

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
        """Return a call that makes the reference's call and then does the extra work."""
        call, rows = self._copied.prepare(module, case, inputs), self._read_rows()
        if not rows:
            return call
        generator = torch.Generator().manual_seed(0)
        left = torch.randn(rows, COLUMNS, generator=generator)
        right = torch.randn(COLUMNS, COLUMNS, generator=generator)
        product = torch.empty(rows, COLUMNS)

        def call_with_plant(*arguments: Any, **named: Any) -> Any:
            result = call(*arguments, **named)
            torch.mm(left, right, out=product)
            return result

        return call_with_plant

    def _read_rows(self) -> int | None:
        rows: dict[str, int] = json.loads(os.environ.get(ROWS, "{}"))
        return rows.get(str(self._share))


PLUS_0, PLUS_2, PLUS_3 = (Planted(share) for share in SHARES)


class OneByte(Planted):
    """A copy of the reference that holds one more byte while it computes."""

    def __init__(self) -> None:
        super().__init__(0)
        self.name = "plus_byte"

    def prepare(self, module: Any, case: Case, inputs: Inputs) -> Callable[..., Any]:
        """Return a call that makes the reference's call while it holds a tensor of one byte."""
        call = self._copied.prepare(module, case, inputs)

        def call_with_plant(*arguments: Any, **named: Any) -> Any:
            held = torch.empty(1, dtype=torch.uint8)
            result = call(*arguments, **named)
            del held
            return result

        return call_with_plant


PLUS_BYTE = OneByte()
