"""The two functions for tests: one output against the oracle, and several outputs of one call against each other."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import combinations
from types import MappingProxyType
from typing import Any, Self, cast

import torch
from torch import Tensor

from attnbench.cases import Case, Dtype, Mode
from attnbench.checks.evaluation.causes import Causes
from attnbench.checks.evaluation.verdict import Judgement, judge
from attnbench.checks.observations import Match, Observation
from attnbench.interface import Policies
from attnbench.oracle.error_budget import TWO_RUNS, largest_error
from attnbench.oracle.expected import CaseOracle
from attnbench.records.value_facts import ValueFact
from attnbench.testing.comparison import Comparison
from attnbench.testing.operator import GivenAttention
from attnbench.testing.problem import ARGUMENTS, Call, Given, read_call
from attnbench.words.findings import describe_facts

__all__ = ["assert_attention_close", "compare_attention", "judge_call"]

# Defaults of an implementation that declares nothing: fully masked rows are 0.
POLICIES = Policies()


def assert_attention_close(
    output: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lse: Tensor | None = None,
    gradients: Mapping[str, Tensor] | None = None,
    cotangent: Tensor | None = None,
    policies: Policies = POLICIES,
    **call: Any,
) -> None:
    """Assert that ``output`` is the attention of q, k and v within the rounding error of its dtype.

    The arguments of ``call`` are those of the call: ``mask`` (booleans, true where a key is visible, or numbers that
    are added to the logits), ``is_causal`` (True: aligned at the first query and key, as in torch; or "bottom_right"),
    ``scale``, ``score_mod`` and ``mask_mod`` in the notation of flex_attention, with index tensors in place of single
    indices, ``enable_gqa``, ``sinks`` (one logit for each head), ``layout`` ("bhsd", "bshd", or "thd" with
    ``cu_seqlens``).

    ``lse`` is the natural logarithm of the sum of exponentials of each row, (batch, heads, queries). ``gradients`` has
    the gradients of Σ output · ``cotangent``, by the names q, k, v, mask and sinks. ``policies`` declares what fully
    masked rows are, if not 0.

    Raises: AssertionError where something is wrong, with the sentence of ``attnbench conform``; ValueError or TypeError
    where an argument is unusable.
    """
    __tracebackhide__ = True  # pytest then shows the line of the test
    facts = judge_call(output, q, k, v, lse=lse, gradients=gradients, cotangent=cotangent, policies=policies, **call)
    if facts:
        raise AssertionError(describe_facts(facts))


def judge_call(
    output: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lse: Tensor | None = None,
    gradients: Mapping[str, Tensor] | None = None,
    cotangent: Tensor | None = None,
    policies: Policies = POLICIES,
    **call: Any,
) -> tuple[ValueFact, ...]:
    """Return what is wrong with an output, as facts; the arguments are those of ``assert_attention_close``.

    Raises: ValueError or TypeError where an argument is unusable.
    """
    given = read_call(_collect(q=q, k=k, v=v, **call))
    if cotangent is not None and gradients is None:
        raise ValueError("cotangent needs gradients: the gradients of Σ output · cotangent, by name")
    found = _Judged.read(given, policies, output, lse, gradients or {}, cotangent)
    return () if found.fits_one_run() else found.judge().facts


def compare_attention(
    outputs: Mapping[str, Tensor], q: Tensor, k: Tensor, v: Tensor, *, policies: Policies = POLICIES, **call: Any
) -> Comparison:
    """Compare several outputs of one call: which are right, what is wrong with the others, and how far they are apart.

    The arguments are those of ``assert_attention_close``.

    Raises: ValueError or TypeError where an argument is unusable.
    """
    given = read_call(_collect(q=q, k=k, v=v, **call))
    read = {name: _Judged.read(given, policies, output, name=name) for name, output in outputs.items()}
    faults = {name: describe_facts(one.judge().facts) for name, one in read.items()}
    expected = [(name, one.oracle.expected, one.seen["output"]) for name, one in read.items()]
    right = [value for name, _, value in expected if not faults[name]]
    allowed = max((one.allowances["output"].allowed for _, one, _ in expected), default=0.0)
    return Comparison(
        faults=faults,
        errors={
            name: largest_error(value, one.quantities["output"])
            for name, one, value in expected
            if value.shape == one.quantities["output"].shape
        },
        allowed=allowed,
        apart=max((largest_error(one, other) for one, other in combinations(right, 2)), default=0.0),
        allowed_apart=TWO_RUNS * allowed,
    )


def _collect(**call: Any) -> Call:
    """Return the arguments of a call.

    Raises: TypeError for an argument that does not exist.
    """
    known = [one.name for one in fields(Call)]
    if unknown := [name for name in call if name not in known]:
        raise TypeError(f"there is no argument {unknown[0]!r}; a call can have {', '.join(known)}")
    return Call(**call)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """What a call returned, and the oracle of the call."""

    oracle: CaseOracle
    policies: Policies
    seen: dict[str, Tensor]
    gradients: dict[str, Tensor]
    lse: dict[str, Tensor]

    @classmethod
    def read(
        cls,
        given: Given,
        policies: Policies,
        output: object,
        lse: object = None,
        gradients: Mapping[str, Tensor] = MappingProxyType({}),
        cotangent: Tensor | None = None,
        *,
        name: str = "output",
    ) -> Self:
        """Read what a call returned; ``name`` is what the caller calls the output."""
        seen = {"output": given.read_output(name, output, "output")}
        case = _make_case(given, seen["output"].dtype, name, differentiates=bool(gradients))
        inputs = replace(
            given.inputs,
            options=given.inputs.options | {"lse": lse is not None},
            cotangents=_read_cotangents(given, cotangent, case) if gradients else {},
        )
        precision = policies.precision(case.dtype)
        return cls(
            oracle=CaseOracle(case, GivenAttention(inputs), precision, lambda: inputs, choices=policies.choices),
            policies=policies,
            seen=seen,
            gradients=_read_gradients(given, gradients),
            lse={} if lse is None else {"lse": _read_lse(given, lse)},
        )

    def fits_one_run(self) -> bool:
        """Whether everything is surely right, which is known in a fraction of the time of ``judge``."""
        found = self.seen | self.gradients | self.lse
        return self.policies.choices == POLICIES.choices and self.oracle.fits_one_run(found, any_dtype=self.lse)

    def judge(self) -> Judgement:
        """Judge output, logsumexp and gradients as the checks of a suite do, up to the first of them that is wrong."""
        observations: list[Observation] = [Match(quantities=self.seen)]
        if self.lse:
            observations.append(Match(quantities=self.lse, any_dtype=True, outputs=self.seen))
        if self.gradients:
            observations.append(Match(quantities=self.gradients, outputs=self.seen))
        judged = (judge([one], self.oracle, self.policies, causes=Causes()) for one in observations)
        return next((one for one in judged if one.facts), Judgement())


def _make_case(given: Given, dtype: torch.dtype, name: str, *, differentiates: bool) -> Case:
    """Return the case of an output of this dtype; an output narrower than float32 inputs is that of autocast."""
    own = given.inputs.tensors["query"].dtype
    autocast = own == torch.float32 and dtype in (torch.float16, torch.bfloat16)
    if dtype != own and not autocast:
        raise TypeError(f"{name} must have the dtype of q, {own}, got {dtype}")
    modes: dict[bool, tuple[Mode, Mode]] = {False: ("inference", "train"), True: ("autocast_inference", "autocast")}
    found = cast("Dtype", str(dtype).removeprefix("torch."))
    return Case(operator=GivenAttention.name, problem=given.problem, dtype=found, mode=modes[autocast][differentiates])


def _read_gradients(given: Given, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    read = {}
    for name, gradient in gradients.items():
        tensor = ARGUMENTS.get(name)
        if tensor is None or tensor not in given.inputs.tensors:
            known = [own for own, one in ARGUMENTS.items() if one in given.inputs.tensors]
            raise ValueError(f"gradients must have names out of {', '.join(known)}, got {name!r}")
        read[f"grad.{tensor}"] = given.read_output(f"gradients[{name!r}]", gradient, tensor)
    return read


def _read_cotangents(given: Given, cotangent: Tensor | None, case: Case) -> dict[str, Tensor]:
    """Return the cotangents of the outputs; that of ``lse`` is 0."""
    problem = given.problem
    shape = (problem.sequences, problem.num_heads, problem.queries)
    if cotangent is None:
        raise ValueError(
            "gradients need a cotangent: the tensor by which the output was multiplied before it was summed"
        )
    read = given.read_output("cotangent", cotangent, "output")
    if read.shape != (*shape, problem.value_dim):
        raise ValueError(f"cotangent must have the shape of the output, got shape {tuple(cotangent.shape)}")
    return {"output": read, "lse": torch.zeros(shape, dtype=getattr(torch, case.given_dtype))}


def _read_lse(given: Given, lse: object) -> Tensor:
    if given.packing is not None:
        raise ValueError("lse needs layout 'bhsd' or 'bshd', got 'thd'")
    if not isinstance(lse, Tensor):
        raise TypeError(f"lse must be a tensor (batch, heads, queries), got {type(lse).__name__}")
    return lse.detach().cpu()
