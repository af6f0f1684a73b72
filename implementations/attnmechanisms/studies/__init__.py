"""Studies of the mechanisms, as ``attnbench study`` lists them. Importing this module does not import torch."""

import click

from attnbench.jobs.values import COUNTS
from attnbench.study import Study

__all__ = ["ADDITIVE", "SATURATION"]

# Default number of keys in a row of scores.
KEYS = 64
# MOST_KEYS: largest number of keys in a row of scores. MOST_WIDTH: largest width of a head. With
# both maxima, the study ``additive`` takes less than 1 GiB of memory.
MOST_KEYS, MOST_WIDTH = 4096, 2048
# Largest value of ``--seed``. Torch takes seeds below 2**64. The largest value is smaller, because a
# study that repeats a training also uses the next seeds after the given seed.
MOST_SEED = 2**63 - 1


def _check_widths(
    context: click.Context,  # noqa: ARG001  # click passes it
    parameter: click.Parameter,  # noqa: ARG001
    value: str,
) -> tuple[int, ...]:
    try:
        widths: tuple[int, ...] = COUNTS.parse(value)
    except ValueError:
        raise click.UsageError(f"--head-dims: needs whole numbers of at least 1, got {value!r}") from None
    if max(widths) > MOST_WIDTH:
        raise click.UsageError(f"--head-dims must be at most {MOST_WIDTH}, got {max(widths)}")
    return widths


def _parameters(widths: tuple[int, ...]) -> tuple[click.Parameter, ...]:
    """Return the options of a study that compares widths of a head.

    ``widths`` is the default of ``--head-dims``.
    """
    return (
        click.Option(
            ["--head-dims"], metavar="NUMBERS", default=",".join(map(str, widths)), callback=_check_widths,
            help="Head widths to compare, such as 16,64,256.",
        ),
        click.Option(["--keys"], type=click.IntRange(min=2, max=MOST_KEYS), default=KEYS, show_default=True),
        click.Option(["--seed"], type=click.IntRange(0, MOST_SEED), default=0, show_default=True),
    )  # fmt: skip


SATURATION = Study(
    summary="Softmax without the scale 1/√d: attention weights, entropy and gradient against the width of a head.",
    compute="attnmechanisms.studies.saturation:saturation",
    draw="attnmechanisms.studies.saturation_figure:draw",
    parameters=_parameters((4, 8, 16, 32, 64, 128, 256, 512)),
)
ADDITIVE = Study(
    summary="Additive scores compared with dot-product scores, before and after a short training.",
    compute="attnmechanisms.studies.additive:additive",
    draw="attnmechanisms.studies.additive_figure:draw",
    parameters=_parameters((4, 8, 16, 32, 64, 128, 256)),
)
