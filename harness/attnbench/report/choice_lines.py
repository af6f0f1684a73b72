"""What to use, as lines of plain text: what a terminal shows of the tables of choices."""

from collections.abc import Callable, Iterator, Sequence

from attnbench.analysis.plain_names import clean_name
from attnbench.records.run_file import StoredRun
from attnbench.report.checking_advice import advise_checking
from attnbench.report.choices import OPEN, Choice
from attnbench.report.decisions import Decisions

__all__ = ["format_choices"]

# Most characters of a line; the page has the whole text.
LONGEST = 400


def format_choices(
    decisions: Decisions, runs: Sequence[StoredRun], *, change_command: Callable[[str], str] = str
) -> Iterator[str]:
    """Yield a heading for each place, then a line for each cell: shape, length, pass, and what to use.

    Below a cell are the implementations that may be as fast and have no verdict on conformance. The last lines are the
    commands that check these, and that time again what has no answer, changed by ``change_command``. The page also says
    how sure an answer is, and what the named implementations refuse.
    """
    rivals: dict[str, dict[str, None]] = {}
    open_ = False
    for table in decisions.tables:
        place = clean_name(table.place.label, LONGEST)
        yield f"What to use on {place}; each time is relative to {clean_name(decisions.reference, LONGEST)}:"
        if table.warning:
            yield f"  {clean_name(table.warning, LONGEST)}"
        for row in table.rows:
            for name, choice in zip(table.passes, row.choices, strict=True):
                cell = f"{row.form}, length {row.length}, {name}: {_format_choice(choice)}"
                yield f"  {clean_name(cell, LONGEST)}"
                yield from (f"    {clean_name(note, LONGEST)}" for note in choice.rival_notes)
                rivals.setdefault(table.place.device, {}).update(dict.fromkeys(choice.unchecked))
                open_ = open_ or choice.kind in OPEN
        if table.left_out:
            yield f"  and {table.left_out} more in decisions.csv"
    steps = [advise_checking(names, runs, device) for device, names in rivals.items() if names]
    for step in filter(None, (*steps, *(decisions.advice if open_ else ()))):
        yield step.words
        yield f"  {change_command(step.command)}"


def _format_choice(choice: Choice) -> str:
    """Return what to use; also why it is not decided, not final, or not known to conform."""
    told = f"{choice.words} {choice.time}".rstrip()
    if len(choice.times) > 1:
        # The times of a tie have the names that ``words`` has.
        told = f"{choice.kind}{' for now' if choice.is_for_now else ''}: {choice.time}"
    return f"{told} ({'; '.join(choice.reservations)})" if choice.reservations else told
