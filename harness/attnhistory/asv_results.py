"""Gives the values of asv's result files their series."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from attnbench.records.asv_file import PARAMETERS, AsvFile, AsvValue, parse_asv_file
from attnhistory.points import RATIO, Key, Point, Quantity, Reading, Skipped

__all__ = ["read_asv"]

QUANTITIES: dict[str, Quantity] = {name: name for name in get_args(Quantity)}
# Identifies a value: the suite, the quantity and the parameters.
Place = tuple[str, str, tuple[str, ...]]


def read_asv(path: Path) -> Iterator[Reading | Skipped]:
    """Yield the values of a result file, and what is left out and why."""
    try:
        file = parse_asv_file(path.read_bytes())
    except (OSError, ValueError) as error:
        yield Skipped(path=str(path), reason=str(error))
        return
    yield from (Skipped(path=str(path), reason=problem) for problem in file.problems)
    values: dict[Place, float] = {(one.suite, one.quantity, one.words): one.value for one in file.values}
    for one in file.values:
        # A ratio of 0 is that of no call.
        if one.quantity in QUANTITIES and (one.quantity != RATIO or one.value):
            yield _make_reading(file, one, values)


def _make_reading(file: AsvFile, one: AsvValue, values: dict[Place, float]) -> Reading:
    implementation, *rest = one.words
    key = Key(
        machine=file.machine, environment=f"{file.environment}, {one.suite}", implementation=implementation,
        case=" ".join(f"{name}={word}" for name, word in zip(PARAMETERS[1:], rest, strict=False)),
        length=int(rest[0]), quantity=QUANTITIES[one.quantity], version=one.version,
    )  # fmt: skip
    # An end of the interval may be n/a where the value is not.
    low, high = (values.get((one.suite, f"{one.quantity}_{end}", one.words)) or None for end in ("low", "high"))
    return Reading(key=key, point=Point(commit=file.commit, date=file.date, value=one.value, low=low, high=high))
