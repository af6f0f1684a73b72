"""A comparison as one self-contained HTML file, with the style and the script of a report."""

from attnbench.report.comparison.content import Comparison
from attnbench.report.failures import REPRODUCING
from attnbench.report.page import render_template

__all__ = ["render"]

# Most rows of one implementation in a section. More than a reader looks at; each has about 500 bytes of HTML.
MOST_ROWS = 200


def render(content: Comparison) -> str:
    """Return the HTML page of a comparison."""
    return render_template("comparison.html.j2", content=content, reproducing=REPRODUCING, most_rows=MOST_ROWS)
