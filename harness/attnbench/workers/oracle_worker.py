"""The process that knows what is right: cases, inputs, oracle, budgets and the final comparison.

It never loads a plug-in, so nothing that an implementation does to torch can reach what judges it.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase, translate
from functools import cache
from pathlib import Path
from typing import Any

import torch

from attnbench.cases import DEVICES, DTYPES, LEVELS, Case, Level
from attnbench.checks.catalogue import check_function, checks, checks_of
from attnbench.checks.evaluation.verdict import evaluate
from attnbench.checks.observations import restored
from attnbench.checks.requirement import applies
from attnbench.interface import Operator, Policies
from attnbench.oracle import tensor_file
from attnbench.oracle.cache import Archive
from attnbench.oracle.expected import CaseOracle
from attnbench.plugins.registry import load_operator, operators, problems
from attnbench.processes.rpc import serve
from attnbench.records.environment import memory_available_bytes
from attnbench.records.types import Finding

__all__ = ["OracleWorker"]

# Memory of the oracle in float64 for each query-key pair, forward alone and with gradients; measured as 45 and 61
# bytes at 1024 keys.
BYTES_A_PAIR = (64, 96)


class OracleWorker:
    """Answers what the runner asks; ``folder`` holds the inputs that workers read."""

    def __init__(self, folder: Path) -> None:
        self._archive = Archive(folder)
        self._problems = problems()
        # Finding an entry point reads the metadata of everything that is installed: 8 ms.
        self._operator = cache(load_operator)

    def handlers(self) -> dict[str, Any]:
        """Requests by name."""
        return {
            "suite": self.suite,
            "version": self.version,
            "profile": self.profile,
            "parse": self.parse,
            "script": self.script,
            "describe": self.describe,
            "idle": self.idle,
            "inputs": self.inputs,
            "expect": self.expect,
            "judge": self.judge,
        }

    def suite(self, *, operator: str, level: Level) -> list[str]:
        """Case ids of a level."""
        return [case.id for case in self._operator(operator).suite(level)]

    def version(self, *, operator: str) -> str:
        """Version of an operator's case lists."""
        return self._operator(operator).list_version

    def profile(self, *, operator: str, lengths: list[int]) -> list[str]:
        """Case ids of the suite ``perf`` at these lengths."""
        return [case.id for case in self._operator(operator).profile(lengths)]

    def parse(self, *, case: str) -> dict[str, str]:
        """Why a text is no case id, or nothing."""
        try:
            parsed, operator = self._parsed(case)
            operator.work(parsed)
        except ValueError as error:
            return {"fault": str(error)}
        return {}

    def script(self, *, case: str, load: str) -> dict[str, str]:
        """The case as a standalone program, or why there is none."""
        parsed, operator = self._parsed(case)
        try:
            return {"script": operator.script(parsed, load)}
        except ValueError as error:
            return {"fault": str(error)}

    def describe(self, *, cases: list[str]) -> list[dict[str, Any]]:
        """Of each case the checks that apply, the work it needs, and what this machine lacks for it."""
        free = memory_available_bytes()
        return [self._described(*self._parsed(case), free) for case in cases]

    def _described(self, case: Case, operator: Operator, free: int) -> dict[str, Any]:
        lacking = operator.missing(case)
        if case.device == "cuda" and not torch.cuda.is_available():
            lacking = "no CUDA device here: leave out --device cuda and --suite gpu, or run where there is one"
        work = operator.work(case)
        lacking = lacking or _too_large(work.pairs, case, free)
        applicable = [name for name in checks_of(operator) if applies(check_function(name), case, operator)]
        return {"checks": applicable, "missing": lacking, "work": asdict(work)}

    def idle(self, *, patterns: list[tuple[str, str, str]], cases: list[str]) -> list[bool]:
        """Whether patterns of a check, of cases and of those left out speak of no finding that there could be.

        There could be those of ``cases``, and of any case of any level, in any dtype and on any device.
        """
        listed = [*cases, *self._listed()]
        return [not self._speaks(check, case, unless.split(), listed) for check, case, unless in patterns]

    def _speaks(self, check: str, pattern: str, unless: Sequence[str], cases: Iterable[str]) -> bool:
        chosen = [name for name in checks() if fnmatchcase(name, check)]
        matches = re.compile(translate(pattern)).match
        left_out = [re.compile(translate(one)).match for one in unless]
        named = (variant for case in cases for variant in _variants(case) if matches(variant))
        meant = (self._parsed(case) for case in named if not any(leaves(case) for leaves in left_out))
        return any(_applies(name, *parsed) for parsed in meant for name in chosen)

    def _listed(self) -> Iterator[str]:
        for operator in operators():
            for level in LEVELS:
                yield from self.suite(operator=operator, level=level)

    def inputs(self, *, case: str) -> str:
        """Path of the case's inputs, drawn at the first request."""
        return str(self._archive.inputs(*self._parsed(case)))

    def expect(self, *, case: str, policies: dict[str, Any]) -> None:
        """Compute what is right beforehand, while a worker is busy with the case."""
        self._known(case, Policies(**policies))

    def judge(
        self, *, case: str, checks: list[str], observations: list[str], policies: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Finding of each check from the files of claims that a worker stored."""
        observed: dict[str, Any] = {}
        for path in observations:
            try:
                observed |= tensor_file.read(Path(path))
            except Exception as error:  # noqa: BLE001  # what a plug-in handed over may be anything; it becomes a record
                return {check: asdict(_unjudged(check, error)) for check in checks}
        found = self.findings(case, {check: observed.get(check) for check in checks}, Policies(**policies))
        return {check: asdict(finding) for check, finding in found.items()}

    def findings(
        self, case: str, observations: Mapping[str, Any], policies: Policies, *, explain: bool = True
    ) -> dict[str, Finding]:
        """Finding of each check from its claims in plain containers."""
        known = self._known(case, policies)
        return {
            check: _finding(check, plain, known, policies, explain=explain) for check, plain in observations.items()
        }

    def _parsed(self, case: str) -> tuple[Case, Operator]:
        parsed = Case.parse(case, self._problems)
        return parsed, self._operator(parsed.operator)

    def _known(self, case: str, policies: Policies) -> CaseOracle:
        parsed, operator = self._parsed(case)
        return self._archive.known(parsed, operator, policies.precision(parsed.dtype), policies.padded_queries)


def _applies(check: str, case: Case, operator: Operator) -> bool:
    return check in checks_of(operator) and applies(check_function(check), case, operator)


def _finding(check: str, plain: Any, known: CaseOracle, policies: Policies, *, explain: bool) -> Finding:
    try:
        return evaluate(check, checks()[check].requirement, restored(plain), known, policies, explain=explain)
    except Exception as error:  # noqa: BLE001  # what a plug-in handed over may be anything; it becomes a record
        return _unjudged(check, error)


def _unjudged(check: str, error: Exception) -> Finding:
    said = " ".join(str(error).split())[:400]
    return Finding(check=check, status="error", reason=f"cannot be judged: {type(error).__name__}: {said}")


def _variants(case: str) -> Sequence[str]:
    """The case in every dtype and on every device; itself first."""
    head, _, _, mode = case.rsplit("/", 3)
    others = (f"{head}/{dtype}/{device}/{mode}" for dtype in DTYPES for device in DEVICES)
    return list(dict.fromkeys((case, *others)))


def _too_large(pairs: int, case: Case, free: int) -> str | None:
    """Why the oracle of a case cannot be computed here, or None; predicted, so that nothing has to die for it."""
    need = pairs * BYTES_A_PAIR[case.differentiates]
    if not free or need <= free:
        return None
    return f"its oracle needs about {need / 2**30:.3g} GiB and {free / 2**30:.3g} GiB are free: take a shorter length"


def main() -> None:
    """Serve on the descriptor given as first argument, with the folder given by the first request."""

    def start(*, folder: str) -> dict[str, Any]:
        handlers.update(OracleWorker(Path(folder)).handlers())
        return {"threads": torch.get_num_threads(), "torch": torch.__version__}

    handlers: dict[str, Any] = {"start": start}
    serve(handlers, int(sys.argv[1]))


if __name__ == "__main__":
    main()
