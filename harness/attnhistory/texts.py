"""The words of ``attnbench history``: tables of steps, and the lines below them."""

from collections.abc import Iterable, Iterator, Sequence

from attnbench.report.numbers import format_digits, format_thousands
from attnbench.report.text_table import TextTable
from attnbench.words.say import say, say_count
from attnhistory.points import RATIO, Key, Point, Quantity
from attnhistory.series import DIGITS, History, Series, Step, find_settings, write_gate
from attnhistory.steps import THRESHOLD, WINDOW

__all__ = [
    "TITLE", "format_value", "list_commands", "list_notes", "list_skipped", "name_point", "name_series", "name_step",
    "tabulate",
]  # fmt: skip

TITLE = "History of counters and ratios"
HEAD = ("between", "implementation", "what", "change", "where", "by")
_STEPS = ("{count} series has steps", "{count} series have steps")
_OTHERS = ("{count} has none", "{count} have none")
_COUNTS = "{steps}, and {others}."
_NO_INTERVALS = (
    "{count} ratio has values without a confidence interval; there, a step needs {window} commits on each side.",
    "{count} ratios have values without a confidence interval; there, a step needs {window} commits on each side.",
)
_ONE = "Every series has one commit; a step needs two."
_LEGEND = (
    "By equality: the exact numbers differ. By intervals: the whole interval of the change is beyond {percent:g} %. "
    "By neighbours: the range of {window} commits on each side stands for the interval."
)
_SETTLE = "To settle it, in a checkout of {later}: {command}"
_NO_COMMIT = (
    "{count} step has no command that settles it, because a run has no commit.",
    "{count} steps have no command that settles them, because a run has no commit.",
)
_SKIPPED = "not read: {path}: {reason}"
_MORE_SKIPPED = ("And {count} more that was not read.", "And {count} more that were not read.")
_MORE_COMMANDS = (
    "And {count} more command, in the file of --json.",
    "And {count} more commands, in the file of --json.",
)
_PLACE = "{machine}, {environment}"
_BETWEEN = "{earlier} → {later}"
_FROM_TO = "{first} → {last} ({change})"
_RANGE = "{first} to {last}"
_CASES = ("{count} case, such as {case}", "{count} cases, such as {case}")
_NO_STEP = "no step"
_SERIES = "{implementation}, {quantity}, {case}"
_STEP = "{between}: {change}, by {rule}"
# Most commands, and most reasons why something was not read, that are printed.
COMMANDS, SKIPPED = 8, 5


def tabulate(history: History, *, everything: bool) -> list[TextTable]:
    """Return a table for each machine and environment, with a row for the cases that have the same step.

    ``everything``: also rows of the series without steps.
    """
    places: dict[str, list[Series]] = {}
    for series in history.series:
        place = say(_PLACE, machine=series.key.machine, environment=series.key.environment)
        places.setdefault(place, []).append(series)
    tables = []
    for place, own in places.items():
        rows = (*_make_step_rows(own), *(_make_quiet_rows(own) if everything else ()))
        if rows:
            tables.append(TextTable(title=place, head=HEAD, rows=rows))
    return tables


def list_notes(history: History) -> Iterator[str]:
    """Yield how many series have steps, and what the rules cannot see."""
    moved = sum(bool(series.steps) for series in history.series)
    others = say_count(_OTHERS, len(history.series) - moved)
    yield say(_COUNTS, steps=say_count(_STEPS, moved), others=others)
    if all(len(series.points) == 1 for series in history.series):
        yield say(_ONE)
    if moved:
        yield say(_LEGEND, percent=100 * THRESHOLD, window=WINDOW)
    if without := sum(series.lacks_intervals for series in history.series):
        yield say_count(_NO_INTERVALS, without, window=WINDOW)


def list_commands(history: History) -> Iterator[str]:
    """Yield the commands that settle the steps, one for each pair of commits and setting of the calls."""
    keys: dict[tuple[str, str, tuple[str, ...]], list[Key]] = {}
    unsettled = 0
    for series, step in _list_steps(history.series):
        if step.command is None:
            unsettled += 1
        else:
            place = step.earlier.place, step.later.place, find_settings(series.key.case)
            keys.setdefault(place, []).append(series.key)
    for (earlier, later, _), own in list(keys.items())[:COMMANDS]:
        yield say(_SETTLE, later=later[:DIGITS], command=write_gate(own, earlier))
    if len(keys) > COMMANDS:
        yield say_count(_MORE_COMMANDS, len(keys) - COMMANDS)
    if unsettled:
        yield say_count(_NO_COMMIT, unsettled)


def list_skipped(history: History) -> Iterator[str]:
    """Yield what was not read, and why."""
    for one in history.skipped[:SKIPPED]:
        yield say(_SKIPPED, path=one.path, reason=" ".join(one.reason.split()))
    if len(history.skipped) > SKIPPED:
        yield say_count(_MORE_SKIPPED, len(history.skipped) - SKIPPED)


def name_point(point: Point) -> str:
    """Return the short commit, or the id of the run if no commit is stored."""
    return point.commit[:DIGITS] if point.commit else point.run


def name_series(key: Key) -> str:
    """Return what tells a series apart within its machine and environment."""
    return say(_SERIES, implementation=key.implementation, quantity=key.quantity, case=key.case)


def name_step(quantity: Quantity, step: Step) -> str:
    """Return a step of one series in words."""
    return say(_STEP, between=_name_commits(step.earlier, step.later), change=_tell([step], quantity), rule=step.rule)


def format_value(quantity: Quantity, value: float) -> str:
    """Return a counter with all its digits, or a ratio with three."""
    return f"{format_digits(value)}×" if quantity == RATIO else format_thousands(round(value))


def _list_steps(series: Iterable[Series]) -> list[tuple[Series, Step]]:
    """Return the steps, each with its series, in the order of commits."""
    found = [(one, step) for one in series for step in one.steps]
    return sorted(found, key=lambda pair: (pair[1].later.date, pair[1].earlier.date))


def _make_step_rows(series: Sequence[Series]) -> tuple[tuple[str, ...], ...]:
    groups: dict[tuple[str, ...], list[tuple[Series, Step]]] = {}
    for one, step in _list_steps(series):
        direction = "up" if step.later.value > step.earlier.value else "down"
        between = _name_commits(step.earlier, step.later)
        group = between, one.key.implementation, one.key.quantity, step.rule, direction
        groups.setdefault(group, []).append((one, step))
    return tuple(
        (between, name, quantity, _tell([step for _, step in own], own[0][0].key.quantity),
         _name_cases([one for one, _ in own]), rule)
        for (between, name, quantity, rule, _), own in groups.items()
    )  # fmt: skip


def _make_quiet_rows(series: Sequence[Series]) -> tuple[tuple[str, ...], ...]:
    groups: dict[tuple[str, ...], list[Series]] = {}
    for one in series:
        if not one.steps:
            between = _name_commits(one.points[0], one.points[-1])
            groups.setdefault((between, one.key.implementation, one.key.quantity), []).append(one)
    return tuple((*group, say(_NO_STEP), _name_cases(own), "") for group, own in groups.items())


def _name_commits(earlier: Point, later: Point) -> str:
    first, last = name_point(earlier), name_point(later)
    return say(_BETWEEN, earlier=first, later=last) if first != last else first


def _name_cases(series: Sequence[Series]) -> str:
    case = series[0].key.case
    return case if len(series) == 1 else say_count(_CASES, len(series), case=case)


def _tell(steps: Sequence[Step], quantity: Quantity) -> str:
    """Return how one value, or several values, changed."""
    changes = sorted({_measure(step, quantity) for step in steps})
    shown = list(dict.fromkeys(_format_change(change, quantity) for change in (changes[0], changes[-1])))
    if len(steps) > 1:
        return shown[0] if len(shown) == 1 else say(_RANGE, first=shown[0], last=shown[1])
    first, last = (format_value(quantity, point.value) for point in (steps[0].earlier, steps[0].later))
    return say(_FROM_TO, first=first, last=last, change=shown[0])


def _measure(step: Step, quantity: Quantity) -> float:
    """Return the change of a ratio in per cent, or of a counter in its unit."""
    was, now = step.earlier.value, step.later.value
    return 100 * (now / was - 1) if quantity == RATIO else now - was


def _format_change(change: float, quantity: Quantity) -> str:
    shown = format_digits(abs(change), 2) + " %" if quantity == RATIO else format_thousands(round(abs(change)))
    return ("+" if change > 0 else "−") + shown
