"""The oracle worker: a process that draws inputs, computes expected values and evaluates observations.

It never loads an implementation, so no change that an implementation makes to torch can affect the evaluation.
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
from attnbench.checks.catalogue import load_check_function, read_checks, read_operator_checks
from attnbench.checks.evaluation.verdict import evaluate
from attnbench.checks.observations import deserialize
from attnbench.checks.requirement import applies
from attnbench.interface import Operator, Policies
from attnbench.oracle import tensor_file
from attnbench.oracle.cache import OracleCache
from attnbench.oracle.expected import CaseOracle
from attnbench.plugins.form import Form
from attnbench.plugins.registry import list_operators, load_operator, load_problem_types
from attnbench.processes.rpc import serve
from attnbench.records.environment import read_available_memory_bytes
from attnbench.records.types import Finding
from attnbench.workers.script import Subject, write_script

__all__ = ["OracleWorker"]

# Bytes that the float64 oracle needs per query-key pair: forward only, and with gradients. Measured at 1024 keys: 45
# and 61 bytes.
BYTES_PER_PAIR = (64, 96)


class OracleWorker:
    """Answers the runner's requests about cases, inputs and findings; ``folder`` is where the inputs are stored."""

    def __init__(self, folder: Path) -> None:
        self._oracle_cache = OracleCache(folder)
        self._problems = load_problem_types()
        # Looking up an entry point reads the metadata of all installed packages: 8 ms.
        self._load_operator = cache(load_operator)

    def handlers(self) -> dict[str, Any]:
        """Functions that answer the requests, by name of the request."""
        return {
            "suite": self.list_suite,
            "version": self.get_list_version,
            "profile": self.list_profile,
            "parse": self.parse,
            "script": self.write_script,
            "describe": self.describe,
            "idle": self.find_idle,
            "inputs": self.draw_inputs,
            "expect": self.expect,
            "judge": self.evaluate,
        }

    def list_suite(self, *, operator: str, level: Level) -> list[str]:
        """Return the case ids of a level."""
        return [case.id for case in self._load_operator(operator).suite(level)]

    def get_list_version(self, *, operator: str) -> str:
        """Return the version of an operator's case lists."""
        return self._load_operator(operator).list_version

    def list_profile(self, *, operator: str, lengths: list[int]) -> list[str]:
        """Return the case ids of the suite ``perf`` at these lengths."""
        return [case.id for case in self._load_operator(operator).profile(lengths)]

    def parse(self, *, case: str) -> dict[str, str]:
        """Return as ``fault`` why a text is not a case id; empty if the text is a case id."""
        try:
            parsed, operator = self._parse_case(case)
            operator.work(parsed)
        except ValueError as error:
            return {"fault": str(error)}
        return {}

    def write_script(
        self, *, case: str, subject: dict[str, Any], policies: dict[str, Any], beside: str | None
    ) -> dict[str, str]:
        """Return the call of an implementation on a case as a standalone program, or the reason why there is none."""
        parsed, operator = self._parse_case(case)
        free = read_available_memory_bytes()
        missing = operator.missing(parsed) or _explain_too_large(operator.work(parsed).pairs, parsed, free)
        if missing:
            return {"fault": missing}
        declared = Policies(**policies)
        named = Subject(**subject | {"form": Form(**subject["form"]), "policies": declared})
        case_oracle = self._get_case_oracle(case, declared)
        try:
            return {"script": write_script(case_oracle, named, Path(beside) if beside else None)}
        except (ValueError, OSError) as error:
            return {"fault": str(error)}

    def describe(self, *, cases: list[str]) -> list[dict[str, Any]]:
        """For each case, return the applicable checks, the work, and what is missing on this machine to run it."""
        free = read_available_memory_bytes()
        return [self._describe_case(*self._parse_case(case), free) for case in cases]

    def _describe_case(self, case: Case, operator: Operator, free: int) -> dict[str, Any]:
        missing = operator.missing(case)
        if case.device == "cuda" and not torch.cuda.is_available():
            missing = "no CUDA device here: leave out --device cuda and --suite gpu, or run on a machine with one"
        work = operator.work(case)
        missing = missing or _explain_too_large(work.pairs, case, free)
        applicable = [
            name for name in read_operator_checks(operator) if applies(load_check_function(name), case, operator)
        ]
        return {"checks": applicable, "missing": missing, "work": asdict(work)}

    def find_idle(self, *, patterns: list[tuple[str, str, str]], cases: list[str]) -> list[bool]:
        """For each triple of patterns (checks, cases, excluded cases), return True if it matches no possible finding.

        A finding is possible on ``cases`` and on the cases of every level, in every dtype and on every device.
        """
        listed = [*cases, *self._list_cases()]
        return [not self._matches_finding(check, case, unless.split(), listed) for check, case, unless in patterns]

    def _matches_finding(self, check: str, pattern: str, unless: Sequence[str], cases: Iterable[str]) -> bool:
        matching_checks = [name for name in read_checks() if fnmatchcase(name, check)]
        matches = re.compile(translate(pattern)).match
        exclusions = [re.compile(translate(one)).match for one in unless]
        matching_cases = (variant for case in cases for variant in _list_variants(case) if matches(variant))
        parsed_cases = (self._parse_case(case) for case in matching_cases if not any(out(case) for out in exclusions))
        return any(_applies_to_case(name, *parsed) for parsed in parsed_cases for name in matching_checks)

    def _list_cases(self) -> Iterator[str]:
        for operator in list_operators():
            for level in LEVELS:
                yield from self.list_suite(operator=operator, level=level)

    def draw_inputs(self, *, case: str) -> str:
        """Return the path of the file with the case's inputs; they are drawn at the first request."""
        return str(self._oracle_cache.get_inputs_file(*self._parse_case(case)))

    def expect(self, *, case: str, policies: dict[str, Any]) -> None:
        """Compute the expected values in advance, while a candidate worker is running the case."""
        self._get_case_oracle(case, Policies(**policies))

    def evaluate(
        self, *, case: str, checks: list[str], observations: list[str], policies: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Evaluate the observations in the files that a candidate worker stored; return one finding per check."""
        observed: dict[str, Any] = {}
        for path in observations:
            try:
                observed |= tensor_file.read(Path(path))
            except Exception as error:  # noqa: BLE001  # an implementation may store anything; the error becomes a finding
                return {check: asdict(_make_error_finding(check, error)) for check in checks}
        found = self.evaluate_observations(case, {check: observed.get(check) for check in checks}, Policies(**policies))
        return {check: asdict(finding) for check, finding in found.items()}

    def evaluate_observations(
        self, case: str, observations: Mapping[str, Any], policies: Policies, *, explain: bool = True
    ) -> dict[str, Finding]:
        """Evaluate each check's observations, given in plain containers; return one finding per check."""
        case_oracle = self._get_case_oracle(case, policies)
        return {
            check: _evaluate_one(check, plain, case_oracle, policies, explain=explain)
            for check, plain in observations.items()
        }

    def _parse_case(self, case: str) -> tuple[Case, Operator]:
        parsed = Case.parse(case, self._problems)
        return parsed, self._load_operator(parsed.operator)

    def _get_case_oracle(self, case: str, policies: Policies) -> CaseOracle:
        parsed, operator = self._parse_case(case)
        return self._oracle_cache.get_case_oracle(
            parsed, operator, policies.precision(parsed.dtype), policies.padded_queries
        )


def _applies_to_case(check: str, case: Case, operator: Operator) -> bool:
    return check in read_operator_checks(operator) and applies(load_check_function(check), case, operator)


def _evaluate_one(check: str, plain: Any, case_oracle: CaseOracle, policies: Policies, *, explain: bool) -> Finding:
    try:
        return evaluate(
            check, read_checks()[check].requirement, deserialize(plain), case_oracle, policies, explain=explain
        )
    except Exception as error:  # noqa: BLE001  # an implementation may store anything; the error becomes a finding
        return _make_error_finding(check, error)


def _make_error_finding(check: str, error: Exception) -> Finding:
    text = " ".join(str(error).split())[:400]
    return Finding(check=check, status="error", reason=f"cannot be evaluated: {type(error).__name__}: {text}")


def _list_variants(case: str) -> Sequence[str]:
    """Return the case itself, followed by the same case in every dtype and on every device."""
    head, _, _, mode = case.rsplit("/", 3)
    others = (f"{head}/{dtype}/{device}/{mode}" for dtype in DTYPES for device in DEVICES)
    return list(dict.fromkeys((case, *others)))


def _explain_too_large(pairs: int, case: Case, free: int) -> str | None:
    """Explain that this machine has less free memory than the oracle of a case is predicted to need; else None."""
    need = pairs * BYTES_PER_PAIR[case.differentiates]
    if not free or need <= free:
        return None
    return f"its oracle needs about {need / 2**30:.3g} GiB and {free / 2**30:.3g} GiB are free: use a shorter length"


def main() -> None:
    """Answer the requests on the file descriptor that is the first argument; the first request names the folder."""

    def start(*, folder: str) -> dict[str, Any]:
        handlers.update(OracleWorker(Path(folder)).handlers())
        return {"threads": torch.get_num_threads(), "torch": torch.__version__}

    handlers: dict[str, Any] = {"start": start}
    serve(handlers, int(sys.argv[1]))


if __name__ == "__main__":
    main()
