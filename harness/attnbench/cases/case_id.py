"""The id of a case, ``operator/sizes/flags/mask=…/regime=…/seed=…/dtype/device/mode``, divided into its parts.

Requests, dictionary keys and stored records hold the id as text. ``CaseId`` reads that text without knowing the
operator: stored runs may come from a machine with other operators. ``Case.parse`` needs the operator, since it also
reads the problem.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

__all__ = ["CaseId"]

# A case id has ``PARTS`` parts, ``PROBLEM_PARTS`` of which describe the problem.
PARTS, PROBLEM_PARTS = 9, 5
# Matches a size that is a length: a number of queries, such as L128, or a number of keys, such as S128.
LENGTH = re.compile(r"[LS](\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseId:
    """The parts of a case id; ``dataclasses.replace`` changes a part, and ``str`` joins the parts again."""

    operator: str
    # The parts that each operator defines: ``sizes/flags/mask=…/regime=…/seed=…``.
    problem: str
    dtype: str
    device: str
    mode: str

    @classmethod
    # A report reads the id of a case once for each row of each table.
    @lru_cache(maxsize=1 << 16)
    def parse(cls, text: str) -> Self:
        """Divide an id into its parts.

        Raises: ValueError if the text does not have ``PARTS`` parts.
        """
        parts = text.split("/")
        if len(parts) != PARTS:
            raise ValueError(
                f"a case id has {PARTS} parts 'operator/sizes/flags/mask=…/regime=…/seed=…/dtype/device/mode', "
                f"got {len(parts)}: {text!r}"
            )
        operator, problem, (dtype, device, mode) = parts[0], parts[1 : 1 + PROBLEM_PARTS], parts[1 + PROBLEM_PARTS :]
        return cls(operator=operator, problem="/".join(problem), dtype=dtype, device=device, mode=mode)

    def __str__(self) -> str:
        return f"{self.operator}/{self.problem}/{self.dtype}/{self.device}/{self.mode}"

    @property
    def length(self) -> int:
        """The larger of the numbers of queries (L) and keys (S); 0 if the problem has neither.

        In a decoding step, the number of keys is larger.
        """
        return _find_length(self.problem)

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of queries (L) and keys (S); 0 for one that the problem lacks."""
        return _find_lengths(self.problem)

    @property
    def form(self) -> str:
        """Operator and problem without the numbers of queries (L) and keys (S).

        Two cases with the same form, dtype, device and mode differ only in length.
        """
        sizes, rest = _split_problem(self.problem)
        kept = ".".join(size for size in sizes if not LENGTH.fullmatch(size))
        return f"{self.operator}/{kept}/{rest}"


def _split_problem(problem: str) -> tuple[list[str], str]:
    """Return the sizes, such as ``["B2", "L128", "S128"]``, and the other parts of a problem."""
    sizes, _, rest = problem.partition("/")
    return sizes.split("."), rest


# A report reads the length of a problem once for each result.
@lru_cache(maxsize=1 << 16)
def _find_length(problem: str) -> int:
    sizes, _ = _split_problem(problem)
    return max((int(found[1]) for size in sizes if (found := LENGTH.fullmatch(size))), default=0)


@lru_cache(maxsize=1 << 16)
def _find_lengths(problem: str) -> tuple[int, int]:
    sizes, _ = _split_problem(problem)
    found = {size[0]: int(size[1:]) for size in sizes if LENGTH.fullmatch(size)}
    return found.get("L", 0), found.get("S", 0)
