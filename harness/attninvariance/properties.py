"""The properties: for each, the pairs of results that must have the same bits at one point of a sweep.

A pair has what belongs to the same sequences and tokens in two calls. Gradients of parameters belong to no sequence.
They are compared only where both calls have the same tokens in the same order.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace

import torch
from torch import Tensor

from attnbench.interface import Refusal
from attninvariance.calls import Call, Results, Subject
from attninvariance.sweep import Point
from attninvariance.texts import NO_PADDING_AT_THE_START

__all__ = ["COMPARISONS", "Pairs"]

Pairs = Iterator[tuple[Results, Results]]
# Factor of the other sequences' tokens in the second call: it changes sign and size.
CHANGED = -3.0


def compare_repeated(subject: Subject, point: Point) -> Pairs:
    """Make the same call twice."""
    call = subject.draw(point)
    yield subject.run(call), subject.run(call)


def compare_neighbours(subject: Subject, point: Point) -> Pairs:
    """Change all sequences but one."""
    call, place = subject.draw(point), point.batch // 2
    axis = subject.transforms.sequence_axis(call.case)

    def change(tensor: Tensor) -> Tensor:
        shape = [-1 if number == axis else 1 for number in range(tensor.dim())]
        is_other = torch.arange(point.batch, device=tensor.device).reshape(shape) != place
        return torch.where(is_other, CHANGED * tensor, tensor)

    tokens = replace(call.inputs, parameters={}, cotangents={}).map_tensors(change).tensors
    changed = Call(call.case, replace(call.inputs, tensors=tokens))
    before, after = (subject.take(call, subject.run(one), sequences=[place]) for one in (call, changed))
    yield before, after


def compare_batch_sizes(subject: Subject, point: Point) -> Pairs:
    """Compute the first and the last sequence of a batch alone."""
    call = subject.draw(point)
    whole = subject.run(call)
    for place in (0, point.batch - 1):
        yield (
            subject.take(call, whole, sequences=[place]),
            subject.take(call, subject.run(subject.select(call, sequences=[place])), sequences=[0]),
        )


def compare_positions(subject: Subject, point: Point) -> Pairs:
    """Move every sequence of the batch by one place, and by half of the batch."""
    call = subject.draw(point)
    whole = subject.run(call)
    for step in sorted({1, point.batch // 2}):
        order = [(place + step) % point.batch for place in range(point.batch)]
        moved = subject.select(call, sequences=order)
        yield subject.take(call, whole, sequences=order), subject.take(moved, subject.run(moved))


def compare_padded(subject: Subject, point: Point) -> Pairs:
    """Add hidden tokens at the end of the sequences."""
    call, tokens = subject.draw(point), list(range(point.length))
    padded = _pad(subject, call, point.own)
    yield (
        subject.take(call, subject.run(call)),
        subject.take(padded, subject.run(padded), queries=tokens, keys=tokens),
    )


def compare_padding_sides(subject: Subject, point: Point) -> Pairs:
    """Add hidden tokens at the end of the sequences, or at the start."""
    call, length, count = subject.draw(point), point.length, point.own
    right = _pad(subject, call, count)
    if "key_padding_mask" not in right.inputs.tensors:
        raise Refusal(NO_PADDING_AT_THE_START)
    left = subject.select(right, keys=[*range(length, length + count), *range(length)])
    left = Call(left.case.with_problem(mask="padleft"), left.inputs)
    first, last = list(range(length)), list(range(count, count + length))
    shares = subject.shares_tokens(call)
    yield (
        subject.take(right, subject.run(right), queries=first, keys=first),
        subject.take(left, subject.run(left), queries=last if shares else first, keys=last),
    )


def _pad(subject: Subject, call: Call, count: int) -> Call:
    """Return the call with hidden tokens at the end; no gradient flows into the rows of hidden queries."""
    case, inputs = subject.transforms.pad(call.case, call.inputs, count)
    name, cotangent = next(iter(call.inputs.cotangents.items()))
    if subject.shares_tokens(call):
        axis = subject.transforms.length_axis(call.case)
        hidden = [*cotangent.shape[:axis], count, *cotangent.shape[axis + 1 :]]
        cotangent = torch.cat([cotangent, cotangent.new_zeros(hidden)], dim=axis)
    return Call(case, replace(inputs, cotangents={name: cotangent}))


def compare_chunks(subject: Subject, point: Point) -> Pairs:
    """Compute the first, second and last chunk of the queries by themselves, with the keys up to their ends."""
    starts = range(0, point.length, point.own)
    chosen = sorted({starts[0], starts[min(1, len(starts) - 1)], starts[-1]})
    yield from _compare_parts(subject, point, [(start, min(start + point.own, point.length)) for start in chosen])


def compare_decoding(subject: Subject, point: Point) -> Pairs:
    """Compute the last query by itself, with all keys."""
    yield from _compare_parts(subject, point, [(point.length - 1, point.length)])


def _compare_parts(subject: Subject, point: Point, parts: list[tuple[int, int]]) -> Pairs:
    """Compute queries ``begin`` to ``end`` by themselves, with keys 0 to ``end``, and with all others, causally.

    The gradients of keys are sums over all queries, and are left out.
    """
    call = subject.draw(point, mask="causal", self_attention=False, key_is_value=False)
    whole = subject.take(call, subject.run(call))
    # Without the hint ``is_causal``, the selected rows of the mask are kept.
    flags = {one.name: False for one in fields(call.case.problem) if one.name == "is_causal"}
    plain = Call(call.case.with_problem(**flags), replace(call.inputs, options=call.inputs.options | flags))
    for begin, end in parts:
        rows = list(range(begin, end))
        part = subject.select(plain, queries=rows, keys=list(range(end)))
        expected = subject.take(call, whole, queries=rows)
        yield _leave_out_keys(expected), _leave_out_keys(subject.take(part, subject.run(part)))


def _leave_out_keys(results: Results) -> Results:
    return {name: results[name] for name in ("output", "grad.query") if name in results}


def compare_key_splits(subject: Subject, point: Point) -> Pairs:
    """Sum another number of keys at a time."""
    call = subject.draw(point)
    yield subject.run(call), subject.run(call, subject.implementation.key_splits[point.own])


def compare_threads(subject: Subject, point: Point) -> Pairs:
    """Compute with several threads, and with one."""
    call, before = subject.draw(point), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = subject.run(call)
        torch.set_num_threads(point.own)
        yield alone, subject.run(call)
    finally:
        torch.set_num_threads(before)


COMPARISONS: Mapping[str, Callable[[Subject, Point], Pairs]] = {
    "repeat": compare_repeated,
    "neighbours": compare_neighbours,
    "batch_size": compare_batch_sizes,
    "position": compare_positions,
    "padding": compare_padded,
    "padding_side": compare_padding_sides,
    "prefill": compare_chunks,
    "decode": compare_decoding,
    "key_split": compare_key_splits,
    "threads": compare_threads,
}
