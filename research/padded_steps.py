"""Time of each step of ``varlen_packed`` on padded sentences: ``python -m research.padded_steps --help``.

The inputs are those of ``research.padded``: hidden states of real sentences, of which half of the tokens are padding.
A step is called with its own inputs, and its processor time is compared with the shortest time that the measured rate
of matrix products allows. With backward, a step also computes the gradients of its inputs. All calls are made on one
thread, in random order, and timed by the clock of the process: other work on the machine then adds little.
"""

import argparse
import copy
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from attnbench.measurement.roofline import measure_roofline
from attnbench.oracle import sentence_encoder
from attnbench.plugins.registry import load
from attnzoo.by_size import attend_each
from attnzoo.varlen import Packing
from research.padded import LAYER, PADDING, SHAPES, Shape

__all__ = ["Step", "format_table", "make_steps", "time_steps"]

REFERENCE, PACKED = "reference", "varlen_packed"
# Name of the step that is a whole call, with the steps before it and what is between them.
WHOLE = "the whole call"
# Names of the steps that compute matrix products.
PRODUCTS = ("input projection", "attention", "output projection")
# Default number of calls of each step; the table has their median.
CALLS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A part of a call: a function, its inputs, and the number of floating-point operations of its matrix products."""

    side: str
    name: str
    run: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    flop: int = 0

    def call(self, cotangent: Tensor | None) -> None:
        """Run the step; with a cotangent also backward."""
        output = self.run(*self.inputs)
        if cotangent is not None and output.requires_grad:
            torch.autograd.grad(output, [one for one in self.inputs if one.requires_grad], cotangent)


def make_steps(shape: Shape) -> list[Step]:
    """Return the steps of both sides, and both whole calls, for a batch of sentences.

    Raises: ValueError if the sentences cannot have this length.
    """
    tokens, padded = sentence_encoder.make_padded_sentences(shape.batch, shape.length, padding=PADDING)
    model = sentence_encoder.load_encoder()
    with torch.no_grad():
        hidden = model(tokens, padded, layers=LAYER)
    reference = copy.deepcopy(model.get_submodule(f"layers.{LAYER}.self_attn"))
    assert isinstance(reference, nn.MultiheadAttention)
    reference.dropout = 0.0
    return [*_make_reference_steps(reference, hidden, padded), *_make_packed_steps(reference, hidden, padded)]


def _make_reference_steps(module: nn.MultiheadAttention, hidden: Tensor, padded: Tensor) -> list[Step]:
    batch, length, width = hidden.shape
    mask = torch.zeros(padded.shape).masked_fill(padded, -math.inf)[:, None, None, :]
    features = linear(hidden, *_list_parameters(module)[:2]).detach()
    heads = torch.unflatten(features, -1, (3, module.num_heads, -1)).permute(2, 0, 3, 1, 4)

    def attend(heads: Tensor) -> Tensor:
        q, k, v = heads.unbind()
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    product = 2 * batch * length * width**2
    return [
        *_make_projections(REFERENCE, hidden, attend(heads).transpose(1, 2).flatten(2), module, product),
        Step(
            side=REFERENCE, name="attention", run=attend, inputs=_track(heads), flop=4 * batch * length**2 * width
        ),
        _make_whole(REFERENCE, copy.deepcopy(module), hidden, padded),
    ]  # fmt: skip


def _make_packed_steps(module: nn.MultiheadAttention, hidden: Tensor, padded: Tensor) -> list[Step]:
    width = hidden.shape[-1]
    packing = Packing.from_mask(~padded)
    lengths = packing.lengths
    packed = packing.pack(hidden)
    weight, bias, back = _list_parameters(module)
    features = linear(packed, weight, bias).detach()
    heads = torch.unflatten(features, 1, (3, module.num_heads, -1)).permute(1, 2, 0, 3)

    def attend(heads: Tensor) -> Tensor:
        sequences = (own.unbind() for own in torch.split(heads, lengths, dim=2))
        return torch.cat(attend_each(sequences, module.num_heads * max(lengths) ** 2, like=heads)).flatten(1)

    attended = attend(heads)
    weights = sum(own**2 for own in lengths)

    def read_mask(mask: Tensor) -> Tensor:
        return Packing.from_mask(~mask).positions

    return [
        Step(side=PACKED, name="read the mask", run=read_mask, inputs=(padded,)),
        Step(side=PACKED, name="pack the tokens", run=packing.pack, inputs=_track(hidden)),
        *_make_projections(PACKED, packed, attended, module, 2 * sum(lengths) * width**2),
        Step(side=PACKED, name="attention", run=attend, inputs=_track(heads), flop=4 * weights * width),
        Step(side=PACKED, name="unpack the output", run=packing.unpack, inputs=_track(linear(attended, *back))),
        _make_whole(PACKED, load("varlen_packed").build(copy.deepcopy(module)), hidden, padded),
    ]


def _make_projections(
    side: str, tokens: Tensor, attended: Tensor, module: nn.MultiheadAttention, product: int
) -> list[Step]:
    """Return the steps before and after attention. ``product`` is the work of one width × width projection."""
    weight, bias, back = _list_parameters(module)
    return [
        Step(
            side=side, name="input projection", run=linear, inputs=_track(tokens, weight, bias), flop=3 * product
        ),
        Step(side=side, name="output projection", run=linear, inputs=_track(attended, *back), flop=product),
    ]  # fmt: skip


def _make_whole(side: str, module: nn.Module, hidden: Tensor, padded: Tensor) -> Step:
    """Return the step of a whole call; with backward, it also computes the gradients of the parameters."""
    module.train()

    def call(tokens: Tensor, *_: Tensor) -> Tensor:
        output: Tensor = module(tokens, tokens, tokens, key_padding_mask=padded, need_weights=False)[0]
        return output

    return Step(side=side, name=WHOLE, run=call, inputs=(*_track(hidden), *module.parameters()))


def _list_parameters(module: nn.MultiheadAttention) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Return weight and bias of the input projections, and both of the output projection."""
    assert module.in_proj_weight is not None
    assert module.in_proj_bias is not None
    return module.in_proj_weight, module.in_proj_bias, (module.out_proj.weight, module.out_proj.bias)


def _track(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors with the same values and strides that record gradients."""
    return tuple(one.detach().requires_grad_() for one in tensors)


def time_steps(steps: Sequence[Step], calls: int, *, backward: bool) -> dict[tuple[str, str], float]:
    """Return the median processor time of each step in milliseconds, by side and name."""
    order = random.Random(0)  # noqa: S311  # the order of calls, no secret
    with torch.set_grad_enabled(backward):
        cotangents = [torch.randn_like(step.run(*step.inputs).float()) if backward else None for step in steps]
        times: list[list[int]] = [[] for _ in steps]
        # The first cycle warms up.
        for cycle in range(calls + 1):
            for index in order.sample(range(len(steps)), len(steps)):
                begin = time.process_time_ns()
                steps[index].call(cotangents[index])
                if cycle:
                    times[index].append(time.process_time_ns() - begin)
    return {(step.side, step.name): statistics.median(own) / 1e6 for step, own in zip(steps, times, strict=True)}


def format_table(
    steps: Sequence[Step], times_ms: Mapping[str, Mapping[tuple[str, str], float]], flop_per_s: float
) -> str:
    """Format the times of each pass, and their share of the rate of matrix products, as a Markdown table."""
    passes = list(times_ms)
    lines = [
        f"| side | step | {' | '.join(f'{pass_}, ms | of the ceiling' for pass_ in passes)} |",
        f"| --- | --- |{' ---: | ---: |' * len(passes)}",
    ]
    for step in steps:
        cells = []
        for pass_ in passes:
            took_ms = times_ms[pass_][step.side, step.name]
            # Backward of a product is two products of the same size.
            flop = step.flop * (3 if "backward" in pass_ else 1)
            cells += [f"{took_ms:.2f}", f"{flop / flop_per_s * 1e3 / took_ms:.0%}" if flop else ""]
        lines.append(f"| {step.side} | {step.name} | {' | '.join(cells)} |")
    for pass_, took in times_ms.items():
        fast = took[REFERENCE, WHOLE] / took[PACKED, WHOLE]
        products = sum(ms for (side, name), ms in took.items() if side == PACKED and name in PRODUCTS)
        lines.append(
            f"\n{pass_}: {fast:.2f} times as fast; {took[REFERENCE, WHOLE] / products:.2f} times if the projections "
            "and attention took all the time."
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Time the steps for each shape, and print a table for each."""
    parser = argparse.ArgumentParser(prog="python -m research.padded_steps", description=__doc__.partition(":")[0])
    parser.add_argument("--calls", type=int, default=CALLS, help="number of calls of each step")
    options = parser.parse_args(arguments)
    if reason := sentence_encoder.describe_missing():
        print(reason, file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    for shape in SHAPES:
        steps = make_steps(shape)
        times = {
            pass_: time_steps(steps, options.calls, backward="backward" in pass_)
            for pass_ in ("forward", "forward and backward")
        }
        flop_per_s = measure_roofline("float32", "cpu").flop_per_s
        print(f"{shape}, {flop_per_s / 1e9:.0f} GFLOP/s\n\n{format_table(steps, times, flop_per_s)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
