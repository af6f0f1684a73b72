"""Tests of the exact attention of a layer, against the oracle of ``attnbench.testing``."""

import math
from typing import Any

import pytest
import torch

from attnbench.testing.assertions import judge_call
from attnmodels.formula import Demand, attend, list_faults

BATCH, HEADS, GROUPS, QUERIES, KEYS, WIDTH = 2, 4, 2, 5, 7, 8


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Draw normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Q, K, V = (
    draw(BATCH, HEADS, QUERIES, WIDTH),
    draw(BATCH, GROUPS, KEYS, WIDTH, seed=1),
    draw(BATCH, GROUPS, KEYS, 6, seed=2),
)
VISIBLE = (draw(BATCH, 1, QUERIES, KEYS, seed=3) > -0.5).index_fill(2, torch.tensor([3]), value=False)
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "soft cap": {"softcap": 1.5},
    "bias": {"bias": draw(1, HEADS, QUERIES, KEYS, seed=4)},
    "sinks": {"sinks": draw(HEADS, seed=5)},
    "all": {"softcap": 1.5, "bias": draw(1, HEADS, QUERIES, KEYS, seed=4), "sinks": draw(HEADS, seed=5)},
}


def describe(demand: Demand) -> dict[str, Any]:
    """Return a demand as the arguments of ``judge_call``."""
    cap, mask = demand.softcap, demand.visible
    return {
        "mask": mask if demand.bias is None else torch.where(mask, demand.bias, -math.inf),
        "scale": demand.scale,
        "score_mod": None if cap is None else lambda logits, *_: cap * torch.tanh(logits / cap),
        "sinks": demand.sinks,
        "enable_gqa": True,
    }


@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)
def test_exact_attention_is_that_of_the_oracle(features: dict[str, Any]) -> None:
    """With grouped heads, a scale, a row without keys and each feature, nothing is off in float64."""
    demand = Demand(visible=VISIBLE, scale=0.7, **features)
    assert judge_call(attend(demand, Q, K, V), Q, K, V, **describe(demand)) == ()


def test_every_fault_changes_the_output() -> None:
    """Each fault model of a call with all features is off, and names another argument or change."""
    demand = Demand(visible=VISIBLE, scale=0.7, **FEATURES["all"])
    exact = attend(demand, Q, K, V)
    faults = list_faults(demand, Q, K)
    assert {cause.argument for cause, _ in faults} == {
        "scaling", "softcap", "s_aux", "position_bias", "num_key_value_groups"
    }  # fmt: skip
    for _, fault in faults:
        assert (attend(fault, Q, K, V) - exact).abs().max() > 1e-2
