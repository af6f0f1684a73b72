"""The report as one self-contained HTML file: styles and figures are embedded."""

import re
from collections.abc import Sequence

import jinja2
from markupsafe import Markup

from attnbench.report.content import Content
from attnbench.report.figures import SeriesFigures
from attnbench.report.listings import make_listings
from attnbench.report.matrix import LEGEND
from attnbench.report.methods import describe_machine, explain_measures
from attnbench.report.numbers import format_count
from attnbench.report.slugs import make_slug

__all__ = ["make_environment", "render"]


def render(content: Content, figures: Sequence[SeriesFigures]) -> str:
    """Return the HTML page of a report; ``figures`` are those of each series."""
    return (
        make_environment()
        .get_template("report.html.j2")
        .render(
            content=content,
            legend=LEGEND,
            machine=describe_machine,
            explain_measures=explain_measures,
            listings=make_listings,
            measured=list(zip(content.series, figures, strict=True)),
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
