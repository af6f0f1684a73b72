"""Whether the error of a scale, measured on a case, is that of a diagnosis which names another scale."""

import math
import re
from collections.abc import Callable, Mapping

from attnbench.cases import CaseId

__all__ = ["agrees_with_fault"]

# The softmax scale that a check measured, relative to the right one.
_MEASURED = re.compile(r"the softmax scale estimated from \S+ is off by ([-+]\d+(?:\.\d+)?(?:e[-+]?\d+)?)")
# Largest relative difference between the measured factor of the scale and that of a fault. A large error is measured
# too low or too high by a few percent, because the measurement is a projection on a derivative: 0.555 for 1/√3 = 0.577.
AGREES = 0.1
# The factor by which a fault of ``operators.multihead.fault_models`` changes the scale 1/√D, by the sizes of the case:
# D width of a head, H heads, S keys, L queries.
FACTORS: Mapping[str, Callable[[Mapping[str, float]], float]] = {
    "the scale 1/√D missing": lambda size: math.sqrt(size["D"]),
    "the scale 1/√E of the whole width in place of 1/√D": lambda size: 1 / math.sqrt(size["H"]),
    "the scale 1/D in place of 1/√D": lambda size: 1 / math.sqrt(size["D"]),
    "the scale √D in place of 1/√D": lambda size: size["D"],
    "the scale 1/√S of the number of keys in place of 1/√D": lambda size: math.sqrt(size["D"] / size["S"]),
    "the scale 1/√L of the number of queries in place of 1/√D": lambda size: math.sqrt(size["D"] / size["L"]),
}


def agrees_with_fault(case: str, reason: str, fault: str) -> bool:
    """Whether a reason tells a measured scale that is, within 10 %, the scale of this fault on this case."""
    found, factor = _MEASURED.search(reason), FACTORS.get(fault)
    if found is None or factor is None:
        return False
    parts = CaseId.parse(case).problem.partition("/")[0].split(".")
    size = {part[:1]: float(part[1:]) for part in parts if part[1:].isdigit()}
    if "D" not in size and size.get("H"):
        size["D"] = size.get("E", 0.0) / size["H"]
    try:
        wanted = factor(size)
    except (KeyError, ZeroDivisionError):
        return False
    return abs((1 + float(found[1])) / wanted - 1) <= AGREES
