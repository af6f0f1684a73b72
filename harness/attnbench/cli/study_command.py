"""``attnbench study``: figures and tables that show why attention is as it is."""

import tempfile
from pathlib import Path
from typing import Any

import click

from attnbench.cli.options import Lengths, options
from attnbench.plugins.registry import known
from attnbench.processes.rpc import Child, ChildDied

__all__ = ["command"]

# Widths of a head that are drawn unless others are asked for, and keys of a row.
WIDTHS = {"saturation": (4, 8, 16, 32, 64, 128, 256, 512), "additive": (4, 8, 16, 32, 64, 128, 256)}
KEYS = 64
# Most keys of a row, and the widest head: the study of additive scores then takes less than 1 GiB.
MOST_KEYS, MOST_WIDTH = 4096, 2048
# Seeds of torch have 64 bits; those of repeats are some more than the one that is given.
MOST_SEED = 2**63 - 1

HEAD_DIMS = click.option("--head-dims", type=Lengths(), help="Widths of a head, such as 16,64,256.")
ROW_KEYS = click.option("--keys", type=click.IntRange(min=2, max=MOST_KEYS), default=KEYS, show_default=True)
SEED = click.option("--seed", type=click.IntRange(0, MOST_SEED), default=0, show_default=True)
TEXT = click.option("--text", "texts", multiple=True, help="A sentence of your own.")
IMPLEMENTATION = click.argument("implementation", default="torch_mha")


@click.group("study")
def command() -> None:
    """Figures and tables that show why attention is as it is, written into the folder of the report and its page."""


@command.command("saturation")
@HEAD_DIMS
@ROW_KEYS
@SEED
@options("reports")
def saturation(head_dims: tuple[int, ...] | None, reports: Path, **asked: Any) -> int:
    """The softmax without the scale 1/√d: distribution, entropy and gradient against the width of a head."""
    return _study("saturation", reports, head_dims=head_dims or WIDTHS["saturation"], **asked)


@command.command("additive")
@HEAD_DIMS
@ROW_KEYS
@SEED
@options("reports")
def additive(head_dims: tuple[int, ...] | None, reports: Path, **asked: Any) -> int:
    """Additive against dot-product scores, before training and after a little."""
    return _study("additive", reports, head_dims=head_dims or WIDTHS["additive"], **asked)


@command.command("maps")
@IMPLEMENTATION
@click.option("--layer", type=click.IntRange(0, 5), default=2, show_default=True, help="Layer of the encoder.")
@click.option("--head", "heads", type=click.IntRange(0, 11), multiple=True, help="Heads to show; all if not given.")
@TEXT
@options("reports")
def maps(implementation: str, heads: tuple[int, ...], texts: tuple[str, ...], reports: Path, **asked: Any) -> int:
    """Attention maps of an IMPLEMENTATION in the real sentence encoder, for a padded batch of sentences."""
    known(implementation)
    return _study("maps", reports, implementation=implementation, heads=sorted(set(heads)), texts=texts, **asked)


@command.command("padding")
@IMPLEMENTATION
@click.option("--head", type=click.IntRange(0, 11), default=3, show_default=True, help="Head whose row is shown.")
@click.option("--token", default="yeast", show_default=True, help="Token whose row is shown, as tokenized.")
@TEXT
@options("reports")
def padding(implementation: str, texts: tuple[str, ...], reports: Path, **asked: Any) -> int:
    """What padding does to a row of attention, with the mask and without it."""
    known(implementation)
    return _study("padding", reports, implementation=implementation, texts=texts, **asked)


def _study(name: str, reports: Path, **asked: Any) -> int:
    """Compute in a process of its own, which alone imports torch; then draw."""
    from attnbench.report.studies import write

    if (widest := max(asked.get("head_dims", (1,)))) > MOST_WIDTH:
        raise click.UsageError(f"--head-dims must be at most {MOST_WIDTH}, got {widest}")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="attnbench-") as folder,
            Child("attnbench.study.process", log=Path(folder) / "study.log") as child,
        ):
            found = child.ask({"do": "study", "name": name, **asked})
    except ChildDied as error:
        remedy = "ask for less (--head-dims, --keys, --text)"
        raise click.UsageError(f"the study's process ended: {error}; {remedy}") from None
    if "fault" in found:
        raise click.UsageError(found["fault"])
    click.echo(write(name, found, reports))
    return 0
