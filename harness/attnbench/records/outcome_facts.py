"""Facts about calls without values to compare: exceptions, refusals, and why something was not run or not timed."""

import msgspec

__all__ = ["OutcomeFact", "OverWorkLimit"]


class OverWorkLimit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The predicted time of a call exceeds the limit on work, so the case was not started."""

    predicted_s: float
    limit_s: float


# Facts of a call that gave nothing to compare, or was not made. The union is closed: a struct is told apart by its tag.
OutcomeFact = OverWorkLimit
