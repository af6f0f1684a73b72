"""Makes SVG files smaller, and gives them colours for a dark page.

matplotlib repeats the style of every element, writes millionths of a point, and names groups that nothing refers to.
"""

import re
from collections.abc import Mapping
from xml.etree import ElementTree as ET

__all__ = ["shrink"]

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
# Attributes that hold coordinates, in points.
COORDINATES = ("d", "x", "y", "transform")
# Digits after the point that are kept: a hundredth of a point is far below a pixel.
DIGITS = 2
TURNED_BY_ZERO = "rotate(-0 "

for _prefix, _uri in (("", SVG), ("xlink", XLINK)):
    ET.register_namespace(_prefix, _uri)


def shrink(svg: bytes, *, dark: Mapping[str, str], style: str) -> bytes:
    """Return an SVG file of matplotlib with a class for each style, and without what cannot be seen.

    ``dark`` maps colours to those that replace them on a dark page; ``style`` is a further style sheet. The texts of
    the figure are neither read nor changed.
    """
    root = ET.fromstring(svg)  # noqa: S314  # made by matplotlib
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    classes: dict[str, str] = {}
    for element in root.iter():
        _shrink_element(element, classes)
    own = root.find(f"{{{SVG}}}defs/{{{SVG}}}style")
    if own is not None:
        rules = "".join(f".{name}{{{rule}}}" for rule, name in classes.items())
        own.text = f"{own.text or ''}{rules}{style}@media (prefers-color-scheme: dark){{{_darken(classes, dark)}}}"
    written: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return written


def _shrink_element(element: ET.Element, classes: dict[str, str]) -> None:
    """Shrink the attributes of an element, and move its style to a class."""
    if not (element.text or "").strip() and element.tag != f"{{{SVG}}}text":
        element.text = None
    if not (element.tail or "").strip():
        element.tail = None
    if element.get("transform", "").startswith(TURNED_BY_ZERO):
        del element.attrib["transform"]
    # No group needs its id: matplotlib refers only to paths and to areas for clipping.
    if element.tag == f"{{{SVG}}}g":
        element.attrib.pop("id", None)
    rule = element.attrib.pop("style", "")
    if rule:
        element.set("class", classes.setdefault(rule, f"s{len(classes)}"))
    for name in COORDINATES:
        if name in element.attrib:
            element.set(name, _round(element.attrib[name]))


def _darken(classes: Mapping[str, str], dark: Mapping[str, str]) -> str:
    """Return rules that replace the colours of these classes on a dark page."""
    rules = []
    for rule, name in classes.items():
        parts = [part.strip() for part in rule.split(";")]
        changed = [
            f"{what}: {dark[colour]}" for what, _, colour in (part.partition(": ") for part in parts) if colour in dark
        ]
        rules += [f".{name}{{{'; '.join(changed)}}}"] if changed else []
    return "".join(rules)


def _round(text: str) -> str:
    """Round the numbers in an attribute, and join its lines."""
    rounded = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.{DIGITS}f}".rstrip("0").rstrip("."), text)
    return " ".join(rounded.split())
