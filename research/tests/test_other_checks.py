"""Tests of the study of other tools' checks: what each rule accepts, catches and misses, isolated runs, the tables."""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from attnbench.interface import Implementation
from attnbench.mutants.attention_core import MUTANTS as CORE_MUTANTS
from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.multihead import MUTANTS
from attnbench.mutants.multihead.formula import Formula
from attnbench.mutants.mutant import ModuleImplementation
from research.other_checks.__main__ import find_topic
from research.other_checks.isolation import run_isolated
from research.other_checks.references import make_reference
from research.other_checks.rules import CHECKS, select_checks
from research.other_checks.summary import format_tables, summarise

FORMULAS = {
    "multihead": ModuleImplementation(Formula, name="formula"),
    "attention_core": ModuleImplementation(CoreFormula, name="formula", operator="attention_core"),
}
MULTIHEAD = {mutant.name: mutant for mutant in MUTANTS.mutants}
CORE = {mutant.name: mutant for mutant in CORE_MUTANTS.mutants}
# Rules that reject the correct formula, because it rounds in another order than the reference, or to bfloat16 at each
# step. The study says so: it counts what such a rule rejects for this reason apart.
REJECTING = {"multihead": {"assert_close, float32 and half"}, "attention_core": {"flashinfer-bench"}}


# The rules for each operator: those of attnbench.testing judge only attention on split heads.
RULES = {
    operator: {rule for check in select_checks(operator).values() for rule in check.rules} for operator in FORMULAS
}


class _Doubled(Formula):
    """Multi-head attention whose logits are twice as large."""

    def score(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return 2 * super().score(q, k)


class _DoubledGradient(CoreFormula):
    """Attention whose gradients are twice as large, with the right output."""

    def sum_values(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        output = super().sum_values(weights, value)
        return 2 * output - output.detach()


class _Raising(Formula):
    """Multi-head attention that raises an exception in every call."""

    def score(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        raise ValueError("no\n kernel")


def reject(implementation: Implementation) -> set[str]:
    """Return the rules that reject an implementation."""
    checks = select_checks(implementation.operator).values()
    return {rule for check in checks for rule in check.find_faults(implementation)}


@pytest.mark.parametrize("operator", ["multihead", "attention_core"])
def test_the_rules_accept_the_correct_formula(operator: str) -> None:
    """No rule rejects the correct formula but those that are known to reject it."""
    assert reject(FORMULAS[operator]) == REJECTING[operator]


def test_the_reference_is_accepted() -> None:
    """No rule rejects torch.nn.MultiheadAttention itself."""
    assert reject(make_reference("multihead")) == set()


def test_every_rule_that_compares_with_a_reference_catches_a_wrong_scale() -> None:
    """Logits of twice the size are rejected by all rules but gradcheck, which compares with no reference."""
    assert reject(ModuleImplementation(_Doubled)) == RULES["multihead"] - {"gradcheck"}


def test_rules_without_gradients_miss_a_wrong_gradient() -> None:
    """Gradients of twice the size, with the right output, are rejected by the rules that compute gradients."""
    caught = reject(ModuleImplementation(_DoubledGradient, operator="attention_core"))
    forward_only = {rule for rule in RULES["attention_core"] if rule.startswith(("KernelBench", "flashinfer-bench"))}
    assert caught == RULES["attention_core"] - forward_only | REJECTING["attention_core"]


def test_a_loose_tolerance_misses_a_rounded_scale() -> None:
    """KernelBench's 1e-2 and flashinfer-bench accept a softmax scale that is rounded to bfloat16."""
    rounded = MULTIHEAD["scale_rounded"].implementation
    for name in ("KernelBench", "flashinfer-bench"):
        assert "KernelBench, 1e-2" not in CHECKS[name].find_faults(rounded)
        assert "flashinfer-bench" not in CHECKS[name].find_faults(rounded)


def test_one_call_is_judged_by_its_tensors() -> None:
    """attnbench.testing rejects ignored lengths of sequences, on the problem with lengths and with its own sentence."""
    check = CHECKS["attnbench.testing, usual problems"]
    (fault,) = check.find_faults(CORE["core_lengths_ignored"].implementation).values()
    assert "are off" in fault
    assert "mask=ragged" in fault


def test_an_exception_is_a_rejection() -> None:
    """Every rule rejects a module whose call raises, and says what it raised."""
    raising = ModuleImplementation(_Raising)
    assert reject(raising) == RULES["multihead"]
    assert (
        CHECKS["gradcheck"].find_faults(raising)["gradcheck"].startswith("raised ValueError: no kernel on multihead/")
    )


def test_unsupported_settings_are_left_out() -> None:
    """An implementation that declares every case unsupported is rejected by no rule."""
    raising = ModuleImplementation(_Raising, unsupported=lambda _: "no masks")
    assert reject(raising) == set()


def give(value: Any) -> Any:
    """Return the value."""
    return value


def set_threads() -> int:
    """Return the number of threads, and change it."""
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    return before


def test_a_function_that_hangs_or_ends_its_process_has_no_outcome() -> None:
    """The functions after it run in another process."""
    functions: dict[str, Callable[[], Any]] = {
        "first": partial(give, torch.ones(2)), "hangs": partial(time.sleep, 60), "ends": partial(os._exit, 1),
        "last": partial(give, 3),
    }  # fmt: skip
    outcomes = dict(run_isolated(functions, limit_s=1.0))
    assert list(outcomes) == list(functions)
    first, last = outcomes["first"], outcomes["last"]
    assert outcomes["hangs"] is outcomes["ends"] is None
    assert first is not None
    assert last is not None
    assert first[0].tolist() == [1, 1]
    assert last[0] == 3


def test_settings_of_torch_are_restored_between_functions() -> None:
    """A function that changes the number of threads changes it neither for the next function nor here."""
    before = torch.get_num_threads()
    outcomes = run_isolated({"first": set_threads, "second": set_threads}, limit_s=10.0)
    assert [outcome and outcome[0] for _, outcome in outcomes] == [before, before]
    assert torch.get_num_threads() == before


def test_the_topic_is_the_module_of_the_class() -> None:
    """The topic of a mutant is the part of its module's name after the operator."""
    assert find_topic(MULTIHEAD["scale_rounded"]) == "scale"


def test_the_table_tells_apart_what_the_formula_is_rejected_for() -> None:
    """A mutant that a rule rejects as it rejects the correct formula counts apart, and by no topic."""
    seconds = dict.fromkeys(select_checks("multihead"), 0.25)
    records = [
        {"name": "f", "kind": "formula", "faults": {"gradcheck": "rounds"}, "cpu_s": seconds},
        {"name": "a", "kind": "mutant", "topic": "scale", "faults": {"gradcheck": "rounds"}, "cpu_s": seconds},
        {"name": "b", "kind": "mutant", "topic": "masks", "faults": {"gradcheck": "wrong"}, "cpu_s": seconds},
        {"name": "c", "kind": "variant", "faults": {"gradcheck": "rounds"}, "cpu_s": seconds},
        {"name": "quick", "kind": "attnbench", "killed": 2, "scored": 2, "caught": ["a", "b"], "accused": [],
         "cpu_s": 9.87},
    ]  # fmt: skip
    lines = format_tables(summarise(records)).splitlines()
    assert lines[0] == "| rule | mutants caught of 2 | correct variants accused of 1 | s |"
    assert "| gradcheck | 1 (and 1 as the correct formula) | 1 | 0.25 |" in lines
    assert "| KernelBench, 1e-2 | 0 | 0 | 0.25 |" in lines
    assert not [line for line in lines if "attnbench.testing" in line]
    assert "| attnbench, `quick` | 2 | 0 | 9.9 |" in lines
    column = lines[-4].split(" | ").index("gradcheck")
    assert [line.split(" | ")[column] for line in lines[-2:]] == ["0", "1"]
    assert [line.split(" | ")[0] for line in lines[-2:]] == ["| scale", "| masks"]
    assert lines[-1].endswith(" | 1 |")
