"""The outcome of a gate as workflow commands of GitHub, each of which its pages show as an annotation.

Source: https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from collections.abc import Iterator

from attnbench.report.comparison.content import ComparisonContent
from attnbench.report.console import Part, Text, list_parts
from attngate.outcome import Outcome
from attngate.texts import STYLES, describe_outcome, name_title, tabulate

__all__ = ["annotate"]

# Most annotations beside that of the outcome: GitHub shows ten errors of a step.
MOST = 9
# Characters that would end a message, and those that would end the title.
ENDS = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
TITLE_ENDS = ENDS | str.maketrans({":": "%3A", ",": "%2C"})


def annotate(outcome: Outcome, content: ComparisonContent) -> Iterator[str]:
    """Yield an annotation of the outcome, and one for each of the first rows that became worse.

    They are errors if the gate fails. Otherwise the rows, and an outcome that is undecided, are warnings.
    """
    failed = outcome.exit_code != 0
    calm = "warning" if outcome.outcome == "undecided" else "notice"
    yield _format("error" if failed else calm, name_title(outcome), describe_outcome(outcome))
    tables, _ = tabulate(content)
    worse = [row for table in tables for row in table.rows if _is_bad(row[0])]
    for verdict, implementation, *told in worse[:MOST]:
        title = f"{_read(implementation)}: {_read(verdict)}"
        yield _format("error" if failed else "warning", title, "; ".join(filter(None, map(_read, told))))


def _is_bad(cell: Text) -> bool:
    return isinstance(cell, Part) and cell.style == STYLES["bad"]


def _read(cell: Text) -> str:
    return "".join(part.text for part in list_parts(cell))


def _format(level: str, title: str, message: str) -> str:
    return f"::{level} title={title.translate(TITLE_ENDS)}::{message.translate(ENDS)}"
