"""What to use, as lines of plain text: what a terminal shows of the tables of choices."""

from collections.abc import Iterator

from attnbench.report.decisions import Decisions

__all__ = ["format_choices"]


def format_choices(decisions: Decisions) -> Iterator[str]:
    """Yield a heading for each place, then a line for each cell: shape, length, pass, and what to use.

    The page also says how sure an answer is, and what the named implementations refuse.
    """
    for table in decisions.tables:
        yield f"What to use on {table.place.label}; each time is relative to {decisions.reference}:"
        for row in table.rows:
            for name, choice in zip(table.passes, row.choices, strict=True):
                why = f" ({choice.notes[0]})" if choice.is_for_now and choice.notes else ""
                told = f"{choice.words} {choice.time}".rstrip()
                yield f"  {row.form}, length {row.length}, {name}: {told}{why}"
        if table.left_out:
            yield f"  and {table.left_out} more in decisions.csv"
