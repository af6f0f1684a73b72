"""The rules by which other tools accept an implementation, with their published tolerances, and what they compare.

A check compares an implementation with a reference, and its rules say why they reject it. An exception of the
implementation is a rejection, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.testing import assert_close

from attnbench.interface import Implementation
from research.other_checks import problems
from research.other_checks.one_call import find_fault
from research.other_checks.problems import Setting
from research.other_checks.references import (
    build,
    make_reference,
    measure,
    recall,
    run_precise_and_eager,
    run_reference,
    upcast,
)

__all__ = ["CHECKS", "Check", "Limits", "select_checks"]

# flash-attention 3 measures the rounding of its reference by adding and subtracting this number.
# Source: https://github.com/Dao-AILab/flash-attention/blob/e7f8a55c/hopper/test_flash_attn.py
SHIFT = 0.3
# Under a softcap it allows this multiple of the eager error, and this error of gradients beside. Source: the same.
SOFTCAP_FACTOR, SOFTCAP_GRADIENTS = 3, 3e-4
# flashinfer-bench adds this number to the divisor of the relative error. Source: ``FLASHINFER`` below.
SMALLEST = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The published numbers of a rule; each check reads those that it needs."""

    tolerance: float = 0.0
    # Share of the elements that must be within the tolerance.
    matched: float = 1.0
    # Allowed multiples of the error of the eager run: of the output, and of the gradients.
    factor: float = 0.0
    gradient_factor: float = 0.0
    # Multiple of the reference's rounding after an addition that is allowed beside it.
    rounding: float = 0.0


# What a check says of an implementation on a setting: why it is rejected, by the rules that reject it.
Faults = dict[str, str]
Rules = Mapping[str, Limits]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check of another tool, and the rules by which it judges what it compares: several, if their runs are equal."""

    name: str
    source: str
    settings: Callable[[str], Sequence[Setting]]
    judge: Callable[[Implementation, Setting, Rules], Faults]
    rules: Rules
    # Operators whose implementations the check can judge.
    operators: tuple[str, ...] = ("multihead", "attention_core")

    def find_faults(self, implementation: Implementation) -> Faults:
        """Return why rules reject the implementation; settings that it declares unsupported are left out."""
        found: Faults = {}
        for setting in self.settings(implementation.operator):
            left = {name: limits for name, limits in self.rules.items() if name not in found}
            if not left or implementation.unsupported(setting.case) is not None:
                continue
            try:
                faults = self.judge(implementation, setting, left)
            except Exception as error:  # noqa: BLE001  # any exception fails the tools' checks
                faults = dict.fromkeys(left, f"raised {type(error).__name__}: {' '.join(str(error).split())[:80]}")
            found |= {name: f"{why} on {setting.case.id}" for name, why in faults.items()}
        return found


def judge_kernelbench(implementation: Implementation, setting: Setting, rules: Rules) -> Faults:
    """Compare the shapes, and the outputs by allclose with one tolerance as atol and rtol, on every trial.

    Both modules get the same tensors, the reference first. Attention weights are not compared, as problem 31 drops
    them.
    """
    reference = build(make_reference(setting.case.operator), setting, setting.draw(0))
    candidate = build(implementation, setting, setting.draw(0))
    found: Faults = {}
    for trial in range(setting.trials):
        given = setting.draw(trial).arguments()
        right, own = reference.run(**given)["output"], candidate.run(**given)["output"]
        if own.shape != right.shape:
            return dict.fromkeys(rules, f"shape {tuple(own.shape)}")
        for name, limits in rules.items():
            if not torch.allclose(right, own, atol=limits.tolerance, rtol=limits.tolerance):
                found.setdefault(name, f"error {float((right - own).abs().max()):.1e}")
    return found


def judge_flashinfer(implementation: Implementation, setting: Setting, rules: Rules) -> Faults:
    """Compare shapes and dtypes, refuse NaN and infinity, and count the elements within the tolerance.

    An element is outside if its absolute error and its relative error both exceed the tolerance. The reference
    computes in float32 and is rounded, as those of the published definitions.
    """
    reference = build(make_reference(setting.case.operator), setting, upcast(setting.draw(0)), dtype="float32")
    candidate = build(implementation, setting, setting.draw(0))
    found: Faults = {}
    for trial in range(setting.trials):
        inputs = setting.draw(trial)
        right = reference.run(**upcast(inputs).arguments())["output"].to(getattr(torch, setting.case.dtype))
        own = candidate.run(**inputs.arguments())["output"]
        if (own.shape, own.dtype) != (right.shape, right.dtype):
            return dict.fromkeys(rules, f"shape {tuple(own.shape)}, {own.dtype}")
        if not own.isfinite().all():
            return dict.fromkeys(rules, "NaN or infinity")
        error = (own.float() - right.float()).abs()
        relative = error / (right.float().abs() + SMALLEST)
        for name, limits in rules.items():
            outside = int(((error > limits.tolerance) & (relative > limits.tolerance)).sum())
            if 1 - outside / error.numel() < limits.matched:
                found.setdefault(name, f"{outside} of {error.numel()} elements outside")
    return found


def judge_assert_close(implementation: Implementation, setting: Setting, rules: Rules) -> Faults:
    """Compare outputs, attention weights and the gradients of inputs and parameters with those of the reference.

    Both run in the same dtype, with assert_close's own tolerances for it.
    """
    candidate = build(implementation, setting, setting.draw(0))
    found = dict(candidate.outputs) | candidate.gradients
    right = recall(setting, run_reference)
    try:
        assert_close(found, right)
    except AssertionError as error:
        return dict.fromkeys(rules, _shorten(error))
    return {}


def judge_gradcheck(implementation: Implementation, setting: Setting, rules: Rules) -> Faults:
    """Compare analytical and numerical derivatives of the outputs by inputs and parameters, with gradcheck's defaults.

    Nothing is compared with the reference. PyTorch tests its modules so, parameters included:
    https://github.com/pytorch/pytorch/blob/33263640/test/test_modules.py (``_test_grad``).
    """
    candidate = build(implementation, setting, setting.draw(0))
    leaves = (*candidate.collect_leaves().values(), *candidate.parameters().values())
    try:
        # gradcheck changes the leaves in place; the candidate reads them from its own inputs and its module.
        gradcheck(lambda *_: tuple(candidate.run().values()), leaves)
    except GradcheckError as error:
        return dict.fromkeys(rules, _shorten(error))
    return {}


def judge_flash(implementation: Implementation, setting: Setting, rules: Rules) -> Faults:
    """Allow a multiple of the largest error of a low-precision eager run, of the output and of dq, dk and dv.

    The reference computes in float32 and is rounded. The eager run of multi-head attention is that which returns
    weights, by matrix products.
    """
    right, eager = recall(setting, run_precise_and_eager)
    own = measure(build(implementation, setting, setting.draw(0)))
    found: Faults = {}
    for name, expected in right.items():
        exact = expected.to(eager[name].dtype)
        error, allowed = _largest(own[name] - exact), _largest(eager[name] - exact)
        rounded = _largest(exact + SHIFT - SHIFT - exact)
        for rule, limits in rules.items():
            bound = _allow(limits, setting, allowed, rounded, gradient=name != "output")
            if not error <= bound:  # also NaN
                found.setdefault(rule, f"{name} off by {error:.1e}, allowed {bound:.1e}")
    return found


def judge_testing(implementation: Implementation, setting: Setting, rules: Rules) -> Faults:
    """Judge output and gradients of each call by ``attnbench.testing``, as a test of anybody's does."""
    fault = find_fault(implementation, setting)
    return dict.fromkeys(rules, fault[:160]) if fault else {}


def _allow(limits: Limits, setting: Setting, error: float, rounded: float, *, gradient: bool) -> float:
    """Return the allowed error, where the eager run has ``error`` and the reference rounds by ``rounded``."""
    times = limits.gradient_factor if gradient else limits.factor
    if limits.rounding and getattr(setting.case.problem, "softcap", 0):
        return SOFTCAP_FACTOR * error + limits.rounding * rounded + (SOFTCAP_GRADIENTS if gradient else 0)
    return times * error + limits.rounding * rounded


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max())


def _shorten(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


# Addresses of the rules; the tolerances below are theirs.
KERNELBENCH = "https://github.com/ScalingIntelligence/KernelBench/blob/0d122263/src/kernelbench/eval.py"
FLASHINFER = "https://github.com/flashinfer-ai/flashinfer-bench/blob/00a1ec88/flashinfer_bench/bench/utils.py"
FLASH_2 = "https://github.com/Dao-AILab/flash-attention/blob/main/tests/test_flash_attn.py"
FLASH_3 = "https://github.com/Dao-AILab/flash-attention/blob/e7f8a55c/hopper/test_flash_attn.py"
CLOSE = "https://docs.pytorch.org/docs/2.13/testing.html#torch.testing.assert_close"
TESTING = "docs/your-own.md#one-call-in-a-test"
GRADCHECK = "https://docs.pytorch.org/docs/2.13/generated/torch.autograd.gradcheck.gradcheck.html"

_checks = (
    # Versions 0 and 0.1 of KernelBench: 1e-2; since then 1e-4 for float32 (``get_tolerance_for_precision``).
    Check(
        name="KernelBench", source=KERNELBENCH, settings=problems.kernelbench_settings, judge=judge_kernelbench,
        rules={"KernelBench, 1e-2": Limits(tolerance=1e-2), "KernelBench, 1e-4": Limits(tolerance=1e-4)},
    ),
    # Not published so: it tells what the uniform inputs of KernelBench's problems cost.
    Check(
        name="KernelBench, normal inputs", source=KERNELBENCH,
        settings=partial(problems.kernelbench_settings, uniform=False), judge=judge_kernelbench,
        rules={"KernelBench, 1e-4, normal inputs": Limits(tolerance=1e-4)},
    ),
    # BenchmarkConfig: atol = rtol = 1e-2, and every element unless a share is configured; eval_config.yaml configures
    # 0.95 for mixtures of experts and low-bit kernels.
    Check(
        name="flashinfer-bench", source=FLASHINFER, settings=problems.flashinfer_settings, judge=judge_flashinfer,
        rules={
            "flashinfer-bench": Limits(tolerance=1e-2),
            "flashinfer-bench, 95 % of elements": Limits(tolerance=1e-2, matched=0.95),
        },
    ),
    Check(
        name="assert_close", source=CLOSE, settings=partial(problems.usual, dtypes=("float32",)),
        judge=judge_assert_close, rules={"assert_close, float32": Limits()},
    ),
    Check(
        name="assert_close, three dtypes", source=CLOSE,
        settings=partial(problems.usual, dtypes=("float32", "bfloat16", "float16")),
        judge=judge_assert_close, rules={"assert_close, float32 and half": Limits()},
    ),
    Check(
        name="gradcheck", source=GRADCHECK, settings=problems.gradcheck_settings, judge=judge_gradcheck,
        rules={"gradcheck": Limits()},
    ),
    # flash-attention 2, test_flash_attn_output: twice for the output, three times for gradients, nothing beside.
    Check(
        name="flash-attention", source=f"{FLASH_2} {FLASH_3}", settings=problems.flash_settings, judge=judge_flash,
        rules={
            "flash-attention 2": Limits(factor=2, gradient_factor=3),
            "flash-attention 3": Limits(factor=2, gradient_factor=2, rounding=2),
        },
    ),
    # One call each: first on the problems of two of the rules above, then on those of all of them.
    Check(
        name="attnbench.testing, usual problems", source=TESTING, operators=("attention_core",),
        settings=partial(problems.usual, dtypes=("float32", "bfloat16", "float16")), judge=judge_testing,
        rules={"attnbench.testing, problems of assert_close": Limits()},
    ),
    Check(
        name="attnbench.testing, flash-attention", source=TESTING, operators=("attention_core",),
        settings=problems.flash_settings, judge=judge_testing,
        rules={"attnbench.testing, problems of flash-attention": Limits()},
    ),
    Check(
        name="attnbench.testing, all problems", source=TESTING, operators=("attention_core",),
        settings=problems.all_settings, judge=judge_testing, rules={"attnbench.testing, all problems": Limits()},
    ),
)  # fmt: skip
CHECKS = {check.name: check for check in _checks}


def select_checks(operator: str) -> dict[str, Check]:
    """Return by name the checks that can judge implementations of an operator."""
    return {name: check for name, check in CHECKS.items() if operator in check.operators}
