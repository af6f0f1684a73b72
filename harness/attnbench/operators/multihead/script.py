"""A case as a standalone program: torch and the implementation, nothing of the harness."""

from attnbench.cases import Case
from attnbench.operators.multihead.inputs import BIAS_STD, HIDDEN_SHARE
from attnbench.operators.multihead.problem import LOGIT_STD, MultiheadProblem

__all__ = ["script"]

_HEAD = '''\
"""{case}

The numbers of this case, the reference in float64, and one call of the implementation, in one file.
"""

import hashlib
import math

import torch


def stream(name):
    digest = hashlib.sha256(f"{seed}/{{name}}".encode()).digest()[:7]
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


def normal(name, *shape, std=1.0):
    return std * torch.randn(shape, generator=stream(name), dtype=torch.float64)


def uniform(name, *shape):
    return torch.rand(shape, generator=stream(name), dtype=torch.float64)

'''

_TAIL = """
dtype = torch.{dtype}
parameters = {{name: tensor.to(dtype) for name, tensor in parameters.items()}}
call = {{name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in call.items()}}
{same_object}options = {options}


def reference(precision):
    module = torch.nn.MultiheadAttention({constructor}).to(precision)
    module.load_state_dict(parameters)
    module.train({train})
    return module


def truth(need_weights):
    wide = {{name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in call.items()}}
    return reference(torch.float64)(**wide, **options | {{"need_weights": need_weights}})


{load}
with torch.set_grad_enabled({gradients}):
    module = implementation.build(reference(dtype)) if hasattr(implementation, "build") else None
    if module is None:
        module = implementation({constructor}).to(dtype)
        module.load_state_dict(parameters)
    output, weights = module.train({train})(**call, **options)

# Without weights the reference gives zero attention, not NaN, to a row from which every key is hidden.
print("output: largest error", (output.double() - truth(False)[0]).abs().max().item())
if weights is not None:
    print("weights: largest error", (weights.double() - truth(True)[1]).abs().max().item())
"""


def script(case: Case, load: str) -> str:
    """Program that runs a case; ``load`` are the lines that bind ``implementation``.

    Raises: ValueError for a case whose numbers cannot be drawn again in a few lines.
    """
    problem: MultiheadProblem = case.problem
    if problem.encoder_layer is not None:
        raise ValueError("a case on the real encoder's weights has no standalone program")
    if problem.dropout and case.mode == "train":
        raise ValueError("a case with dropout in training has no single right answer to print")
    options = {
        "need_weights": problem.need_weights,
        "average_attn_weights": problem.average_attn_weights,
        "is_causal": problem.is_causal,
    }
    constructor = {
        name: getattr(problem, name)
        for name in ("dropout", "bias", "add_bias_kv", "add_zero_attn", "kdim", "vdim", "batch_first")
    }
    arguments = ", ".join(f"{name}={value!r}" for name, value in constructor.items())
    same = 'call["key"] = call["value"] = call["query"]\n' if problem.self_attention else ""
    return (
        _HEAD.format(case=case.id, seed=case.seed)
        + "\n".join([*_parameters(problem), *_tokens(problem), *_masks(problem)])
        + _TAIL.format(
            dtype=case.dtype,
            same_object=same,
            options=options,
            constructor=f"{problem.embed_dim}, {problem.num_heads}, {arguments}",
            train=case.mode == "train",
            gradients=case.mode != "inference",
            load=load,
        )
    )


def _parameters(problem: MultiheadProblem) -> list[str]:
    embed, logit_std = problem.embed_dim, LOGIT_STD[problem.regime]
    widths = {"q": embed, "k": problem.kdim or embed, "v": problem.vdim or embed}
    lines = [
        f"{name} = normal('{name}_proj_weight', {embed}, {width}, std=1 / math.sqrt({width}))"
        for name, width in widths.items()
    ]
    lines.append(f"q = q * {logit_std}")
    if set(widths.values()) == {embed}:
        lines.append("parameters = {'in_proj_weight': torch.cat([q, k, v])}")
    else:
        lines.append("parameters = {'q_proj_weight': q, 'k_proj_weight': k, 'v_proj_weight': v}")
    if problem.bias:
        lines += [
            f"parameters['in_proj_bias'] = normal('in_proj_bias', {3 * embed}, std={BIAS_STD})",
            f"parameters['in_proj_bias'][:{embed}] *= {logit_std}",
            f"parameters['out_proj.bias'] = normal('out_proj.bias', {embed}, std={BIAS_STD})",
        ]
    if problem.add_bias_kv:
        lines += [f"parameters['{name}'] = normal('{name}', 1, 1, {embed})" for name in ("bias_k", "bias_v")]
    lines.append(
        f"parameters['out_proj.weight'] = normal('out_proj.weight', {embed}, {embed}, std=1 / math.sqrt({embed}))"
    )
    return lines


def _tokens(problem: MultiheadProblem) -> list[str]:
    def drawn(name: str, length: int, width: int) -> str:
        if problem.batch is None:
            return f"normal('{name}', {length}, {width})"
        tokens = f"normal('{name}', {problem.batch}, {length}, {width})"
        return tokens if problem.batch_first else f"{tokens}.transpose(0, 1).contiguous()"

    embed = problem.embed_dim
    lines = [f"call = {{'query': {drawn('query', problem.queries, embed)}}}"]
    if problem.self_attention:
        lines.append("call['key'] = call['value'] = call['query']")
    else:
        lines.append(f"call['key'] = {drawn('key', problem.keys, problem.kdim or embed)}")
        lines.append(f"call['value'] = {drawn('value', problem.keys, problem.vdim or embed)}")
    return lines


def _masks(problem: MultiheadProblem) -> list[str]:
    return [*_attention_mask(problem), *_padding_mask(problem)]


def _attention_mask(problem: MultiheadProblem) -> list[str]:
    kind, queries, keys = problem.attention_mask, problem.queries, problem.keys
    if kind is None:
        return []
    if kind == "causal":
        return [f"call['attn_mask'] = ~torch.ones({queries}, {keys}, dtype=torch.bool).tril()"]
    shared = kind.endswith("2d")
    shape = f"{queries}, {keys}" if shared else f"{(problem.batch or 1) * problem.num_heads}, {queries}, {keys}"
    lines = [f"hide = uniform('attn_mask.hidden', {shape}) < {HIDDEN_SHARE}", "hide[..., :1] = False"]
    if kind.startswith("empty"):
        lines.append(f"hide[{queries // 2}] = True" if shared else f"hide[-1, {queries // 2}] = True")
    if kind.startswith("float"):
        return [*lines, f"call['attn_mask'] = normal('attn_mask.values', {shape}).masked_fill(hide, -math.inf)"]
    return [*lines, "call['attn_mask'] = hide"]


def _padding_mask(problem: MultiheadProblem) -> list[str]:
    kind, batch, keys = problem.padding_mask, problem.batch or 1, problem.keys
    if kind is None:
        return []
    lines = [
        f"lengths = 1 + (uniform('lengths', {batch}) * {keys - 1}).long()",
        f"lengths[0] = {keys if batch > 1 else max(1, keys - 2)}",
    ]
    if kind == "padempty":
        lines.append("lengths[-1] = 0")
    lines.append(f"padding = torch.arange({keys}) >= lengths[:, None]")
    if kind == "padfloat":
        values = f"normal('key_padding_mask.values', {batch}, {keys})"
        lines.append(f"padding = {values}.masked_fill(padding, -math.inf)")
    lines.append(f"call['key_padding_mask'] = padding{'[0]' if problem.batch is None else ''}")
    return lines
