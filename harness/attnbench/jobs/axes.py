"""The sizes and masks that a job chooses for timed calls, multiplied with one another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from attnbench.cases import Shape
from attnbench.jobs.errors import JobError
from attnbench.jobs.values import Length, format_value

__all__ = ["AXES", "MODELS", "Model", "make_shapes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes of the attention of a well-known model, and lengths that are typical of it."""

    heads: int
    head_dim: int
    lengths: tuple[Length, ...]
    mask: str = "none"
    kv_heads: int | None = None
    # Where the sizes are from.
    source: str


MODELS = {
    "bert-base": Model(
        heads=12, head_dim=64, lengths=(128, 512), mask="padding",
        source="https://huggingface.co/google-bert/bert-base-uncased/blob/main/config.json",
    ),
    "vit-b16": Model(
        heads=12, head_dim=64, lengths=(197,),
        source="https://huggingface.co/google/vit-base-patch16-224/blob/main/config.json",
    ),
    "gpt2": Model(
        heads=12, head_dim=64, lengths=(256, 1024), mask="causal",
        source="https://huggingface.co/openai-community/gpt2/blob/main/config.json",
    ),
    "llama-3-8b": Model(
        heads=32, head_dim=128, kv_heads=8, lengths=(512, 2048), mask="causal",
        source="https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json",
    ),
    "whisper-small": Model(
        heads=12, head_dim=64, lengths=(1500,),
        source="https://huggingface.co/openai/whisper-small/blob/main/config.json",
    ),
}  # fmt: skip

# The sizes that no field chooses; the lengths always come from a field or from the kind of job.
DEFAULT = Shape(queries=1, keys=1)
# The fields that choose sizes and masks.
AXES = ("lengths", "batch", "heads", "head_dim", "width", "kv_heads", "mask", "padding", "like")


def make_shapes(fields: Mapping[str, Any], *, lengths: Sequence[Length]) -> list[Shape]:
    """Return every combination of the sizes and masks that the fields of a job choose.

    ``like`` sets those that no field sets. ``lengths`` are the lengths that neither ``lengths`` nor ``like`` chooses.

    Raises: JobError where fields exclude or contradict one another, or a width cannot be divided among the heads.
    """
    axes = {name: fields[name] for name in AXES if name != "like"}
    if axes["width"] and axes["head_dim"]:
        raise JobError("width", "{width} and {head_dim} exclude one another: the width is heads times head_dim")
    if axes["padding"] and min(axes["batch"] or (DEFAULT.batch,)) < 2:
        raise JobError("padding", "a batch of one sequence has no padding; name {batch} of at least 2")
    if fields["like"]:
        _take_sizes(axes, fields["like"])
    combinations = product(
        axes["batch"] or (DEFAULT.batch,), axes["heads"] or (DEFAULT.heads,), axes["kv_heads"] or (None,),
        axes["width"] or axes["head_dim"] or (DEFAULT.head_dim,), axes["mask"] or (DEFAULT.mask,),
        axes["padding"] or (DEFAULT.padding,), axes["lengths"] or lengths,
    )  # fmt: skip
    found = []
    for batch, heads, kv_heads, wide, mask, padding, length in combinations:
        if axes["width"] and wide % heads:
            raise JobError(
                "width", "{wide} cannot be divided among {count} heads; name another {heads}", wide=wide,
                count=heads,
            )  # fmt: skip
        if kv_heads and heads % kv_heads:
            raise JobError(
                "kv_heads", "{count} heads cannot be divided among {kv} key heads; name other {kv_heads}",
                count=heads, kv=kv_heads,
            )  # fmt: skip
        queries, keys = (length, length) if isinstance(length, int) else length
        found.append(
            Shape(
                queries=queries,
                keys=keys,
                batch=batch,
                heads=heads,
                head_dim=wide // heads if axes["width"] else wide,
                kv_heads=kv_heads,
                mask=mask,
                padding=padding,
            )
        )
    return found


def _take_sizes(axes: dict[str, Any], name: str) -> None:
    """Add the sizes of a model to the axes, and its mask and lengths if no field has chosen them.

    Raises: JobError where a field chooses a size that the model does not have.
    """
    model = MODELS[name]
    sizes = {"heads": model.heads, "head_dim": model.head_dim, "kv_heads": model.kv_heads or model.heads}
    for axis, own in (*sizes.items(), ("width", model.heads * model.head_dim)):
        if set(axes[axis]) - {own}:
            raise JobError(
                axis, f"{{name}} has {{own}}, got {{got}}; leave out {{{axis}}}, or {{like}}", name=name, own=own,
                got=format_value(axes[axis]),
            )  # fmt: skip
    axes |= {"heads": (model.heads,), "head_dim": (model.head_dim,), "width": ()}
    axes["kv_heads"] = () if model.kv_heads is None else (model.kv_heads,)
    axes["mask"] = axes["mask"] or (model.mask,)
    axes["lengths"] = axes["lengths"] or model.lengths
