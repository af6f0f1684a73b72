"""The report as one self-contained HTML file: styles and plots are embedded."""

import re
from collections.abc import Mapping

import jinja2
from markupsafe import Markup

from attnbench.report.content import Content
from attnbench.report.drawings import inline_figures
from attnbench.report.groups import group_left_out
from attnbench.report.listings import make_listings
from attnbench.report.matrix import LEGEND
from attnbench.report.measures import make_grids
from attnbench.report.methods import describe_machine, explain_times
from attnbench.report.numbers import format_count
from attnbench.report.slugs import make_slug

__all__ = ["make_environment", "render"]


def render(content: Content, files: Mapping[str, bytes]) -> str:
    """Return the HTML page of a report; ``files`` maps file names to contents, among them the SVG plots."""
    return (
        make_environment()
        .get_template("report.html.j2")
        .render(
            content=content,
            legend=LEGEND,
            machine=describe_machine,
            explain_times=explain_times,
            left_out=group_left_out(content.left_out),
            listings=make_listings,
            measured=[(one, inline_figures(one, files), list(make_grids(one))) for one in content.series],
        )
    )


def make_environment() -> jinja2.Environment:
    """Return the Jinja environment of the templates, with their filters; it escapes HTML markup in every text."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("attnbench.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["breakable"] = _add_breaks
    made.filters["count"] = format_count
    made.filters["slug"] = make_slug
    made.filters["unbroken"] = _join_numbers
    return made


def _add_breaks(text: str) -> Markup:
    """Allow line breaks in a long name after a slash, a dot, an underscore or a plus sign."""
    return Markup("<wbr>").join(re.split(r"(?<=[/._+])", text))


def _join_numbers(text: str) -> str:
    """Prevent line breaks between a number and the word after it."""
    return re.sub(r"(\d) (?=[a-z0-9])", "\\1\u00a0", text)
