"""Tests of the policy ``padded_queries="own"``: rows of padded queries are not compared with the oracle."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function, read_checks
from attnbench.checks.evaluation.verdict import evaluate
from attnbench.checks.observations import deserialize, serialize
from attnbench.checks.requirement import applies
from attnbench.interface import Implementation, Policies
from attnbench.kernel import HeadSplitAttention
from attnbench.masks import additive, softmax_over_visible
from attnbench.operators.multihead import OPERATOR, MultiheadProblem
from attnbench.oracle.expected import CaseOracle, blank_rows
from attnbench.records.types import Finding

PADDED = MultiheadProblem(
    batch=3, queries=5, keys=5, embed_dim=24, num_heads=2, bias=True, batch_first=True, self_attention=True, mask="pad",
    need_weights=True,
)  # fmt: skip


class ArbitraryWherePadded(HeadSplitAttention):
    """Attention that is right in the rows of real tokens, and arbitrary in the rows of padded tokens."""

    off_by = 0.0

    def under_masks(
        self, query: Tensor, key: Tensor, value: Tensor, *, key_padding_mask: Tensor | None, **rest: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention, then replace the rows of padded queries in output and attention weights."""
        output, weights = super().under_masks(query, key, value, key_padding_mask=key_padding_mask, **rest)
        if key_padding_mask is None or query is not key:
            return output, weights
        padded = key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask == -torch.inf
        junk = 7.0 * query.sin() + self.out_proj.weight.sum()
        output = torch.where(padded[..., None], junk, output + self.off_by)
        return output, None if weights is None else weights.masked_fill(padded[:, None, :, None], 3.0)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention by the composed formula."""
        logits = q @ k.transpose(2, 3) / self.head_dim**0.5
        if mask is not None:
            logits = logits + (additive(mask, q.dtype) if mask.dtype == torch.bool else mask)
        weights = nn.functional.dropout(softmax_over_visible(logits), self.dropout, self.training)
        return weights @ v, weights if need_weights else None


class SlightlyWrong(ArbitraryWherePadded):
    """Attention that is off by 1e-3 in the rows of real tokens, and arbitrary in the rows of padded tokens."""

    off_by = 1e-3


class Declared(Implementation):
    """Implementation that consists of a module class and the policies that it declares."""

    def __init__(self, module: type[nn.Module], policies: Policies) -> None:
        self._module, self.policies = module, policies

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Return the module, built from the reference."""
        return self._module(reference)


def run_checks(module: type[nn.Module], policies: Policies, case: Case) -> dict[str, Finding]:
    """Run the checks that apply to the case, and return their findings by name of the check.

    Refused checks and the chapters dropout, refusals, determinism, compilation and size are left out.
    """
    chapters = set(OPERATOR.chapters) - {"dropout", "refusals", "determinism", "compilation", "size"}
    case_oracle = CaseOracle(case, OPERATOR, case.dtype, lambda: OPERATOR.inputs(case), choices=policies.choices)
    found = {}
    for name, entry in read_checks().items():
        if entry.chapter not in chapters or not applies(load_check_function(name), case, OPERATOR):
            continue
        candidate = Candidate(Declared(module, policies), OPERATOR, case, OPERATOR.inputs(case))
        try:
            observations = serialize(list(load_check_function(name)(candidate)))
        except Exception as error:  # noqa: BLE001  # only Refusal is expected
            assert type(error).__name__ == "Refusal", (name, error)  # noqa: PT017
            continue
        found[name] = evaluate(name, deserialize(observations), case_oracle, policies)
    return found


def case(mode: str = "train", **changes: Any) -> Case:
    """Return the case of PADDED with some fields changed."""
    return Case(operator="multihead", problem=replace(PADDED, **changes), mode=mode)  # type: ignore[arg-type]


OWN, ANSWERED = Policies(padded_queries="own"), Policies()
CASES = [
    case(), case(mask="float3d+padfloat"), case(mask="bool2d+pad", batch_first=False, need_weights=False),
    case(batch=None, average_attn_weights=True), case(mode="inference", mask="padempty"),
]  # fmt: skip


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.problem.mask)
@pytest.mark.filterwarnings("ignore:.*mismatched key_padding_mask and attn_mask.*")
def test_declared_rows_are_not_compared(one: Case) -> None:
    """With the policy "own", arbitrary rows of padded queries fail no check of output, weights or gradients."""
    found = run_checks(ArbitraryWherePadded, OWN, one)
    assert {name: f for name, f in found.items() if f.status != "passed"} == {}
    assert "forward_parity" in found
    assert ("parameter_gradients" in found) == one.differentiates


def test_undeclared_rows_fail() -> None:
    """Without the policy, arbitrary rows of padded queries fail the checks of output, weights and gradients."""
    found = run_checks(ArbitraryWherePadded, ANSWERED, case())
    failed = {name for name, finding in found.items() if finding.status == "failed"}
    assert {"forward_parity", "weights_parity", "input_gradients", "parameter_gradients"} <= failed


def test_the_other_rows_are_compared() -> None:
    """With the policy "own", an error of 1e-3 in the rows of real tokens fails."""
    assert run_checks(SlightlyWrong, OWN, case())["forward_parity"].status == "failed"


def test_without_padded_queries_the_policy_has_no_effect() -> None:
    """If query and key are different tensors, or there is no padding mask, no row counts as padded."""
    for changes in ({"self_attention": False}, {"mask": "bool2d"}):
        assert OPERATOR.padded_rows(case(**changes), OPERATOR.inputs(case(**changes))) == {}


@pytest.mark.parametrize(("changes", "shape"), [({}, (3, 5, 1)), ({"batch_first": False}, (5, 3, 1))])
def test_padded_rows_have_the_layout_of_the_outputs(changes: dict[str, Any], shape: tuple[int, ...]) -> None:
    """``padded_rows`` gives one boolean per row of output and of attention weights.

    In a float padding mask, minus infinity marks a padded token.
    """
    one = case(mask="padfloat", **changes)
    drawn = OPERATOR.inputs(one)
    rows = OPERATOR.padded_rows(one, drawn)
    padded = drawn.tensors["key_padding_mask"] == -torch.inf
    assert rows["output"].shape == shape
    assert torch.equal(rows["output"][..., 0], padded if one.problem.batch_first else padded.T)
    assert torch.equal(rows["weights"], padded[:, None, :, None].expand(3, 2, 5, 1))


def test_blanked_rows_have_zero_values_and_zero_gradients() -> None:
    """``blank_rows`` sets the marked rows and their gradients to 0; it returns a tensor of wrong shape unchanged."""
    value = torch.tensor([[1.0, float("nan")], [2.0, 3.0]], requires_grad=True)
    rows = torch.tensor([[True], [False]])
    out = blank_rows({"output": value, "grad.x": value}, {"output": rows})
    assert out["output"].tolist() == [[0.0, 0.0], [2.0, 3.0]]
    assert out["grad.x"] is value
    assert torch.autograd.grad(out["output"].sum(), value)[0].tolist() == [[0.0, 0.0], [1.0, 1.0]]
    one = value[0]
    assert blank_rows({"output": one}, {"output": rows})["output"] is one
