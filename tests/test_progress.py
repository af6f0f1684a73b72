"""Progress: what is left is told as far as it can be known, and no further."""

from collections.abc import Iterator

import pytest

from attnbench.cli import progress as module
from attnbench.cli.progress import NOT_KNOWN, Pace, describe_time_left, show_progress


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.s


def take(pace: Pace, clock: Clock, label: str, took_s: float) -> None:
    """Make one step."""
    clock.s += took_s
    pace.done(label)


# Seconds of the cases of a round, in ascending order of length.
ROUND = {"8": 1.0, "16": 4.0, "32": 16.0}


def started(rounds: int) -> tuple[Pace, Clock]:
    """Pace of so many rounds, before the first step."""
    clock = Clock()
    pace = Pace(clock)
    pace.begin(rounds * len(ROUND))
    return pace, clock


def test_nothing_is_known_before_the_first_step() -> None:
    """No number is made up."""
    pace, clock = started(2)
    assert pace.estimate_left_s() is None
    clock.s += 100
    assert describe_time_left(pace.estimate_left_s()) == NOT_KNOWN


def test_in_the_first_round_there_is_no_most() -> None:
    """What was seen is the quickest part: the rest takes as long or longer."""
    pace, clock = started(2)
    take(pace, clock, "8", 1)
    take(pace, clock, "16", 4)
    assert pace.estimate_left_s() == (4 * 2.5, None)
    assert describe_time_left(pace.estimate_left_s()) == "10 s or more left"


def test_a_round_tells_what_the_next_ones_take() -> None:
    """A step that is left takes what the same step took before, not the mean of all."""
    pace, clock = started(3)
    for label, took_s in ROUND.items():
        take(pace, clock, label, took_s)
    take(pace, clock, "8", 1)
    assert pace.estimate_left_s() == (4 + 16 + 21, 4 + 16 + 21)
    take(pace, clock, "16", 4)
    assert pace.estimate_left_s() == (16 + 21, 16 + 21)
    assert describe_time_left(pace.estimate_left_s()) == "about 37 s left"


def test_unlike_rounds_give_a_range() -> None:
    """Least and most are those of each step in the rounds before."""
    pace, clock = started(3)
    for factor in (1, 3):
        for label, took_s in ROUND.items():
            take(pace, clock, label, factor * took_s)
    assert pace.estimate_left_s() == (21, 63)
    assert describe_time_left(pace.estimate_left_s()) == "21 s to 63 s left"


def test_a_step_that_takes_longer_takes_nothing_from_the_others() -> None:
    """The time that has passed in a step counts for that step alone."""
    pace, clock = started(3)
    for label, took_s in ROUND.items():
        take(pace, clock, label, took_s)
    take(pace, clock, "8", 1)
    clock.s += 3
    assert pace.estimate_left_s() == (1 + 16 + 21, 1 + 16 + 21)
    clock.s += 300
    assert pace.estimate_left_s() == (16 + 21, 16 + 21)


def test_steps_abreast_share_the_time() -> None:
    """Two that are done at once, after twice the time, took as long as one after the other."""
    clock = Clock()
    pace = Pace(clock)
    pace.begin(8, parallel=2)
    for _ in range(3):
        clock.s += 2
        pace.done("8")
        pace.done("8")
    assert pace.estimate_left_s() == (2, 2)


def test_steps_that_were_done_before_say_nothing() -> None:
    """A run that goes on counts them, and does not take the others to be as quick."""
    pace, clock = started(3)
    for _ in range(3):
        pace.done()
    assert pace.estimate_left_s() is None
    take(pace, clock, "8", 1)
    assert pace.estimate_left_s() == (5, None)


def test_at_the_end_nothing_is_left() -> None:
    """All steps made are 0 s."""
    pace, clock = started(1)
    for label, took_s in ROUND.items():
        take(pace, clock, label, took_s)
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
def test_what_is_left_in_words(left_s: tuple[float, float | None] | None, words: str) -> None:
    """Seconds, minutes or hours; one number where both ends are close."""
    assert describe_time_left(left_s) == words


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A plain line for every step."""
    monkeypatch.setattr(module, "PLAIN_EVERY_S", 0.0)
    return


@pytest.mark.usefixtures("hurried")
def test_plain_lines_say_what_is_done_left_and_now(capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no terminal each line stands alone, on standard error."""
    with show_progress() as steps:
        steps.begin("probe", 2)
        steps.now("sdpa case")
        steps.done("case")
        steps.now("other case")
        steps.done("case")
    out, err = capsys.readouterr()
    assert out == ""
    first, second, third = err.splitlines()
    assert first == "probe: 2 steps"
    assert second == f"probe: 0 of 2 done, {NOT_KNOWN}, now sdpa case"
    assert third.startswith("probe: 1 of 2 done, ")
    assert third.endswith(" s or more left, now other case")


def test_a_bar_says_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal the bar holds the words, and names with brackets are no markup."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "160")
    with show_progress() as steps:
        steps.begin("probe", 2)
        steps.now("own.py:X[1] case")
        steps.done("case")
        steps.now("own.py:X[2] case")
    _, err = capsys.readouterr()
    assert "or more left" in err
    assert "own.py:X[2] case" in err
