"""The case lists of an operator: files with a case id on each line, which the operator's ``generate_cases`` writes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.cases import NESTED, Case, Level, Problem
from attnbench.interface import Operator

__all__ = ["CaseLists", "ListedOperator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseLists:
    """The case lists of one operator, in a folder."""

    operator: str
    problem: type[Problem]
    folder: Path
    # Increased with every change of a list. Results of different versions are not comparable.
    version: str
    # Names of the case lists that are maintained by hand, by the level to which the list belongs. ``found`` has cases
    # that fuzzing found, and ``shown`` has cases on which mutants fail.
    kept: Mapping[Level, str]

    def load_suite(self, level: Level) -> Sequence[Case]:
        """Return the cases of a suite, without duplicates.

        Each of the suites ``quick``, ``core``, ``full`` and ``slow`` contains the cases of the suite before it.
        """
        levels = NESTED[: NESTED.index(level) + 1] if level in NESTED else (level,)
        names = [name for one in levels for name in (one, self.kept.get(one)) if name]
        return self._parse(dict.fromkeys(line for name in names for line in self._read_ids(name)))

    def load_pool(self) -> Sequence[Case]:
        """Return the cases from which the suites are supplemented, the one with the fewest query-key pairs first."""
        return self._parse(self._read_ids("pool"))

    def _parse(self, ids: Iterable[str]) -> list[Case]:
        return [Case.parse(case_id, {self.operator: self.problem}) for case_id in ids]

    def _read_ids(self, name: str) -> list[str]:
        """Return the case ids in the file of a list; a list without a file is empty."""
        place = self.folder / f"{name}.txt"
        lines = place.read_text(encoding="utf-8").splitlines() if place.exists() else []
        return [line for line in lines if line and not line.startswith("#")]

    def write(self, generated: Mapping[Level, Iterable[Case]], pool: Iterable[Case]) -> None:
        """Write the case list of every level, and the pool; a level leaves out the cases of the levels before it."""
        written: set[str] = set()
        for level, cases in generated.items():
            earlier = written if level in NESTED else set()
            ids = [case_id for case_id in dict.fromkeys(case.id for case in cases) if case_id not in earlier]
            written |= set(ids)
            self._write_ids(level, f"level {level}", ids)
        ordered = sorted(pool, key=lambda case: int(case.problem.pairs))
        self._write_ids("pool", "pool", dict.fromkeys(case.id for case in ordered))

    def _write_ids(self, name: str, kind: str, ids: Iterable[str]) -> None:
        text = "\n".join([f"# Cases of the {kind}, list {self.version}; made by generate_cases.py.", *ids])
        (self.folder / f"{name}.txt").write_text(text + "\n", encoding="utf-8")


class ListedOperator(Operator):
    """An operator with case lists, whose rounding is modelled by noise at every step of its formula."""

    lists: CaseLists

    def suite(self, level: Level) -> Sequence[Case]:
        """Return the cases of a suite, such as ``quick`` or ``full``."""
        return self.lists.load_suite(level)

    def pool(self, level: Level) -> Sequence[Case]:
        """Return the cases of the pool; for ``quick``, those of ``core`` follow."""
        return [*self.lists.load_pool(), *(super().pool(level) if level == "quick" else ())]

    def noise(self, roundoff: float, seed: int) -> Any:
        """Return the rounding noise that ``evaluate`` adds at every step of the formula."""
        from attnbench.operators.rounding import Noise

        return Noise(roundoff, seed)
