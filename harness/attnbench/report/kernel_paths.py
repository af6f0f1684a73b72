"""Code path of an implementation, such as fused flash attention, found in the names of the torch operators that ran."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

__all__ = ["CALLS", "Way", "find_way", "group_by_way"]

# Separator between the name of an operator and the number of its calls.
CALLS = " ×"
# Largest number of operator names in a row of the table of code paths; kernels.csv has all names.
NAMED = 6
# Regular expressions for operator names, each with the code path that it indicates. The first expression that matches
# the name of any operator decides.
WAYS = (
    (r"_scaled_dot_product_attention_math", "composed: torch's math path, no fused kernel"),
    (r"_flash_attention", "fused: flash"),
    (r"_efficient_attention", "fused: memory-efficient"),
    (r"_cudnn_attention", "fused: cuDNN"),
    (r"_native_multi_head_attention", "composed: the module's fast path"),
    (r"_softmax|bmm|baddbmm", "composed: products and softmax"),
)
COPY = "aten::copy_"
# What follows ``CALLS`` in a name is no number of calls if it has this many digits or more.
LONGEST_COUNT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Row of the table of code paths: the path of one implementation in one pass, and the torch operators that ran.

    ``lengths`` are the sequence lengths at which these operators ran.
    """

    implementation: str
    pass_: str
    lengths: tuple[int, ...]
    way: str
    names: str


def find_way(kernels: Sequence[str]) -> str:
    """Return words for the code path that these torch operators indicate, and the number of tensor copies, if any."""
    found = next((words for pattern, words in WAYS if any(re.search(pattern, name) for name in kernels)), "its own")
    copies = sum(_count_calls(name) for name in kernels if name.partition(CALLS)[0] == COPY)
    return found + (f"; {copies} {'copy' if copies == 1 else 'copies'} of tensors" if copies else "")


def group_by_way(kernels: pd.DataFrame) -> Iterator[Way]:
    """Yield the rows of the table of code paths of a series.

    One row contains all lengths at which the same operators ran. An implementation that falls back to another path at
    some lengths therefore has a second row for these lengths.
    """
    for (name, pass_), own in kernels.groupby(["implementation", "pass"], sort=False):
        alike: dict[tuple[str, frozenset[str]], list[tuple[int, str]]] = {}
        for row in own.sort_values("length").itertuples():
            names = str(row.kernels)
            alike.setdefault((str(row.way), frozenset(names.split("; "))), []).append((int(str(row.length)), names))
        for (words, _), rows in alike.items():
            longest = rows[-1][1].split("; ")
            more = f" and {len(longest) - NAMED} more" if len(longest) > NAMED else ""
            yield Way(
                implementation=str(name),
                pass_=str(pass_),
                lengths=tuple(length for length, _ in rows),
                way=words,
                names=", ".join(longest[:NAMED]) + more,
            )


def _count_calls(name: str) -> int:
    count = name.partition(CALLS)[2]
    # The name is from a run file, so what follows ``CALLS`` may be any text.
    return int(count) if count.isdecimal() and len(count) < LONGEST_COUNT else 1
