"""Cases and their ids; ``Case.parse`` rebuilds a case from nothing but its id.

A case is one problem of one operator. An operator describes its problems by a frozen dataclass derived from
``Problem``, whose fields are declared with ``size``, ``flag`` and ``amount``. ``Problem`` then parses and formats the
part of an id that describes the problem.
"""

from attnbench.cases.call_modes import (
    CALL_MODES,
    COMPILED_MODES,
    MODES,
    CallMode,
    Compiler,
    Mode,
)
from attnbench.cases.case import Case
from attnbench.cases.case_id import CaseId
from attnbench.cases.case_list import LEVELS, NESTED, Level, digest, shard
from attnbench.cases.dtypes import DTYPES, NARROW_DTYPES, NUMBER_FORMATS, Dtype, Precision
from attnbench.cases.problem import Problem, amount, flag, size
from attnbench.cases.shape import Shape

__all__ = [
    "CALL_MODES",
    "COMPILED_MODES",
    "DTYPES",
    "LEVELS",
    "MODES",
    "NARROW_DTYPES",
    "NESTED",
    "NUMBER_FORMATS",
    "CallMode",
    "Case",
    "CaseId",
    "Compiler",
    "Dtype",
    "Level",
    "Mode",
    "Precision",
    "Problem",
    "Shape",
    "amount",
    "digest",
    "flag",
    "shard",
    "size",
]
