"""Marks of implementations on the page: the colours and markers of the figures, as classes and paths of SVG."""

from dataclasses import dataclass

from attnbench.report.figures.style import COLOURS, DARK, INK, OTHERS, Look

__all__ = ["Mark", "make_mark", "make_rules"]

# Side of a marker in the units of its path; the view box of the template is a little larger.
SIDE = 10
# Colours of looks, in the order of the numbers of their classes.
NUMBERED = (INK, OTHERS, *COLOURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A marker as an SVG path, and the class of its colour."""

    name: str
    path: str
    # Whether the marker is filled, as those of references and contenders are.
    filled: bool


def make_mark(look: Look) -> Mark:
    """Return the mark of a look."""
    # Imported here, because matplotlib takes a second to import, and a report without measurements has no marks.
    from matplotlib.markers import MarkerStyle
    from matplotlib.path import Path
    from matplotlib.transforms import Affine2D

    # Commands of SVG paths, by matplotlib's codes.
    commands = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}
    style = MarkerStyle(look.marker)
    shape = style.get_path().transformed(style.get_transform() + Affine2D().scale(SIDE, -SIDE))
    parts = [
        commands[code] + ("" if code == Path.CLOSEPOLY else " ".join(f"{number:.2f}" for number in points))
        for points, code in shape.iter_segments(simplify=False)
    ]
    return Mark(name=f"look-{NUMBERED.index(look.colour)}", path="".join(parts), filled=look.contends)


def make_rules() -> str:
    """Return style rules that set ``--look`` for each class, for a light page and paper, and for a dark page."""
    light = "".join(f".look-{number} {{ --look: {colour}; }}\n" for number, colour in enumerate(NUMBERED))
    dark = "".join(f".look-{number} {{ --look: {DARK[colour]}; }}\n" for number, colour in enumerate(NUMBERED))
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"
