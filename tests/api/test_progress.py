"""Tests of the progress of a run: the estimate of the time left, plain lines, and the progress bar."""

import re
from collections.abc import Iterator

import pytest

from attnbench.api import progress as module
from attnbench.api.progress import NOT_KNOWN, Pace, describe_time_left, show_progress, write_line


class Clock:
    """Clock whose time is set by the test."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.s


def finish_step(pace: Pace, clock: Clock, label: str, took_s: float) -> None:
    """Advance the clock by the duration of a step, and count the step as done."""
    clock.s += took_s
    pace.done(label)


# A round is one pass over all cases. For each step of a round, its label (a length) and its duration in seconds.
ROUND = {"8": 1.0, "16": 4.0, "32": 16.0}


def make_pace(rounds: int) -> tuple[Pace, Clock]:
    """Return the Pace of a stage of this many rounds, of which no step is done, and its clock."""
    clock = Clock()
    pace = Pace(clock)
    pace.begin(rounds * len(ROUND))
    return pace, clock


def test_nothing_is_known_before_the_first_step() -> None:
    """Before the first step is done, there is no estimate of the time left."""
    pace, clock = make_pace(2)
    assert pace.estimate_left_s() is None
    clock.s += 100
    assert describe_time_left(pace.estimate_left_s()) == NOT_KNOWN


def test_in_the_first_round_there_is_no_upper_end() -> None:
    """In the first round the estimate is a lower bound, because later steps of a round take as long or longer."""
    pace, clock = make_pace(2)
    finish_step(pace, clock, "8", 1)
    finish_step(pace, clock, "16", 4)
    assert pace.estimate_left_s() == (4 * 2.5, None)
    assert describe_time_left(pace.estimate_left_s()) == "10 s or more left"


def test_later_rounds_are_estimated_from_the_first() -> None:
    """A step is estimated by the duration of the step with the same label in earlier rounds."""
    pace, clock = make_pace(3)
    for label, took_s in ROUND.items():
        finish_step(pace, clock, label, took_s)
    finish_step(pace, clock, "8", 1)
    assert pace.estimate_left_s() == (4 + 16 + 21, 4 + 16 + 21)
    finish_step(pace, clock, "16", 4)
    assert pace.estimate_left_s() == (16 + 21, 16 + 21)
    assert describe_time_left(pace.estimate_left_s()) == "about 37 s left"


def test_rounds_of_different_duration_give_a_range() -> None:
    """The estimate is a range: each step takes at least its shortest and at most its longest time of earlier rounds."""
    pace, clock = make_pace(3)
    for factor in (1, 3):
        for label, took_s in ROUND.items():
            finish_step(pace, clock, label, factor * took_s)
    assert pace.estimate_left_s() == (21, 63)
    assert describe_time_left(pace.estimate_left_s()) == "21 s to 63 s left"


def test_a_step_that_takes_longer_does_not_reduce_the_others() -> None:
    """If the current step takes longer than estimated, the estimates of the later steps stay as they are."""
    pace, clock = make_pace(3)
    for label, took_s in ROUND.items():
        finish_step(pace, clock, label, took_s)
    finish_step(pace, clock, "8", 1)
    clock.s += 3
    assert pace.estimate_left_s() == (1 + 16 + 21, 1 + 16 + 21)
    clock.s += 300
    assert pace.estimate_left_s() == (16 + 21, 16 + 21)


def test_parallel_steps_share_the_time() -> None:
    """Two parallel steps that finish together after 2 s count as 1 s each."""
    clock = Clock()
    pace = Pace(clock)
    pace.begin(8, parallel=2)
    for _ in range(3):
        clock.s += 2
        pace.done("8")
        pace.done("8")
    assert pace.estimate_left_s() == (2, 2)


def test_steps_of_an_earlier_run_do_not_enter_the_estimate() -> None:
    """In a resumed run, stored steps count as done, and do not enter the estimate."""
    pace, clock = make_pace(3)
    for _ in range(3):
        pace.done()
    assert pace.estimate_left_s() is None
    finish_step(pace, clock, "8", 1)
    assert pace.estimate_left_s() == (5, None)


def test_at_the_end_nothing_is_left() -> None:
    """When all steps are done, 0 s are left."""
    pace, clock = make_pace(1)
    for label, took_s in ROUND.items():
        finish_step(pace, clock, label, took_s)
    assert pace.estimate_left_s() == (0, 0)


@pytest.mark.parametrize(
    ("left_s", "words"),
    [
        (None, NOT_KNOWN),
        ((0.2, 0.3), "about 1 s left"),
        ((60.0, 65.0), "about 63 s left"),
        ((60.0, 600.0), "60 s to 10 min left"),
        ((3600.0, None), "60 min or more left"),
        ((9000.0, 9100.0), "about 2.5 h left"),
    ],
)
def test_time_left_in_words(left_s: tuple[float, float | None] | None, words: str) -> None:
    """The time left is given in seconds, minutes or hours; a range whose ends are close becomes one number."""
    assert describe_time_left(left_s) == words


@pytest.fixture
def line_for_every_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the progress without a terminal print a line for every step."""
    monkeypatch.setattr(module, "PLAIN_EVERY_S", 0.0)
    return


@pytest.mark.usefixtures("line_for_every_step")
def test_plain_lines_name_steps_done_time_left_and_current_step(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, progress is lines of text on standard error; standard output stays empty."""
    with show_progress() as progress:
        progress.begin("probe", 2)
        progress.now("sdpa case")
        progress.done("case")
        progress.now("other case")
        progress.done("case")
    out, err = capsys.readouterr()
    assert out == ""
    first, second, third = err.splitlines()
    assert first == "probe: 2 steps"
    assert second == f"probe: 0 of 2 done, {NOT_KNOWN}, now sdpa case"
    assert third.startswith("probe: 1 of 2 done, ")
    assert third.endswith(" s or more left, now other case")


def test_a_bar_shows_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal, a bar shows the time left and the current step, and other lines stand above it."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("attnbench.api.progress.REDRAWN_EVERY_S", 0.0)
    monkeypatch.setenv("COLUMNS", "160")
    with show_progress() as progress:
        progress.begin("probe", 2)
        progress.now("own.py:X[1] case")
        progress.done("case")
        progress.now("own.py:X[2] case")
        write_line("own.py:X fails")
    _, err = capsys.readouterr()
    *_, bar, above, last = filter(None, re.split(r"\r\x1b\[K|\n", err))
    assert "1/2" in bar
    assert bar.endswith(" s or more left own.py:X[2] case")
    assert above == "own.py:X fails"
    assert last.startswith("probe")
