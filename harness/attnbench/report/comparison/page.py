"""A comparison as one self-contained HTML file, with the style and the script of a report."""

from attnbench.report.comparison.content import ComparisonContent
from attnbench.report.page import render_template
from attnbench.words.failures import REPRODUCING

__all__ = ["render"]

# Most rows of one implementation in a section. More than a reader looks at; each has about 500 bytes of HTML.
MOST_ROWS = 200
# Tables of more rows than this can be sorted and filtered.
FEW_ROWS = 5


def render(content: ComparisonContent) -> str:
    """Return the HTML page of a comparison."""
    return render_template(
        "comparison.html.j2", content=content, reproducing=REPRODUCING, most_rows=MOST_ROWS, few_rows=FEW_ROWS
    )
