"""The random inputs of a case as lines of a program, which draws the same numbers as ``inputs`` and ``draw_masks``."""

import math
from collections.abc import Iterator

from attnbench.operators.multihead.draw_masks import HIDDEN_SHARE, LOW, LOWEST, find_union_row
from attnbench.operators.multihead.identity import HIDDEN_UNIFORM, HIDDEN_ZEROLEAK, LARGEST_SELECTED, QUERY_SCALE
from attnbench.operators.multihead.inputs import BIAS_STD
from attnbench.operators.multihead.problem import EXACT_MASKS, IDENTITY_REGIMES, LOGIT_STD, MultiheadProblem

__all__ = ["format_draws"]


def format_draws(problem: MultiheadProblem) -> Iterator[str]:
    """Yield the lines of the program that define ``parameters`` and the arguments of the call (``call``)."""
    yield from _format_identity(problem) if problem.regime in IDENTITY_REGIMES else _format_parameters(problem)
    yield from _format_tokens(problem)
    if problem.attention_mask:
        yield from _format_attention_mask(problem)
    if problem.padding_mask:
        yield from _format_padding_mask(problem)
    if problem.regime in EXACT_MASKS:
        yield from _format_exact_tokens(problem)


def _format_parameters(problem: MultiheadProblem) -> Iterator[str]:
    embed, logit_std = problem.embed_dim, LOGIT_STD[problem.regime]
    widths = {"q": embed, "k": problem.kdim or embed, "v": problem.vdim or embed}
    if set(widths.values()) == {embed}:
        std = f"std=1 / math.sqrt({embed})"
        yield f"q, k, v = (normal(f'{{x}}_proj_weight', {embed}, {embed}, {std}) for x in 'qkv')"
        yield f"parameters = {{'in_proj_weight': torch.cat([{logit_std} * q, k, v])}}"
    else:
        for name, width in widths.items():
            yield f"{name} = normal('{name}_proj_weight', {embed}, {width}, std=1 / math.sqrt({width}))"
        yield f"parameters = {{'q_proj_weight': {logit_std} * q, 'k_proj_weight': k, 'v_proj_weight': v}}"
    yield f"parameters['out_proj.weight'] = normal('out_proj.weight', {embed}, {embed}, std=1 / math.sqrt({embed}))"
    if problem.bias:
        yield f"parameters['in_proj_bias'] = normal('in_proj_bias', {3 * embed}, std={BIAS_STD})"
        yield f"parameters['in_proj_bias'][:{embed}] *= {logit_std}"
        yield f"parameters['out_proj.bias'] = normal('out_proj.bias', {embed}, std={BIAS_STD})"
    if problem.add_bias_kv:
        yield f"parameters |= {{name: normal(name, 1, 1, {embed}) for name in ('bias_k', 'bias_v')}}"


def _format_identity(problem: MultiheadProblem) -> Iterator[str]:
    yield f"one = torch.eye({problem.embed_dim}, dtype=torch.float64)"
    yield f"v = one[uniform('v_proj_weight', {problem.embed_dim}).argsort()]"
    yield f"parameters = {{'in_proj_weight': torch.cat([{QUERY_SCALE} * one, one, v]), 'out_proj.weight': one}}"


def _format_tokens(problem: MultiheadProblem) -> Iterator[str]:
    embed, keys = problem.embed_dim, problem.keys
    drawn = {"query": _format_draw(problem, "query", problem.queries, embed)}
    if not problem.shares_queries:
        drawn["key"] = _format_draw(problem, "key", keys, problem.kdim or embed)
    if not (problem.self_attention or problem.key_is_value):
        drawn["value"] = _format_draw(problem, "value", keys, problem.vdim or embed)
    # An argument that is the same tensor as another argument is added to ``call`` after the other arguments.
    yield f"call = {{{', '.join(f'{name!r}: {tokens}' for name, tokens in drawn.items())}}}"
    same = {"key": "query", "value": "query" if problem.self_attention else "key"}
    for name in ("key", "value"):
        if name not in drawn:
            yield f"call['{name}'] = call['{same[name]}']"


def _format_draw(problem: MultiheadProblem, name: str, length: int, width: int) -> str:
    if problem.batch is None:
        return f"normal('{name}', {length}, {width})"
    tokens = f"normal('{name}', {problem.batch}, {length}, {width})"
    return tokens if problem.batch_first else f"{tokens}.transpose(0, 1).contiguous()"


def _format_attention_mask(problem: MultiheadProblem) -> Iterator[str]:
    kind, queries, keys = str(problem.attention_mask), problem.queries, problem.keys
    if kind == "causal":
        yield f"call['attn_mask'] = ~torch.ones({queries}, {keys}, dtype=torch.bool).tril()"
        return
    shared = kind.endswith("2d")
    shape = f"{queries}, {keys}" if shared else f"{problem.sequences * problem.num_heads}, {queries}, {keys}"
    middle, some = queries // 2, min(problem.sequences, queries, keys) > 0
    if problem.regime in ("uniform", "selection"):
        visible = _largest_power_of_two(keys) if problem.regime == "uniform" else 1
        order = f"uniform('attn_mask.hidden', {shape}).argsort(-1).argsort(-1)"
        yield f"call['attn_mask'] = {order} >= {visible}"
        return
    yield f"hide = uniform('attn_mask.hidden', {shape}) < {HIDDEN_SHARE}"
    yield "hide[..., :1] = False"
    if kind == "lowest2d":
        yield f"low = torch.where(uniform('attn_mask.values', {shape}) < 0.5, {LOW}, {LOWEST}).double()"
        yield "call['attn_mask'] = low * hide"
        if some:
            yield f"call['attn_mask'][{middle}] = {LOW}"
        return
    if "empty" in kind and some:
        yield f"hide[{middle}] = True" if shared else f"hide[-1, {middle}] = True"
    if kind == "union2d" and some:
        yield f"hide[{find_union_row(problem)}, :-1], hide[{find_union_row(problem)}, -1] = True, False"
    values = f"normal('attn_mask.values', {shape}).masked_fill(hide, -math.inf)"
    yield f"call['attn_mask'] = {values if kind.startswith('float') else 'hide'}"


def _largest_power_of_two(keys: int) -> int:
    """Return the largest power of two below the number of keys."""
    power: int = 2 ** int(math.log2(max(keys - 1, 1)))
    return power


def _format_padding_mask(problem: MultiheadProblem) -> Iterator[str]:
    kind, batch, keys = problem.padding_mask, problem.sequences, problem.keys
    yield f"lengths = (1 + (uniform('lengths', {batch}) * {keys - 1}).long()).clamp(max={keys})"
    first = keys if batch > 1 else max(min(1, keys), keys - 2)
    if problem.regime == "uniform":
        yield "lengths = 2 ** lengths.clamp(min=1).double().log2().long()"
        first = _largest_power_of_two(keys)
    yield f"lengths[:1] = {first}"
    if kind == "padempty":
        yield "lengths[-1:] = 0"
    yield f"padding = torch.arange({keys}) >= lengths[:, None]"
    masks = {
        "padfloat": f"normal('key_padding_mask.values', {batch}, {keys}).masked_fill(padding, -math.inf)",
        "padlowest": f"padding.double() * {LOWEST}",
    }
    mask = masks.get(str(kind), "padding")
    yield f"call['key_padding_mask'] = {mask if problem.batch is not None else f'({mask})[0]'}"


def _format_exact_tokens(problem: MultiheadProblem) -> Iterator[str]:
    shape = [problem.keys, problem.embed_dim]
    if problem.batch is not None:
        shape.insert(0 if problem.batch_first else 1, problem.batch)
    drawn = f"uniform('value.whole', {', '.join(map(str, shape))})"
    rows = "padding[0]" if problem.batch is None else "padding" if problem.batch_first else "padding.T"
    hidden = f".masked_fill({rows}[..., None], {{}})" if problem.padding_mask else ""
    if problem.regime == "selection":
        yield f"call['value'] = ({drawn} * {2 * LARGEST_SELECTED + 1}).floor() - {LARGEST_SELECTED}"
    elif problem.regime == "zeroleak":
        yield f"call['value'] = torch.zeros_like(call['value']){hidden.format(HIDDEN_ZEROLEAK)}"
    else:
        yield "call['query'] = torch.zeros_like(call['query'])"
        yield f"call['value'] = (({drawn} * 3).floor() - 1){hidden.format(HIDDEN_UNIFORM)}"
