"""Descriptions of the studies of multi-head attention in a real sentence encoder; this module imports no torch."""

from collections.abc import Sequence

import click

from attnbench.plugins.file_objects import read_name
from attnstudies import Study

__all__ = ["MAPS", "PADDING"]

# LAYERS: indices of the layers of the encoder. HEADS: indices of the heads of a layer.
LAYERS, HEADS = click.IntRange(0, 5), click.IntRange(0, 11)


def _read_implementation(context: click.Context, parameter: click.Parameter, value: str) -> str:  # noqa: ARG001
    """Return the complete form of the name of an implementation.

    Raises: PluginError as ``read_name``.
    """
    return read_name(value)


def _sort_heads(context: click.Context, parameter: click.Parameter, value: Sequence[int]) -> list[int]:  # noqa: ARG001
    return sorted(set(value))


IMPLEMENTATION = click.Argument(["implementation"], default="torch_mha", callback=_read_implementation)
TEXT = click.Option(["--text", "texts"], multiple=True, help="Sentence to use instead of the default.")

MAPS = Study(
    summary="Attention maps of an IMPLEMENTATION in the real sentence encoder, for a padded batch of sentences.",
    compute="attnstudies.maps:compute_maps",
    draw="attnstudies.maps_figure:draw",
    parameters=(
        IMPLEMENTATION,
        click.Option(["--layer"], type=LAYERS, default=2, show_default=True, help="Layer of the encoder."),
        click.Option(
            ["--head", "heads"], type=HEADS, multiple=True, callback=_sort_heads, help="Heads to show; default: all."
        ),
        TEXT,
    ),
)
PADDING = Study(
    summary="What padding does to a row of attention weights, with the mask and without it.",
    compute="attnstudies.padding:compute_padding",
    draw="attnstudies.padding_figure:draw",
    parameters=(
        IMPLEMENTATION,
        click.Option(["--head"], type=HEADS, default=3, show_default=True, help="Head whose row is shown."),
        click.Option(["--token"], default="yeast", show_default=True, help="Token of the text whose row is shown."),
        TEXT,
    ),
)
