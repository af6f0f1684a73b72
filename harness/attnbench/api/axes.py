"""The sizes and masks that options choose for timed calls, multiplied with one another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Self

from attnbench.api.usage import UsageError
from attnbench.cases import Shape

__all__ = ["MODELS", "Axes", "Length", "Model"]

# A length: a number of tokens, or the numbers of queries and keys.
Length = int | tuple[int, int]


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


# The sizes that no option chooses; the lengths always come from an option or from the command.
DEFAULT = Shape(queries=1, keys=1)
# The options that choose sizes and masks, by the names of their parameters.
OPTIONS = {
    "lengths": "--lengths", "batch": "--batch", "heads": "--heads", "head_dim": "--head-dim", "width": "--width",
    "kv_heads": "--kv-heads", "masks": "--mask", "padding": "--padding", "like": "--like",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What each option chooses; an empty axis has the default of ``Shape``."""

    lengths: tuple[Length, ...]
    batch: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    head_dim: tuple[int, ...] = ()
    kv_heads: tuple[int, ...] = ()
    width: tuple[int, ...] = ()
    masks: tuple[str, ...] = ()
    padding: tuple[float, ...] = ()

    # The options that chose something, as they are written.
    options: tuple[str, ...] = ()

    @classmethod
    def from_options(cls, given: Mapping[str, Any], *, lengths: Sequence[Length]) -> Self:
        """Take the axes from a command's options; --like sets those that no option sets.

        ``lengths`` are the lengths without the options --lengths and --like.

        Raises: UsageError where options exclude or contradict one another.
        """
        axes: dict[str, Any] = {name: tuple(given.get(name) or ()) for name in OPTIONS if name != "like"}
        axes["options"] = tuple(option for name, option in OPTIONS.items() if given.get(name))
        if axes["width"] and axes["head_dim"]:
            raise UsageError("--width and --head-dim exclude one another: the width is heads times head_dim")
        if axes["padding"] and min(axes["batch"] or (DEFAULT.batch,)) < 2:
            raise UsageError("--padding: a batch of one sequence has no padding; name --batch of at least 2")
        if given.get("like"):
            _take_sizes(axes, given["like"])
        axes["lengths"] = axes["lengths"] or tuple(lengths)
        return cls(**axes)

    @property
    def chosen(self) -> bool:
        """Whether any option chooses more than lengths with as many queries as keys."""
        sizes = self.batch or self.heads or self.head_dim or self.kv_heads or self.width or self.masks or self.padding
        return bool(sizes) or not all(isinstance(length, int) for length in self.lengths)

    def make_shapes(self) -> list[Shape]:
        """Return every combination of the values of all axes.

        Raises: UsageError where a width cannot be divided among the heads.
        """
        combinations = product(
            self.batch or (DEFAULT.batch,), self.heads or (DEFAULT.heads,), self.kv_heads or (None,),
            self.width or self.head_dim or (DEFAULT.head_dim,), self.masks or (DEFAULT.mask,),
            self.padding or (DEFAULT.padding,), self.lengths,
        )  # fmt: skip
        found = []
        for batch, heads, kv_heads, wide, mask, padding, length in combinations:
            if self.width and wide % heads:
                raise UsageError(f"--width: {wide} cannot be divided among {heads} heads; name another --heads")
            if kv_heads and heads % kv_heads:
                raise UsageError(
                    f"--kv-heads: {heads} heads cannot be divided among {kv_heads} key heads; name other --kv-heads"
                )
            queries, keys = (length, length) if isinstance(length, int) else length
            found.append(
                Shape(
                    queries=queries,
                    keys=keys,
                    batch=batch,
                    heads=heads,
                    head_dim=wide // heads if self.width else wide,
                    kv_heads=kv_heads,
                    mask=mask,
                    padding=padding,
                )
            )
        return found


def _take_sizes(axes: dict[str, Any], name: str) -> None:
    """Add the sizes of a model to the axes, and its mask and lengths if no option has chosen them.

    Raises: UsageError where an option chooses a size that the model does not have.
    """
    model = MODELS[name]
    sizes = {"heads": model.heads, "head_dim": model.head_dim, "kv_heads": model.kv_heads or model.heads}
    for axis, own in (*sizes.items(), ("width", model.heads * model.head_dim)):
        if set(axes[axis]) - {own}:
            option = OPTIONS[axis]
            raise UsageError(
                f"{option}: {name} has {own}, got {','.join(map(str, axes[axis]))}; leave out {option}, or --like"
            )
    axes |= {"heads": (model.heads,), "head_dim": (model.head_dim,), "width": ()}
    axes["kv_heads"] = () if model.kv_heads is None else (model.kv_heads,)
    axes["masks"] = axes["masks"] or (model.mask,)
    axes["lengths"] = axes["lengths"] or model.lengths
