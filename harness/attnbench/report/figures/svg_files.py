"""What the page needs of the bytes of an SVG file: its size, and a data URI."""

import base64
import re

__all__ = ["encode", "read_size"]

# CSS pixels per point. Source: CSS Values and Units, absolute lengths.
PIXELS_PER_POINT = 4 / 3


def encode(svg: bytes) -> str:
    """Return a data URI of an SVG file. In an ``img`` element nothing of it runs, and its ids clash with no others."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def read_size(svg: bytes) -> tuple[int, int]:
    """Return width and height of a drawing in CSS pixels, or (0, 0) if the file does not give them in points."""
    opening = svg[svg.find(b"<svg") :].partition(b">")[0]
    found = [re.search(rb' %s="([\d.]+)pt"' % name, opening) for name in (b"width", b"height")]
    sizes = [round(float(one[1]) * PIXELS_PER_POINT) for one in found if one]
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (0, 0)
