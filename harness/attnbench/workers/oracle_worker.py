"""The oracle worker: a process that draws inputs, computes expected values and evaluates observations.

It never loads an implementation, so no change that an implementation makes to torch can affect the evaluation.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase, translate
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from attnbench.cases import DTYPES, LEVELS, Case, CaseId, Shape
from attnbench.checks.catalogue import load_check_function, read_checks, read_operator_checks
from attnbench.checks.evaluation.causes import Causes
from attnbench.checks.evaluation.verdict import evaluate
from attnbench.checks.observations import deserialize
from attnbench.checks.requirement import applies
from attnbench.devices import get_device, list_device_names
from attnbench.interface import Operator, Policies
from attnbench.oracle import tensor_file
from attnbench.oracle.cache import OracleCache
from attnbench.oracle.disk_cache import CACHE_FAULT, DiskCache
from attnbench.oracle.error_budget import count_model_runs
from attnbench.oracle.expected import CaseOracle
from attnbench.plugins.registry import list_operators, load_operator, load_problem_types
from attnbench.processes.oracle_requests import (
    CheckCase,
    ComputeExpected,
    DescribeCases,
    Description,
    DrawInputs,
    Evaluate,
    FindIdle,
    GetListVersion,
    Libraries,
    ListPool,
    ListProfile,
    ListShapes,
    ListSuite,
    Script,
    StartOracle,
    Verified,
    VerifyFile,
    WriteScript,
)
from attnbench.processes.request import Fault, Handler
from attnbench.processes.rpc import serve
from attnbench.records.environment import read_available_memory_bytes
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import MissingData, TooLargeForMachine
from attnbench.records.types import Finding
from attnbench.records.value_facts import NotEvaluated
from attnbench.refusals import LacksDevice
from attnbench.words.findings import describe_fact
from attnbench.workers.script import write_script

__all__ = ["OracleWorker"]

# Memory that the float64 oracle is predicted to need, in bytes per query-key pair: 64 without gradients, and 96 with
# gradients. With 1024 keys, it was measured to need 45 bytes without gradients, and 61 bytes with gradients.
BYTES_PER_PAIR = (64, 96)


class OracleWorker:
    """Answers the runner's requests about cases, inputs and findings; files of inputs are stored in ``folder``.

    ``load`` returns the operator with a given name; studies of the harness itself pass another function.
    ``kept`` is the cache of expected values that later runs use again; None: there is no such cache.
    """

    def __init__(
        self, folder: Path, load: Callable[[str], Operator] = load_operator, *, kept: DiskCache | None = None
    ) -> None:
        self._oracle_cache = OracleCache(folder, kept=kept)
        self._problems = load_problem_types()
        # Cached, because each look-up of an entry point reads the metadata of all installed packages, which takes 8 ms.
        self._load_operator = cache(load)
        # The causes of failures, by name of the implementation.
        self._causes: defaultdict[str, Causes] = defaultdict(Causes)

    def handlers(self) -> list[Handler]:
        """Return the handlers of all requests that follow ``StartOracle``."""
        return [
            ListSuite.answered_by(self.list_suite),
            ListPool.answered_by(self.list_pool),
            GetListVersion.answered_by(self.get_list_version),
            ListProfile.answered_by(self.list_profile),
            ListShapes.answered_by(self.list_shapes),
            CheckCase.answered_by(self.check_case),
            WriteScript.answered_by(self.write_script),
            DescribeCases.answered_by(self.describe_cases),
            FindIdle.answered_by(self.find_idle),
            DrawInputs.answered_by(self.draw_inputs),
            ComputeExpected.answered_by(self.compute_expected),
            Evaluate.answered_by(self.evaluate),
            VerifyFile.answered_by(self.verify_file),
        ]

    def verify_file(self, request: VerifyFile) -> Verified | Fault:
        """Judge the output in a file; a fault says why the file cannot be judged."""
        # Imported here, because other runs do not need them.
        from attnbench.testing.array_file import read_call_file
        from attnbench.testing.assertions import judge_call

        try:
            return Verified(facts=judge_call(**read_call_file(Path(request.path))))
        except (ValueError, TypeError) as error:
            return Fault(reason=str(error))

    def list_suite(self, request: ListSuite) -> list[str]:
        """Return the case ids of a suite, such as ``quick``."""
        return [case.id for case in self._load_operator(request.operator).suite(request.level)]

    def list_pool(self, request: ListPool) -> list[str]:
        """Return the ids of the cases on a device from which a suite is supplemented."""
        cases = self._load_operator(request.operator).pool(request.level)
        return list(dict.fromkeys(case.with_fields(device=request.device).id for case in cases))

    def get_list_version(self, request: GetListVersion) -> str:
        """Return the version of an operator's case lists."""
        return self._load_operator(request.operator).list_version

    def list_profile(self, request: ListProfile) -> list[str]:
        """Return the case ids of the suite ``perf`` at the sequence lengths ``request.lengths``."""
        return [case.id for case in self._load_operator(request.operator).profile(request.lengths)]

    def list_shapes(self, request: ListShapes) -> list[str] | Fault:
        """Return the case ids of the suite ``perf`` with the shapes ``request.shapes``, or why one cannot be timed."""
        operator = self._load_operator(request.operator)
        free = read_available_memory_bytes()
        cases = []
        try:
            for case in (case for shape in request.shapes for case in _make_shape_cases(operator, shape)):
                if case.mode not in request.modes:
                    continue
                cases.append(case)
                # The work is counted only if the oracle has enough memory: to count it, masks may have to be drawn.
                if too_large := _find_too_large(case.problem.pairs, case, free):
                    return Fault(reason=f"{case.problem.id().partition('/')[0]}: {describe_fact(too_large)}")
                operator.work(case)
        except ValueError as error:
            return Fault(reason=str(error))
        return [case.id for case in cases]

    def check_case(self, request: CheckCase) -> Fault | None:
        """Return why ``request.case`` is not a valid case id, or None if it is valid."""
        try:
            case, operator = self._parse_case(request.case)
            operator.work(case)
        except ValueError as error:
            return Fault(reason=str(error))
        return None

    def write_script(self, request: WriteScript) -> Script | Fault:
        """Return a standalone program that calls an implementation on a case, or why there is no such program."""
        case, operator = self._parse_case(request.case)
        free = read_available_memory_bytes()
        missing = _find_missing_data(operator, case) or _find_too_large(operator.work(case).pairs, case, free)
        if missing:
            return Fault(reason=describe_fact(missing))
        case_oracle = self._get_case_oracle(request.case, request.subject.policies)
        try:
            return Script(
                text=write_script(case_oracle, request.subject, Path(request.beside) if request.beside else None)
            )
        except (ValueError, OSError) as error:
            return Fault(reason=str(error))

    def describe_cases(self, request: DescribeCases) -> list[Description]:
        """For each case, return the checks that apply, the amount of work, and what this machine lacks to run it."""
        free = read_available_memory_bytes()
        return [self._describe_case(*self._parse_case(case), free) for case in request.cases]

    def _describe_case(self, case: Case, operator: Operator, free: int) -> Description:
        work = operator.work(case)
        is_here = get_device(case.device).is_available()
        missing: Fact | None = None if is_here else LacksDevice(device=case.device)
        missing = (
            missing
            or _find_missing_data(operator, case)
            or _find_too_large(work.pairs, case, free)
            or _find_large_tensors(work.bytes, case, free)
        )
        applicable = tuple(
            name for name in read_operator_checks(operator) if applies(load_check_function(name), case, operator)
        )
        return Description(checks=applicable, missing=missing, work=work, model_runs=count_model_runs(work.pairs))

    def find_idle(self, request: FindIdle) -> list[bool]:
        """For each triple of patterns (checks, cases, excluded cases), return True if it matches no possible finding.

        A finding is possible on ``request.cases`` and on the cases of every suite, in every dtype and on every device.
        """
        # Cached, because many patterns are matched against the same cases.
        list_variants, list_cases = cache(_list_variants), cache(self._list_cases)

        def list_possible() -> Iterator[str]:
            yield from request.cases
            yield from list_cases()  # only where a pattern matches none of ``request.cases``, because it takes 0.3 s

        def matches_finding(check: str, pattern: str, unless: str) -> bool:
            variants = chain.from_iterable(map(list_variants, list_possible()))
            return self._matches_finding(check, pattern, unless.split(), variants)

        return [not matches_finding(*patterns) for patterns in request.patterns]

    def _matches_finding(self, check: str, pattern: str, unless: Sequence[str], cases: Iterable[str]) -> bool:
        matching_checks = [name for name in read_checks() if fnmatchcase(name, check)]
        matches = re.compile(translate(pattern)).match
        exclusions = [re.compile(translate(one)).match for one in unless]
        matching_cases = filter(matches, cases)
        parsed_cases = (self._parse_case(case) for case in matching_cases if not any(out(case) for out in exclusions))
        return any(_applies_to_case(name, *parsed) for parsed in parsed_cases for name in matching_checks)

    def _list_cases(self) -> list[str]:
        """Return the case ids of all suites of all operators, each once."""
        suites = (ListSuite(operator=operator, level=level) for operator in list_operators() for level in LEVELS)
        return list(dict.fromkeys(case for suite in suites for case in self.list_suite(suite)))

    def draw_inputs(self, request: DrawInputs) -> str:
        """Return the path of the file with the case's inputs; they are drawn at the first request."""
        return str(self._oracle_cache.get_inputs_file(*self._parse_case(request.case)))

    def compute_expected(self, request: ComputeExpected) -> None:
        """Compute the expected values in advance, while a candidate worker is running the case."""
        self._get_case_oracle(request.case, request.policies)

    def evaluate(self, request: Evaluate) -> dict[str, Finding]:
        """Evaluate the observations in the files that a candidate worker stored; return one finding per check."""
        observed: dict[str, Any] = {}
        for path in request.observations:
            try:
                observed |= tensor_file.read(Path(path))
            except Exception as error:  # noqa: BLE001  # an implementation may store anything; the error becomes a finding
                return {check: _make_error_finding(check, error) for check in request.checks}
        own = {check: observed.get(check) for check in request.checks}
        return self.evaluate_observations(request.case, own, request.policies, self._causes[request.implementation])

    def evaluate_observations(
        self, case: str, observations: Mapping[str, Any], policies: Policies, causes: Causes | None = None
    ) -> dict[str, Finding]:
        """Evaluate the serialized observations of each check; return one finding per check, with its cause."""
        case_oracle = self._get_case_oracle(case, policies)
        return {
            check: _evaluate_one(check, plain, case_oracle, policies, causes) for check, plain in observations.items()
        }

    def _parse_case(self, case: str) -> tuple[Case, Operator]:
        parsed = Case.parse(case, self._problems)
        return parsed, self._load_operator(parsed.operator)

    def _get_case_oracle(self, case: str, policies: Policies) -> CaseOracle:
        parsed, operator = self._parse_case(case)
        return self._oracle_cache.get_case_oracle(parsed, operator, policies.precision(parsed.dtype), policies.choices)


def _applies_to_case(check: str, case: Case, operator: Operator) -> bool:
    return check in read_operator_checks(operator) and applies(load_check_function(check), case, operator)


def _evaluate_one(
    check: str, plain: Any, case_oracle: CaseOracle, policies: Policies, causes: Causes | None
) -> Finding:
    try:
        return evaluate(check, deserialize(plain), case_oracle, policies, causes=causes)
    except Exception as error:  # noqa: BLE001  # an implementation may store anything; the error becomes a finding
        return _make_error_finding(check, error)


def _make_error_finding(check: str, error: Exception) -> Finding:
    text = " ".join(str(error).split())[:400]
    return Finding(check=check, status="error", facts=(NotEvaluated(raised=type(error).__name__, message=text),))


def _list_variants(case: str) -> Sequence[str]:
    """Return the case itself, followed by the same case in every dtype and on every device."""
    own = CaseId.parse(case)
    others = (str(replace(own, dtype=dtype, device=device)) for dtype in DTYPES for device in list_device_names())
    return list(dict.fromkeys((case, *others)))


def _make_shape_cases(operator: Operator, shape: Shape) -> Sequence[Case]:
    """Return the operator's cases of a shape.

    Raises: ValueError where the operator does not have a size, a mask or padding of the shape.
    """
    cases = operator.shape_cases(shape)
    if any(case.problem.padding != shape.padding for case in cases):
        raise ValueError(f"the operator has no batches with a share of padding, got {shape.padding:g}")
    return cases


def _find_missing_data(operator: Operator, case: Case) -> MissingData | None:
    remedy = operator.missing(case)
    return None if remedy is None else MissingData(remedy=remedy)


def _find_large_tensors(count: int | None, case: Case, free: int) -> TooLargeForMachine | None:
    """Return the bytes of the case's tensors in float64 if they are more than ``free`` bytes, else None.

    ``count`` is the number of bytes of all tensors in the dtype of the case. The oracle needs them in float64.
    """
    need = (count or 0) * 8 // (torch.finfo(getattr(torch, case.dtype)).bits // 8)
    if not free or need <= free:
        return None
    return TooLargeForMachine(what="tensors", need_bytes=need, free_bytes=free)


def _find_too_large(pairs: int, case: Case, free: int) -> TooLargeForMachine | None:
    """Return the predicted need of the oracle of a case if it is more than ``free`` bytes, else None."""
    need = pairs * BYTES_PER_PAIR[case.differentiates]
    if not free or need <= free:
        return None
    return TooLargeForMachine(what="expected", need_bytes=need, free_bytes=free)


def main() -> None:
    """Answer the requests on the socket whose file descriptor is the first command-line argument.

    The first request names the folders for inputs and for the cache of expected values.
    """

    def start(request: StartOracle) -> Libraries:
        fault = Path(request.folder) / CACHE_FAULT
        kept = DiskCache(Path(request.cache_folder), report=fault.write_text) if request.cache_folder else None
        handlers.extend(OracleWorker(Path(request.folder), kept=kept).handlers())
        return Libraries(threads=torch.get_num_threads(), torch=str(torch.__version__))

    handlers: list[Handler] = [StartOracle.answered_by(start)]
    serve(handlers, int(sys.argv[1]))


if __name__ == "__main__":
    main()
