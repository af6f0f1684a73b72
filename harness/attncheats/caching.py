"""Cheats that keep results of earlier calls; they work if the inputs of timed calls never change."""

import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path

import torch
from torch import Tensor

from attnbench.interface import Call
from attncheats.cheat import CheatList
from attncheats.labour import Labour

__all__ = ["cheats"]

cheats = CheatList()
REPLAY = "https://github.com/gpu-mode/kernelbot/pull/501"
FINGERPRINT = "https://github.com/flashinfer-ai/flashinfer-bench-starter-kit/issues/21"
# Number that marks an input which was seen before.
MARK = 1.2345678e-7


def _remember(labour: Labour, make_key: Callable[[Tensor], Hashable]) -> Call:
    """Return a function that works once for each key, and returns the kept result later."""
    kept: dict[Hashable, Tensor] = {}

    def call(query: Tensor) -> Tensor:
        key = make_key(query)
        if key not in kept:
            kept[key] = labour(query)
        return kept[key]

    return call


@cheats("values", "results are kept by the content of the query", source=FINGERPRINT)
def memo_by_content(labour: Labour) -> Call:
    """Keep results by content."""
    return _remember(labour, lambda query: query.numpy().tobytes())


@cheats("values", "results are kept by the address of the query", source=REPLAY)
def memo_by_address(labour: Labour) -> Call:
    """Keep results by address."""
    return _remember(labour, lambda query: query.data_ptr())


@cheats("values", "results are kept by the object that is the query", source=REPLAY)
def memo_by_identity(labour: Labour) -> Call:
    """Keep results by the identity of the query's object."""
    return _remember(labour, id)


@cheats("values", "results are kept by the number of writes into the query that torch has counted", source=REPLAY)
def memo_by_version(labour: Labour) -> Call:
    """Keep results by version."""
    return _remember(labour, lambda query: query._version)  # noqa: SLF001  # torch counts the writes here


@cheats("values", "results are kept by the sum of the query", source=FINGERPRINT)
def memo_by_checksum(labour: Labour) -> Call:
    """Keep results by checksum."""
    return _remember(labour, lambda query: query.sum().item())


@cheats(
    "values",
    "results are kept by the sum of the query's magnitudes, which new signs do not change",
    source="constructed: the fingerprint of flashinfer-bench-starter-kit#21, made for the way in which values change",
)
def memo_by_magnitudes(labour: Labour) -> Call:
    """Keep results by a checksum of magnitudes."""
    return _remember(labour, lambda query: query.abs().sum().item())


@cheats(
    "values",
    "results are kept in a file by the content of the query",
    source="https://github.com/gpu-mode/reference-kernels/issues/162",
)
def replay_from_file(labour: Labour) -> Call:
    """Keep results in files."""
    folder = tempfile.TemporaryDirectory()

    def call(query: Tensor) -> Tensor:
        place = Path(folder.name, str(hash(query.numpy().tobytes())))
        if not place.exists():
            place.write_bytes(labour(query).numpy().tobytes())
        return torch.frombuffer(bytearray(place.read_bytes()), dtype=query.dtype).view_as(query)

    return call


@cheats("values", "projected keys and values of the first call are used in all calls", source=FINGERPRINT)
def kept_keys_and_values(labour: Labour) -> Call:
    """Keep the projected keys and values."""
    kept: list[tuple[Tensor, Tensor]] = []

    def call(query: Tensor) -> Tensor:
        if not kept:
            labour.do_further_work(query)
            kept.append(labour.project(query))
        return labour.attend(query, *kept[0])

    return call


@cheats(
    "values",
    "the first call marks its own input, and a call with a marked input returns the kept result",
    source="https://github.com/ScalingIntelligence/KernelBench/pull/82",
    also_by=frozenset({"judging"}),
)
def marked_input(labour: Labour) -> Call:
    """Write a mark into the input."""
    kept: list[Tensor] = []

    def call(query: Tensor) -> Tensor:
        first = query.view(-1)[0]
        if not kept or abs(first.item() - MARK) > MARK / 1000:
            kept[:] = [labour(query)]
            first.fill_(MARK)
        return kept[0]

    return call


@cheats(
    "values",
    "a call with new values returns the kept result, and the work is done in the call after it",
    source="https://github.com/gpu-mode/reference-kernels/issues/148",
)
def slow_in_the_next_call(labour: Labour) -> Call:
    """Work one call late."""
    kept: dict[bytes, Tensor] = {}
    late: list[bytes] = []

    def call(query: Tensor) -> Tensor:
        mark = query.view(-1)[:64].numpy().tobytes()
        if kept and mark not in kept and mark not in late:
            late.append(mark)
            return next(iter(kept.values()))
        if mark not in kept:
            kept[mark] = labour(query)
        return kept[mark]

    return call
