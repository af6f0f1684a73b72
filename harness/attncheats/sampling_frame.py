"""The frame of the harness in which a call is timed, as a cheat finds it."""

import sys
from types import FrameType

__all__ = ["find_sampling_frame"]


def find_sampling_frame() -> FrameType | None:
    """Return the frame of the function that takes the sample; None in a call of which no sample is taken."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  # it is public in all but name
    while frame is not None and frame.f_code.co_name != "_take_wall_sample":
        frame = frame.f_back
    return frame
