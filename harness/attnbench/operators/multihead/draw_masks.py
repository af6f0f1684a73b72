"""Masks of a case as the reference takes them: a key is hidden where a boolean mask is true or a float mask is −∞."""

import math

import torch
from torch import Tensor

from attnbench.masks import causal, from_lengths
from attnbench.operators.multihead.problem import FINITE_MASKS, SIDE_PADDING, MultiheadProblem
from attnbench.operators.sentence_lengths import draw_sentence_lengths
from attnbench.oracle.inputs import Draw

__all__ = ["HIDDEN_SHARE", "LOW", "LOWEST", "WINDOW", "draw_masks", "find_union_row"]

# Fraction of the keys that a random attn_mask hides from a query. Key 0 stays visible, except in one row of ``empty``
# and ``union`` masks.
HIDDEN_SHARE = 0.4
# LOW, LOWEST: the two numbers, other than 0, that ``lowest`` masks add to logits. Both numbers are finite in every
# dtype, but LOW + LOWEST and LOWEST + LOWEST are below −65504, the lowest finite number of float16.
LOW, LOWEST = -1e4, -6e4
# The numbers of a ``floatzerosum2d`` mask are multiples of GRID, at most LARGEST in size: they and their sums are exact
# in every dtype.
GRID, LARGEST = 0.125, 3.0
# Number of keys that a ``window2d`` mask shows to a query. It is smaller than the common tile sizes of kernels, so a
# late query sees no key of the first tiles.
WINDOW = 4


def draw_masks(problem: MultiheadProblem, draw: Draw) -> dict[str, Tensor]:
    """Draw the masks ``attn_mask`` and ``key_padding_mask``; a mask that the problem does not have is left out."""
    masks: dict[str, Tensor] = {}
    if problem.attention_mask:
        masks["attn_mask"] = _draw_attention_mask(problem, draw)
    if problem.padding_mask:
        mask = _draw_padding_mask(problem, draw)
        masks["key_padding_mask"] = mask[0] if problem.batch is None else mask
    return masks


def find_union_row(problem: MultiheadProblem) -> int:
    """Return the index of the row of attn_mask in which a ``union`` mask hides every key but the last.

    In every sequence but the first, key_padding_mask hides the last key. In these sequences, attn_mask and
    key_padding_mask together hide all keys in this row.
    """
    return problem.queries // 2


def _draw_attention_mask(problem: MultiheadProblem, draw: Draw) -> Tensor:
    """Draw attn_mask, of shape (queries, keys) or (batch·heads, queries, keys)."""
    kind, queries, keys = str(problem.attention_mask), problem.queries, problem.keys
    if problem.has_causal_mask:
        mask = causal(queries, keys)
        return mask if kind == "causal" else torch.zeros(queries, keys).masked_fill(mask, -math.inf)
    if kind == "window2d":
        return _make_window(queries, keys)
    if kind in FINITE_MASKS:
        finite = draw.normal("attn_mask.values", queries, keys)
        return _draw_zero_sum(draw, queries, keys) if kind == "floatzerosum2d" else -finite.abs()
    shared = kind.endswith("2d")
    shape = (queries, keys) if shared else (problem.sequences * problem.num_heads, queries, keys)
    if problem.regime in ("uniform", "selection"):
        return _draw_power_of_two_visible(draw, shape, largest=problem.regime == "uniform")
    hide = draw.uniform("attn_mask.hidden", *shape) < HIDDEN_SHARE
    hide[..., :1] = False
    if kind == "lowest2d":
        return _draw_lowest(draw, hide)
    if kind == "lowestrows2d":
        return _sink_rows(hide)
    if "empty" in kind and hide.numel():
        # In a 2-D mask, hide all keys in the middle row. In a 3-D mask, hide all keys in the middle row of the last
        # head of the last sequence.
        hide[(queries // 2,) if shared else (-1, queries // 2)] = True
    if kind == "union2d" and hide.numel():
        hide[find_union_row(problem)] = True
        hide[find_union_row(problem), -1] = False
    if kind.startswith("float"):
        return draw.normal("attn_mask.values", *shape).masked_fill(hide, -math.inf)
    return hide


def _make_window(queries: int, keys: int) -> Tensor:
    """Return a boolean mask, true at hidden keys, that shows each query the last ``WINDOW`` keys up to its position.

    The last query has the position of the last key, as in decoding. A query whose position would be
    before the first key gets the position of the first key.
    """
    last = (torch.arange(queries) + keys - queries).clamp(min=0)[:, None]
    position = torch.arange(keys)
    return (position > last) | (position <= last - WINDOW)


def _draw_zero_sum(draw: Draw, queries: int, keys: int) -> Tensor:
    """Draw a float mask whose numbers are in pairs of opposite sign, at random positions; a last number is 0."""
    count = queries * keys
    numbers = (draw.normal("attn_mask.values", count // 2) / GRID).round() * GRID
    numbers = numbers.clamp(-LARGEST, LARGEST)
    paired = torch.cat([numbers, -numbers, numbers.new_zeros(count % 2)])
    return paired[draw.uniform("attn_mask.positions", count).argsort()].view(queries, keys)


def _draw_power_of_two_visible(draw: Draw, shape: tuple[int, ...], *, largest: bool) -> Tensor:
    """Draw a boolean mask, true at hidden keys, in which the number of visible keys per row is a power of two.

    This power is 1 or, with ``largest``, the largest power of two below the number of keys.
    """
    keys = shape[-1]
    visible = 2 ** int(math.log2(max(keys - 1, 1))) if largest else 1
    order = draw.uniform("attn_mask.hidden", *shape).argsort(dim=-1).argsort(dim=-1)
    return order >= visible


def _draw_lowest(draw: Draw, hide: Tensor) -> Tensor:
    """Draw a float mask that is LOW or LOWEST where ``hide`` is true, LOW in the whole middle row, and 0 elsewhere."""
    which = draw.uniform("attn_mask.values", *hide.shape) < 0.5
    mask = torch.where(which, LOW, LOWEST).double() * hide
    if hide.numel():
        mask[hide.shape[0] // 2] = LOW
    return mask


def _sink_rows(hide: Tensor) -> Tensor:
    """Return a float mask that is LOWEST where ``hide`` is true and in every second row, and 0 elsewhere.

    The middle row is wholly at LOWEST. The row of a mask with only one row is therefore wholly at LOWEST, too.
    """
    mask = LOWEST * hide.double()
    mask[hide.shape[0] // 2 % 2 :: 2] = LOWEST
    return mask


def _draw_padding_mask(problem: MultiheadProblem, draw: Draw) -> Tensor:
    """Draw key_padding_mask, of shape (batch, keys), for sequences with random numbers of visible keys.

    In a batch of several sequences, the first sequence has no padding, except in the regime ``uniform`` and in
    ``padall``. With a share of padding, the numbers are drawn from the lengths of real sentences instead.
    """
    batch, keys = problem.sequences, problem.keys
    if problem.padding:
        return from_lengths(torch.tensor(draw_sentence_lengths(problem.padding, batch, keys, problem.seed)), keys)
    lengths = _draw_lengths(problem, draw)
    if problem.padding_mask in SIDE_PADDING:
        return from_lengths(_hide_sides(str(problem.padding_mask), lengths, keys), keys)
    hide = from_lengths(lengths, keys)
    if problem.padding_mask == "padleft":
        return hide.flip(1)
    if problem.padding_mask == "padholes":
        return hide.gather(1, draw.uniform("key_padding_mask.positions", batch, keys).argsort(dim=1))
    if problem.padding_mask == "padfloat":
        return draw.normal("key_padding_mask.values", batch, keys).masked_fill(hide, -math.inf)
    if problem.padding_mask == "padlowest":
        return hide.double() * LOWEST
    return hide


def _hide_sides(form: str, lengths: Tensor, keys: int) -> Tensor:
    """Return the numbers of visible keys, at least one, of a form of ``SIDE_PADDING``, from those of ``pad``."""
    least = min(1, keys)
    if form == "padall":
        return lengths.clamp(max=max(least, keys - 2))
    last = torch.full_like(lengths, keys)
    last[-1:] = max(least, keys - 1)
    return last


def _draw_lengths(problem: MultiheadProblem, draw: Draw) -> Tensor:
    """Draw the number of visible keys of each sequence."""
    batch, keys = problem.sequences, problem.keys
    lengths = (1 + (draw.uniform("lengths", batch) * (keys - 1)).long()).clamp(max=keys)
    if problem.regime == "uniform":
        lengths = 2 ** lengths.clamp(min=1).double().log2().long()
    if batch:
        lengths[0] = keys if batch > 1 else max(min(1, keys), keys - 2)
    if batch and problem.regime == "uniform":
        lengths[0] = 2 ** int(math.log2(max(keys - 1, 1)))
    if batch and problem.padding_mask == "padempty":
        lengths[-1] = 0
    return lengths.clamp(max=keys)
