"""The rule of ``attnbench.testing``: a call, described as a user of ``judge_call`` describes it."""

from typing import Any

import torch
from torch import Tensor

from attnbench.interface import Inputs
from attnbench.operators.attention_core.problem import AttentionCoreProblem
from attnbench.testing.assertions import judge_call
from attnbench.testing.problem import ARGUMENTS
from attnbench.words.findings import describe_facts
from research.other_checks.problems import Setting
from research.other_checks.references import build

__all__ = ["describe_call", "find_fault"]


def find_fault(implementation: Any, setting: Setting) -> str:
    """Return what ``judge_call`` says of the outputs and gradients of a setting, one call after the other.

    It gets the tensors that were passed to the call, after the call, as in a test. The result is empty if it accepts
    all calls.
    """
    candidate = build(implementation, setting, setting.draw(0))
    for trial in range(setting.trials):
        inputs = setting.draw(trial) if trial else candidate.inputs
        outputs = candidate.run(**inputs.arguments())
        gradients = candidate.compute_gradients(outputs) if setting.case.differentiates else {}
        facts = judge_call(
            outputs["output"],
            gradients={
                short: gradients[f"grad.{name}"] for short, name in ARGUMENTS.items() if f"grad.{name}" in gradients
            },
            cotangent=inputs.cotangents["output"],
            policies=implementation.policies,
            **describe_call(setting.case.problem, inputs),
        )
        if facts:
            return describe_facts(facts)
    return ""


def describe_call(problem: AttentionCoreProblem, inputs: Inputs) -> dict[str, Any]:
    """Return the arguments of ``judge_call`` for a call: lengths and windows as a function of positions."""
    tensors, slopes = inputs.tensors, inputs.options["alibi_slopes"]
    lengths = tensors.get("key_lengths", torch.full((problem.sequences,), problem.keys))

    def find_distance(batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
        shift = 0 if problem.causal == "top_left" else lengths[batch] - problem.queries
        return query + shift - key

    def is_visible(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = find_distance(batch, query, key)
        visible = (key < lengths[batch]) & (distance >= 0 if problem.causal else True)
        return visible if problem.window is None else visible & (distance.abs() <= problem.window)

    def change(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if problem.softcap:
            score = problem.softcap * torch.tanh(score / problem.softcap)
        if slopes is None:
            return score
        return score - score.new_tensor(slopes)[head] * find_distance(batch, query, key).abs()

    found: dict[str, Any] = {
        "q": tensors["query"],
        "k": tensors["key"],
        "v": tensors["value"],
        "mask": tensors.get("bias"),
    }
    found |= {"scale": problem.scale or None, "enable_gqa": problem.key_heads != problem.num_heads}
    if problem.softcap or slopes is not None:
        found["score_mod"] = change
    if problem.parts & {"window", "ragged"}:
        return found | {"mask_mod": is_visible}
    return found | {"is_causal": problem.causal or False}
