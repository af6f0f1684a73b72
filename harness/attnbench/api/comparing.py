"""``attnbench.compare``: what changed between two stored runs."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.analysis.exclusions import exclude_implausible
from attnbench.analysis.run_diff import WORSE, Change, Verdict, compare_runs
from attnbench.api.stored import RESULTS, Source, find_run
from attnbench.api.text_tables import format_html, format_text
from attnbench.jobs.fields import FIELDS, parse_fields
from attnbench.records.run_file import StoredRun
from attnbench.report.comparison.rows import SECTIONS
from attnbench.report.console import Part
from attnbench.report.hidden_characters import spell_out
from attnbench.report.text_table import TextTable
from attnbench.words.changes import describe_change
from attnbench.words.comparison import NOTHING
from attnbench.words.say import say
from attnbench.words.unmatched import describe_only

if TYPE_CHECKING:
    # Not imported when a command starts, because these import pandas, which takes a second.
    import pandas as pd

    from attnbench.report.comparison.content import ComparisonContent

__all__ = ["THRESHOLD", "Comparison", "compare", "compare_stored", "list_notes", "parse_threshold", "tabulate_changes"]

# Default of ``threshold``. If the time of a call changes by more than this fraction between two runs, the
# verdict is slower or faster. A smaller default would report more changes where the code did not change: two
# measurements of identical code differed by up to 6 %. Each of the two measurements had ten
# processes, and the processes of the two measurements ran alternately.
THRESHOLD = 0.05
# Verdicts that the table leaves out if two stored runs are compared.
QUIET: frozenset[Verdict] = frozenset({"same", "unknown"})
# Text style of a verdict in the table. Verdicts that are not listed are red for a change to the worse, and green for a
# change to the better.
STYLES = {"same": "dim", "unknown": "yellow", "inconclusive": "yellow", "other": "yellow"}
# Place of each verdict in the table: in the order of the sections of the page, and ``same`` last.
PLACES = {verdict: place for place, (_, verdicts, _) in enumerate(SECTIONS) for verdict in verdicts}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """What changed from one run to another; it prints as the table of ``attnbench compare``."""

    changes: tuple[Change, ...]
    # What the page of ``attnbench compare --html`` shows.
    content: "ComparisonContent"

    @property
    def worse(self) -> tuple[Change, ...]:
        """The changes to the worse: wrong, bigger, slower or gone."""
        return tuple(change for change in self.changes if change.verdict in WORSE)

    @property
    def ok(self) -> bool:
        """Whether something was compared, and nothing became worse."""
        return bool(self.changes) and not self.worse

    @property
    def warnings(self) -> tuple[str, ...]:
        """What differed in machine and versions, and what the runs lack."""
        return self.content.warnings

    def to_frame(self) -> "pd.DataFrame":
        """Return the changes as a table; docs/formats.md describes the columns."""
        from attnbench.report.columns import CHANGES
        from attnbench.report.tables import make_frame

        return make_frame(CHANGES, self.changes)

    def to_markdown(self) -> str:
        """Return the text of ``attnbench compare --markdown``."""
        from attnbench.report.comparison import markdown

        return markdown.render(self.content)

    def to_html(self) -> str:
        """Return the page of ``attnbench compare --html``."""
        from attnbench.report.comparison import page

        return page.render(self.content)

    def _list_lines(self) -> list[str]:
        return [*list_notes(self.content), *(f"warning: {line}" for line in self.warnings)]

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return format_text(tabulate_changes(self.changes, quiet=QUIET), self._list_lines())

    def _repr_html_(self) -> str:
        return format_html(tabulate_changes(self.changes, quiet=QUIET), self._list_lines())


def compare(base: Source, new: Source, *, threshold: float = THRESHOLD, results: str | Path = RESULTS) -> Comparison:
    """Return what changed from one stored run to another, as ``attnbench compare BASE NEW`` does.

    ``base`` and ``new`` are ids of runs below the folder ``results``, paths of run files, or results of
    ``attnbench.profile``. ``threshold`` is the smallest relative change of time that counts as slower or faster.

    Times are compared by their ratios to the reference's time in the same run. To compare two implementations, profile
    them together.

    Raises: ResultsError where a run is not found or cannot be read; ValueError for an invalid argument.
    """
    threshold = parse_threshold(threshold)
    before, after = (find_run(name, one, Path(results)) for name, one in (("base", base), ("new", new)))
    found, content = compare_stored(before, after, threshold=threshold)
    return Comparison(changes=tuple(found), content=content)


def parse_threshold(value: object) -> float:
    """Return the smallest relative change that counts; None is ``THRESHOLD``.

    Raises: JobError for anything that is no number above 0.
    """
    known = {"threshold": FIELDS["threshold"]}
    return float(parse_fields(known, {"threshold": value}).get("threshold", THRESHOLD))


def compare_stored(base: StoredRun, new: StoredRun, *, threshold: float) -> tuple[list[Change], "ComparisonContent"]:
    """Return the changes between two runs, and the content of their comparison.

    Measurements that cannot be right are left out of both runs, and the content names them.
    """
    from attnbench.report.comparison.content import collect_comparison

    ((before,), of_base), ((after,), of_new) = exclude_implausible([base]), exclude_implausible([new])
    found = list(compare_runs(before, after, threshold=threshold))
    content = collect_comparison(found, before, after, threshold=threshold, exclusions=(*of_base, *of_new))
    return found, content


def tabulate_changes(found: Sequence[Change], *, quiet: Collection[Verdict]) -> list[TextTable]:
    """Return the table of changes, what became worse first; no table if it has no row.

    The table leaves out changes whose verdict is in ``quiet``. It shows the verdict ``same`` only for times, not for
    bytes, flop or kernel calls.
    """
    shown = [
        change
        for change in sorted(found, key=lambda one: PLACES.get(one.verdict, len(PLACES)))
        if change.verdict not in quiet and (change.verdict != "same" or change.aspect == "time")
    ]
    if not shown:
        return []
    return [
        TextTable(
            head=("verdict", "implementation", "aspect", "from → to", "case"),
            rows=tuple(
                (
                    Part(one.verdict, "red" if one.verdict in WORSE else STYLES.get(one.verdict, "green")),
                    one.implementation,
                    one.aspect,
                    describe_change(one),
                    one.case,
                )
                for one in shown
            ),
        )
    ]


def list_notes(content: "ComparisonContent") -> Iterator[str]:
    """Yield the lines below the table: what only one side has, and how often each verdict was given."""
    for one in content.only:
        told = describe_only(side=one.side, name=one.implementation, count=one.count, what=one.what, note=one.note)
        yield spell_out(told)
    yield content.counts or say(NOTHING)
