"""The answer to "what to use here": the implementation whose worst case against all others is smallest."""

from dataclasses import dataclass

from attnbench.analysis.stats import Estimate

__all__ = ["DECIDED", "Answer", "Rival"]

# Largest bound on regret with which an answer counts as decided: as many per cent as a speed verdict calls the same.
DECIDED = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """Another implementation that conforms and was timed in the same processes as the chosen one."""

    name: str
    # Time of the chosen implementation divided by the time of this one, with its simultaneous interval. None: too few
    # common processes for a bound.
    ratio: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to use for one timed call, with the bound on its regret.

    Regret: the time of the chosen implementation divided by the time of the fastest one, minus 1.
    """

    name: str
    # Upper bound on the regret: 0.006 says "at most 0.6 % behind any other". None: no other implementation that
    # conforms was timed.
    regret: float | None
    # The rival at which the bound is reached; empty without rivals.
    behind: str = ""
    # Time of the chosen implementation divided by the baseline's time; None if it is the baseline itself.
    ratio: Estimate | None = None
    rivals: tuple[Rival, ...] = ()
    # Number of processes that timed the call, and whether more of them would lower the bound.
    processes: int = 0
    more_would_help: bool = False

    @property
    def decided(self) -> bool:
        """Whether the bound is at most 1 %; an answer that is not decided is an answer all the same."""
        return self.regret is not None and self.regret <= DECIDED
