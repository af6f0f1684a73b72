"""Tests of closed forms of the work of a case: FLOP against torch's counter, bytes against the sizes of tensors."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case, Mode
from attnbench.operators.multihead import OPERATOR
from attnbench.operators.multihead.work import count_visible_pairs
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.registry import load_operator, load_problem_types

PLAIN = (
    "multihead/B2.L12.S12.E32.H4/bias+batch_first+self_attention/mask=none/regime=plain/seed=0/float32/cpu/inference"
)
CROSS = "multihead/B2.L12.S20.E32.H4.K24.V40/bias+batch_first/mask=none/regime=plain/seed=0/float32/cpu/inference"


def parse_case(text: str, mode: Mode = "inference") -> Case:
    """Return the case with this id, in another call mode."""
    return Case.parse(text, load_problem_types()).with_fields(mode=mode)


def build_candidate(case: Case, name: str = "torch_mha") -> Candidate:
    """Return the candidate of an implementation on a case."""
    return Candidate(load_implementation(name), load_operator("multihead"), case, OPERATOR.inputs(case))


@pytest.mark.parametrize("case", [PLAIN, CROSS])
@pytest.mark.parametrize("mode", ["inference", "eval", "train", "frozen", "tuning"])
def test_flop_equals_torchs_count_on_the_composed_path(case: str, mode: Mode) -> None:
    """The closed form of FLOP equals torch's count for the math backend, in modes with and without backward."""
    parsed = parse_case(case, mode)
    step = build_candidate(parsed, "sdpa_math").make_step()
    with FlopCounterMode(display=False) as counter:
        step()
    assert counter.get_total_flops() == OPERATOR.work(parsed).flop > 0


def test_torch_counts_nothing_of_the_fused_kernel_on_a_cpu() -> None:
    """Torch's count lacks the two products inside the fused CPU kernel, so rates are computed from closed forms.

    This test fails when torch starts to count these products.
    """
    parsed = parse_case(PLAIN)
    step = build_candidate(parsed, "sdpa_flash").make_step()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        step()
    products = 4 * count_visible_pairs(parsed) * parsed.problem.head_dim
    assert counter.get_total_flops() == OPERATOR.work(parsed).flop - products


def test_hidden_pairs_are_not_counted() -> None:
    """``count_visible_pairs`` equals the number of query-key pairs that the mask does not hide, for each mask of core.

    The extra keys of add_bias_kv and add_zero_attn are visible to every query.
    """
    seen = set()
    for case in OPERATOR.suite("core"):
        problem = case.problem
        if problem.encoder_layer is not None or problem.mask in seen or 0 in (problem.queries, problem.keys):
            continue
        seen.add(problem.mask)
        visible = OPERATOR.visible(case, OPERATOR.inputs(case))
        extra = visible[..., 0].numel() * (problem.columns - problem.keys)
        assert count_visible_pairs(case) == int(visible.sum()) + extra, case.id
    assert len(seen) > 10


@pytest.mark.parametrize("mask", ["causal", "floatcausal"])
def test_under_a_causal_mask_only_the_triangle_is_counted(mask: str) -> None:
    """Under a causal mask, each head has n (n + 1) / 2 visible pairs per sequence; only these count as FLOP."""
    whole = parse_case(PLAIN)
    half = whole.with_problem(mask=mask)
    assert count_visible_pairs(half) == 2 * 4 * 12 * 13 // 2
    hidden = 2 * 4 * 12 * 11 // 2
    assert OPERATOR.work(whole).flop - OPERATOR.work(half).flop == 4 * hidden * 8
    # ``pairs`` includes hidden pairs, because the oracle also computes hidden pairs.
    assert OPERATOR.work(whole).pairs == OPERATOR.work(half).pairs == 2 * 4 * 12 * 12


@pytest.mark.parametrize("mode", ["inference", "train", "frozen", "tuning", "autocast"])
def test_bytes_are_the_sizes_of_inputs_and_outputs(mode: Mode) -> None:
    """The closed form of bytes is the size of inputs, masks, parameters and outputs, and of the mode's gradients."""
    kinds: dict[object, Case] = {}
    for case in OPERATOR.suite("core"):
        problem = case.problem
        if problem.encoder_layer is None and 0 not in (problem.queries, problem.keys, problem.batch):
            key = (problem.mask, problem.self_attention, problem.key_is_value, problem.need_weights, problem.kdim)
            kinds.setdefault(key, case.with_fields(mode=mode, dtype="bfloat16" if mode == "autocast" else "float32"))
    assert len(kinds) > 20
    constant = parse_case(PLAIN, mode).with_problem(mask="floatcausal")
    kinds["floatcausal"] = constant.with_fields(dtype="bfloat16" if mode == "autocast" else "float32")
    for case in kinds.values():
        inputs = OPERATOR.inputs(case)
        outputs = OPERATOR.evaluate(case, inputs)
        moved = _sum_bytes([*inputs.tensors.values(), *inputs.parameters.values()])
        output_bytes = 2 if mode == "autocast" else 4
        results = sum(outputs[name].numel() for name in outputs if not name.startswith("grad.")) * output_bytes
        moved += results * (2 if case.differentiates else 1)
        if case.tracks_inputs:
            tracked = {name: t for name, t in inputs.tensors.items() if name not in case.problem.constant_masks}
            moved += _sum_bytes(tensor for tensor in tracked.values() if tensor.is_floating_point())
        if case.tracks_parameters:
            moved += _sum_bytes(inputs.parameters.values())
        assert OPERATOR.work(case).bytes == moved, case.id


def _sum_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all tensors; an object that occurs several times counts once."""
    once = {id(tensor): tensor for tensor in tensors}
    return sum(tensor.numel() * torch.tensor([], dtype=tensor.dtype).element_size() for tensor in once.values())
