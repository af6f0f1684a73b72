"""What is swept: the properties, their sizes, and the points at which two calls are compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import get_args

import msgspec

from attnbench.interface import Invariance, Policies
from attnbench.records.outcome_facts import SizeName

__all__ = ["BASE", "HEADS", "PROPERTIES", "SWEEPS", "Point", "Sweep", "is_declared", "iterate_sizes", "list_points"]

# The call is made again, without a change. The policies ``deterministic`` and ``unordered_gradients`` declare it.
REPEAT = "repeat"
PROPERTIES: tuple[str, ...] = (REPEAT, *get_args(Invariance))
# The size that a property has beside those of the call.
OWN: Mapping[str, SizeName] = {
    "padding": "padding",
    "padding_side": "padding",
    "prefill": "chunk",
    "key_split": "keys_per_part",
    "threads": "threads",
}
# Properties that compare a sequence with itself among others.
OF_BATCHES = ("neighbours", "batch_size", "position")
HEADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The sizes of one comparison; ``own`` is the value of the property's own size, 0 if it has none."""

    batch: int = 4
    length: int = 64
    head_dim: int = 32
    own: int = 0

    def name_sizes(self, name: str) -> dict[SizeName, int]:
        """Return the sizes by their names, for the property ``name``."""
        sizes: dict[SizeName, int] = {"batch": self.batch, "length": self.length, "head_dim": self.head_dim}
        return sizes | ({OWN[name]: self.own} if name in OWN else {})


# While one size is swept, the others have these values. A call takes about a millisecond.
BASE = Point()


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The values of each size, ascending, and the time limit of one property in seconds."""

    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    head_dims: tuple[int, ...]
    paddings: tuple[int, ...]
    chunks: tuple[int, ...]
    limit_s: float


def _list_around(centres: Sequence[int]) -> tuple[int, ...]:
    """Return each number with the ones below and above it."""
    return tuple(sorted({near for one in centres for near in (one - 1, one, one + 1) if near > 0}))


# Kernels switch at powers of two, and at the sizes of their tiles: those of FlashAttention, of CUTLASS and of oneDNN
# are powers of two, or among 48, 80, 96, 112, 192 and 384.
SWEEPS: Mapping[str, Sweep] = {
    "small": Sweep(
        batches=(2, 3, 4, 5, 8, 9, 16),
        lengths=_list_around((1, 4, 8, 16, 32, 64, 128)),
        head_dims=_list_around((1, 8, 16, 32, 64)),
        paddings=(1, 3, 8, 64),
        chunks=(2, 3, 8, 16, 32),
        limit_s=2.0,
    ),
    "full": Sweep(
        batches=tuple(range(1, 65)),
        lengths=_list_around((1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 384, 512)),
        head_dims=_list_around((1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 192, 256)),
        paddings=_list_around((1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 128)),
        chunks=_list_around((2, 4, 8, 16, 32, 48, 64)),
        limit_s=12.0,
    ),
}


def is_declared(policies: Policies, name: str, quantity: str, device: str) -> bool:
    """Whether policies declare that a property holds for ``output`` or ``gradients``."""
    if name == REPEAT:
        return policies.repeats_bitwise("output" if quantity == "output" else "grad.query", device)
    return name in policies.invariant


def list_points(name: str, sweep: Sweep, own: Sequence[int] = ()) -> list[Point]:
    """Return the points of a property: each size is swept in turn, while the others stay as in ``BASE``.

    The sizes alternate, so that a sweep that is cut has some values of each. ``own`` has the values of the property's
    own size, unless the sweep has them.
    """
    own = {"padding": sweep.paddings, "chunk": sweep.chunks}.get(OWN.get(name, ""), tuple(own))
    base = replace(BASE, own=own[len(own) // 2] if own else 0)
    axes = [
        [replace(base, batch=value) for value in sweep.batches],
        [replace(base, length=value) for value in sweep.lengths],
        [replace(base, head_dim=value) for value in sweep.head_dims],
        [replace(base, own=value) for value in own],
    ]
    mixed = (point for points in zip_longest(*axes) for point in points if point is not None)
    return list(dict.fromkeys(point for point in mixed if _is_comparable(name, point)))


def _is_comparable(name: str, point: Point) -> bool:
    """Whether a point has two calls that differ: a single sequence has no neighbours, a whole chunk is no chunk."""
    if name in OF_BATCHES:
        return point.batch > 1
    if name in ("prefill", "decode"):
        return point.length > max(point.own, 1)
    return True


def iterate_sizes(name: str, points: Sequence[Point]) -> Iterator[tuple[SizeName, tuple[int, ...]]]:
    """Yield each size of some points with its values, ascending."""
    if not points:
        return
    for size in points[0].name_sizes(name):
        yield size, tuple(sorted({point.name_sizes(name)[size] for point in points}))
