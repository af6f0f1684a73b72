"""The option ``--padding``, and the shares that come out of it."""

from collections.abc import Iterable
from typing import Any

import click

from attnbench.cases import Shape
from attnbench.operators.sentence_lengths import compute_padded_share, draw_sentence_lengths

__all__ = ["Shares", "describe_padding"]


class Shares(click.ParamType[tuple[float, ...]]):
    """Comma-separated numbers above 0 and below 1, ascending."""

    name = "shares"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Return the shares.

        Raises: BadParameter where a share is not above 0 and below 1.
        """
        if isinstance(value, tuple):
            return value
        try:
            # The id of a case has six digits of a share.
            found = {float(f"{float(part):g}") for part in value.split(",")}
        except ValueError:
            found = set()
        if not found or not all(0 < share < 1 for share in found):
            self.fail(
                f"needs numbers above 0 and below 1, separated by commas, got {value!r}; for example 0.3,0.5",
                param,
                ctx,
            )
        return tuple(sorted(found))


def describe_padding(shapes: Iterable[Shape]) -> str:
    """Return the share of padding that each batch gets, in words; empty if no shape has a share."""
    told = dict.fromkeys(_describe_batch(shape) for shape in shapes if shape.padding)
    return f"padding comes out as {', '.join(told)}" if told else ""


def _describe_batch(shape: Shape) -> str:
    # The cases of shapes have the seed 0.
    lengths = draw_sentence_lengths(shape.padding, shape.batch, shape.keys, 0)
    share = compute_padded_share(lengths, shape.keys)
    return f"{share:.4g} for {shape.padding:g} of {shape.batch} × {shape.keys}"
