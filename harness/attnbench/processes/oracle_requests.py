"""The requests that the oracle worker answers, and its replies."""

from typing import Generic, TypeVar

import msgspec

from attnbench.cases import Level, Shape
from attnbench.interface import Policies, Work
from attnbench.processes.request import Fault, Request
from attnbench.processes.script_subject import Subject
from attnbench.records.facts import Fact
from attnbench.records.types import Finding

__all__ = [
    "CheckCase",
    "ComputeExpected",
    "DescribeCases",
    "Description",
    "DrawInputs",
    "Evaluate",
    "FindIdle",
    "GetListVersion",
    "Libraries",
    "ListPool",
    "ListProfile",
    "ListShapes",
    "ListSuite",
    "OracleRequest",
    "Script",
    "StartOracle",
    "Verified",
    "VerifyFile",
    "WriteScript",
]

Reply = TypeVar("Reply", covariant=True)


class OracleRequest(Request[Reply], Generic[Reply], frozen=True, kw_only=True):
    """A request that the oracle worker answers after ``StartOracle``."""


class Libraries(msgspec.Struct, frozen=True, kw_only=True):
    """The oracle worker's number of threads, and its version of torch."""

    threads: int
    torch: str


class StartOracle(Request[Libraries], frozen=True, kw_only=True):
    """Asks the oracle worker to start. This is the first request.

    ``folder`` is the folder for the files of inputs. ``cache_folder`` is the folder of the cache of expected values,
    which outlives the run; None: no such cache is used.
    """

    folder: str
    cache_folder: str | None


class ListSuite(OracleRequest[list[str]], frozen=True, kw_only=True):
    """Asks for the case ids of a suite, such as ``quick``."""

    operator: str
    level: Level


class ListPool(OracleRequest[list[str]], frozen=True, kw_only=True):
    """Asks for the ids of the cases on a device from which a suite is supplemented."""

    operator: str
    level: Level
    device: str


class GetListVersion(OracleRequest[str], frozen=True, kw_only=True):
    """Asks for the version of an operator's case lists."""

    operator: str


class ListProfile(OracleRequest[list[str]], frozen=True, kw_only=True):
    """Asks for the case ids of the suite ``perf``, with the sequence lengths in ``lengths``."""

    operator: str
    lengths: list[int]


class ListShapes(OracleRequest[list[str] | Fault], frozen=True, kw_only=True):
    """Asks for the case ids of the suite ``perf`` with these shapes, in these call modes.

    A ``Fault`` says which shape does not exist, or needs more memory than this machine has.
    """

    operator: str
    shapes: list[Shape]
    modes: list[str]


class CheckCase(OracleRequest[Fault | None], frozen=True, kw_only=True):
    """Asks whether ``case`` is a valid case id. The reply is None if it is valid, else a ``Fault`` with the reason."""

    case: str


class Script(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The source code of a standalone program that runs one case."""

    text: str


class WriteScript(OracleRequest[Script | Fault], frozen=True, kw_only=True):
    """Asks for a standalone program that calls an implementation on a case.

    ``beside`` is the path of a file for the tensors of the program; None: the program contains the tensors.
    """

    case: str
    subject: Subject
    beside: str | None


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The checks that apply to a case, what this machine lacks to run the case, and the work of the case.

    ``missing`` is None if the machine lacks nothing.
    """

    checks: tuple[str, ...]
    missing: Fact | None
    work: Work
    # Number of runs of the rounding model that the expected values need.
    model_runs: int


class DescribeCases(OracleRequest[list[Description]], frozen=True, kw_only=True):
    """Asks for a ``Description`` of each case."""

    cases: list[str]


class FindIdle(OracleRequest[list[bool]], frozen=True, kw_only=True):
    """Asks for each triple of patterns (checks, cases, excluded cases) whether it matches no possible finding.

    The reply is True for a triple that matches none. A finding is possible on ``cases`` and on the cases of every
    suite, in every dtype and on every device.
    """

    patterns: list[tuple[str, str, str]]
    cases: list[str]


class DrawInputs(OracleRequest[str], frozen=True, kw_only=True):
    """Asks for the path of the file with the inputs of a case; the inputs are drawn at the first request."""

    case: str


class ComputeExpected(OracleRequest[None], frozen=True, kw_only=True):
    """Asks the oracle worker to compute the expected values of a case while a candidate worker is running the case."""

    case: str
    policies: Policies


class Verified(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What is wrong with the output in a file; nothing if there are no facts."""

    facts: tuple[Fact, ...]


class VerifyFile(OracleRequest[Verified | Fault], frozen=True, kw_only=True):
    """Asks the oracle worker to judge the output that a file has, with the arguments of its call."""

    path: str


class Evaluate(OracleRequest[dict[str, Finding]], frozen=True, kw_only=True):
    """Asks for one finding per check, from the files in which a candidate worker stored the observations."""

    implementation: str
    case: str
    checks: list[str]
    # Paths of the files with the observations.
    observations: list[str]
    policies: Policies
