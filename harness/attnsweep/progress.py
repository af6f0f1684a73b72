"""What a sweep says about its tasks: counts, what is missing, and which command comes next."""

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attnbench.api.progress import format_time
from attnsweep.plan import SweepPlan
from attnsweep.states import STATES, TaskState
from attnsweep.submission import list_submissions
from attnsweep.tries import TASKS

__all__ = [
    "ChangedLines",
    "describe_plan",
    "format_command",
    "format_counts",
    "format_merging",
    "format_resuming",
    "list_gaps",
]

# Seconds after which a line is printed although no task changed its state.
EVERY_S = 60.0
# Most tasks that are named.
NAMED = 20


def describe_plan(plan: SweepPlan) -> Iterator[str]:
    """Yield lines on what a sweep will run, and about how long it takes."""
    yield f"sweep {plan.hash}: {plan.kind}, suite {plan.options['suite']}, of {', '.join(plan.operators)}"
    for machine in plan.machines:
        own = [task for task in plan.tasks if task.machine == machine.name]
        cases = sum(len(task.cases) for task in own)
        longest_s, total_s = max(task.estimate_s for task in own), sum(task.estimate_s for task in own)
        settings = [
            f"{name} {value}" for name in machine.__struct_fields__[1:] if (value := getattr(machine, name)) is not None
        ]
        yield (
            f"machine {machine.name} ({', '.join(settings) or 'any node'}): {_count(cases, 'case')} in "
            f"{_count(len(own), 'task')}, about {format_time(total_s)} in all, the longest task "
            f"{format_time(longest_s)} of {plan.minutes} min"
        )
    yield f"results: {plan.count_results()}; the times are {plan.origin}"


def format_counts(plan: SweepPlan, states: Sequence[TaskState]) -> str:
    """Return one line with the number of tasks in each state, and of the results so far."""
    counts = Counter(one.state for one in states)
    tasks = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state] or state != "missing")
    results = sum(one.results.complete for one in states)
    failures = sum(one.results.failures for one in states)
    told = f", {failures} of them with a failed check" if failures else ""
    return f"tasks: {tasks}; results: {results} of {plan.count_results()}{told}"


def list_gaps(states: Sequence[TaskState]) -> Iterator[str]:
    """Yield a line for each task that is missing or failed, and for each line of a run file that cannot be read."""
    gaps = [one for one in states if one.state in ("missing", "failed")]
    for one in gaps[:NAMED]:
        yield f"{one.state}: task {one.task.name}: {one.reason}"
    if len(gaps) > NAMED:
        yield f"and {len(gaps) - NAMED} more tasks"
    problems = [problem for one in states for problem in one.results.problems]
    yield from problems[:NAMED]


def format_command(folder: Path, *words: str) -> str:
    """Return a command line of the sweep in a folder."""
    return shlex.join(["attnbench", "sweep", "--results", str(folder), *words])


def format_resuming(folder: Path, *words: str) -> str:
    """Return the command line that submits what is missing: here if all tasks ran here, and to Slurm otherwise."""
    last = [own[-1] for own in list_submissions(folder).values()]
    is_local = bool(last) and all(one.executor == "local" for one in last)
    return format_command(folder, "--resume", *(["--local"] if is_local else []), *words)


def format_merging(folder: Path) -> str:
    """Return the command line that merges the results of the sweep in a folder."""
    return shlex.join(["attnbench", "merge", str(folder / TASKS), "--into", str(folder / "merged")])


class ChangedLines:
    """Prints a line when it differs from the one before in the states of tasks, or when some time has passed."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        self._echo = echo
        self._states: tuple[str, ...] = ()
        self._printed_s = 0.0

    def show(self, plan: SweepPlan, states: Sequence[TaskState]) -> None:
        """Print the counts, if they are news."""
        own = tuple(one.state for one in states)
        if own != self._states or time.monotonic() - self._printed_s >= EVERY_S:
            self._states, self._printed_s = own, time.monotonic()
            self._echo(format_counts(plan, states))


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
