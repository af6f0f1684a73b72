"""The deaths of one implementation's processes, and what is left out because of them: a check, a case, or all."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from attnbench.records.outcome_facts import Death, DeathScope, TooManyDeaths

__all__ = ["MEASURING", "TOGETHER", "Deaths"]

# Counted in the way of a check: all checks of a case in one request, and a request to measure a pass.
TOGETHER, MEASURING = "*", "measure"
# Deaths in a row after which nothing more is asked: the first number where nothing was answered before, the second
# number after an answer. An implementation that was answered before is left out late, because the list ``core`` has 31
# neighbouring cases with nothing to attend to. A case is left out early: each further check may take the whole time
# limit.
LIMITS: dict[DeathScope, tuple[int, int]] = {"check": (3, 10), "case": (2, 3), "implementation": (3, 40)}


@dataclass(slots=True)
class _Row:
    """Deaths since the last answer, and whether there was an answer."""

    deaths: int = 0
    last: Death | None = None
    answered: bool = False

    def add(self, death: Death | None) -> None:
        """Add a death; None: an answer."""
        self.deaths = self.deaths + 1 if death else 0
        self.last = death
        self.answered |= death is None

    def find_reason(self, of: DeathScope, most: int | None = None) -> TooManyDeaths | None:
        """Return why nothing more is asked; ``most`` takes the place of the number in ``LIMITS``."""
        if self.last is None or self.deaths < (most or LIMITS[of][self.answered]):
            return None
        return TooManyDeaths(count=self.deaths, last=self.last, of=of)


@dataclass(slots=True)
class Deaths:
    """Counts deaths in a row: of a check over the cases, in a case over its checks, and of cases without any answer.

    If no check of a case was answered, its deaths count against the implementation, and not against the checks.
    """

    # Whether there was any death.
    any: bool = False
    _checks: defaultdict[str, _Row] = field(default_factory=lambda: defaultdict(_Row))
    _cases: _Row = field(default_factory=_Row)
    # The case that is asked now, its deaths, and the last answer of each of its checks.
    _case: str | None = None
    _in_case: _Row = field(default_factory=_Row)
    _asked: dict[str, Death | None] = field(default_factory=dict)

    def add(self, case: str | None, checks: Sequence[str], death: Death | None) -> None:
        """Add the end of a request for ``checks`` of a case: a death, or an answer (None).

        A request without a case, such as one for the rates of a device, counts as a case of its own.
        """
        self._begin(case)
        self.any |= death is not None
        if case is None:
            self._cases.add(death)
            return
        self._in_case.add(death)
        for check in checks:
            self._asked[check] = death

    def find_reason(self, case: str | None, checks: Sequence[str]) -> TooManyDeaths | None:
        """Return why a request for ``checks`` of a case is not sent; None if it may be sent."""
        self._begin(case)
        # After a case without any answer, a single death shows that this case is of the same kind.
        most = 1 if self._cases.deaths and not self._in_case.answered else None
        reasons = [self._cases.find_reason("implementation"), self._in_case.find_reason("case", most)]
        reasons += [self._checks[check].find_reason("check") for check in checks]
        return next((reason for reason in reasons if reason), None)

    def forbid_together(self, case: str) -> bool:
        """Whether the checks of a case are asked one by one from the beginning.

        They are after a case without any answer, and after three cases in which only all checks together crashed.
        """
        self._begin(case)
        return self._cases.deaths > 0 or self._checks[TOGETHER].find_reason("check") is not None

    def _begin(self, case: str | None) -> None:
        """Where ``case`` is not the case that was asked last, count what was asked about the latter."""
        if case == self._case:
            return
        if self._in_case.answered:
            self._cases.add(None)
            for check, death in self._asked.items():
                self._checks[check].add(death)
        elif self._in_case.last:
            self._cases.add(self._in_case.last)
        self._case, self._in_case, self._asked = case, _Row(), {}
