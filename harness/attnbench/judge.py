"""The process that knows what is right: cases, inputs, oracle, budgets and the final comparison.

It never loads a plug-in, so nothing that an implementation does to torch can reach what judges it.
"""

import sys
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnbench.budget import ROUNDOFF, allowances, model_runs
from attnbench.cases import Case, Level
from attnbench.checks.catalogue import checks
from attnbench.checks.claims import restored
from attnbench.checks.functions import check_function
from attnbench.checks.requirement import applies
from attnbench.checks.verdict import Truth, judge
from attnbench.child import serve
from attnbench.environment import memory_available_bytes
from attnbench.inputs import rounded, stored
from attnbench.interface import Inputs, Operator, Policies, Precision
from attnbench.records import Finding
from attnbench.registry import load_operator, problems

__all__ = ["Judge"]

# Cases whose oracle is kept in memory; implementations walk them in the same order, one implementation at a time.
REMEMBERED = 512
# Memory of the oracle in float64 for each query-key pair, forward alone and with gradients; measured as 45 and 61
# bytes at 1024 keys.
BYTES_A_PAIR = (64, 96)
# Elements of the largest intermediate beyond which nothing is remembered.
SMALL = 1_000_000


class Judge:
    """Answers what the runner asks; ``folder`` holds the inputs that workers read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problems = problems()
        self._truths: OrderedDict[tuple[str, Precision], Truth] = OrderedDict()

    def handlers(self) -> dict[str, Any]:
        """Requests by name."""
        return {
            "suite": self.suite,
            "profile": self.profile,
            "parse": self.parse,
            "script": self.script,
            "describe": self.describe,
            "inputs": self.inputs,
            "judge": self.judge,
        }

    def suite(self, *, operator: str, level: Level) -> list[str]:
        """Case ids of a level."""
        return [case.id for case in load_operator(operator).suite(level)]

    def profile(self, *, operator: str, lengths: list[int]) -> list[str]:
        """Case ids of the suite ``perf`` at these lengths."""
        return [case.id for case in load_operator(operator).profile(lengths)]

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

    def describe(self, *, case: str) -> dict[str, Any]:
        """Checks that apply to a case, the work it needs, and what this machine lacks for it."""
        parsed, operator = self._parsed(case)
        lacking = operator.missing(parsed)
        if parsed.device == "cuda" and not torch.cuda.is_available():
            lacking = "no CUDA device here: leave out --device cuda, or run where there is one"
        work = operator.work(parsed)
        lacking = lacking or _too_large(work.pairs, parsed)
        names = [
            name
            for name, check in checks().items()
            if check.chapter in operator.chapters and applies(check_function(name), parsed)
        ]
        return {"checks": names, "missing": lacking, "work": asdict(work)}

    def inputs(self, *, case: str) -> str:
        """Path of the case's inputs, drawn at the first request."""
        parsed, operator = self._parsed(case)
        path = self._folder / f"{parsed.seed:x}-{parsed.dtype}.pt"
        if not path.exists():
            torch.save(stored(operator.inputs(parsed)), path)
        return str(path)

    def judge(self, *, case: str, check: str, observation: str, policies: dict[str, Any]) -> dict[str, Any]:
        """Finding of a check from the observation that a worker stored."""
        parsed, operator = self._parsed(case)
        declared = Policies(**policies)
        truth = self._truth(parsed, operator, declared.computes_in or parsed.dtype)
        try:
            claims = restored(torch.load(observation, weights_only=True))
            finding = judge(check, checks()[check].requirement, claims, truth, declared)
        except Exception as error:  # noqa: BLE001  # what a plug-in handed over may be anything; it becomes a record
            said = " ".join(str(error).split())[:400]
            finding = Finding(check=check, status="error", reason=f"cannot be judged: {type(error).__name__}: {said}")
        return asdict(finding)

    def _parsed(self, case: str) -> tuple[Case, Operator]:
        parsed = Case.parse(case, self._problems)
        return parsed, load_operator(parsed.operator)

    def _truth(self, case: Case, operator: Operator, precision: Precision) -> Truth:
        key = (case.id.replace(f"/{case.device}/", "/"), precision)
        if key in self._truths:
            return self._truths[key]
        truth = _truth(case, operator, operator.inputs(case), precision)
        if max(q.numel() for q in truth.quantities.values()) <= SMALL:
            self._truths[key] = truth
            while len(self._truths) > REMEMBERED:
                self._truths.popitem(last=False)
        return truth


def _too_large(pairs: int, case: Case) -> str | None:
    """Why the oracle of a case cannot be computed here, or None; predicted, so that nothing has to die for it."""
    need = pairs * BYTES_A_PAIR[case.mode != "inference"]
    free = memory_available_bytes()
    if not free or need <= free:
        return None
    return f"its oracle needs about {need / 2**30:.3g} GiB and {free / 2**30:.3g} GiB are free: take a shorter length"


def _truth(case: Case, operator: Operator, inputs: Inputs, precision: Precision, keep: Tensor | None = None) -> Truth:
    """The oracle's quantities on these very inputs, and how far each may be off."""
    exact = rounded(inputs, torch.float64)
    quantities = operator.evaluate(case, exact, keep=keep)
    runs = model_runs(operator.work(case).pairs)
    models = (
        operator.evaluate(case, exact, noise=operator.noise(ROUNDOFF[precision], seed), keep=keep)
        for seed in range(runs)
    )
    return Truth(
        quantities=quantities,
        allowances=allowances(
            quantities,
            models=models,
            # A path of the reference draws a dropout mask of its own: it measures nothing under a given one.
            yardsticks=operator.yardsticks(case, inputs) if keep is None else (),
            dtype=case.dtype,
            length=operator.length(case),
        ),
        hidden_rows=operator.hidden_rows(case, exact),
        dtype=getattr(torch, case.dtype),
        given=lambda mask: _truth(case, operator, inputs, precision, mask),
    )


def main() -> None:
    """Serve on the descriptor given as first argument, with the folder given by the first request."""

    def start(*, folder: str) -> dict[str, Any]:
        handlers.update(Judge(Path(folder)).handlers())
        return {"threads": torch.get_num_threads(), "torch": torch.__version__}

    handlers: dict[str, Any] = {"start": start}
    serve(handlers, int(sys.argv[1]))


if __name__ == "__main__":
    main()
