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

    @classmethod
    def from_options(cls, given: Mapping[str, Any], *, lengths: Sequence[Length]) -> Self:
        """Take the axes from a command's options; --like sets those that no option sets.

        ``lengths`` are the lengths without the options --lengths and --like.

        Raises: UsageError where options exclude one another.
        """
        axes: dict[str, Any] = {name: tuple(given.get(name) or ()) for name in cls.__dataclass_fields__}
        if axes["width"] and axes["head_dim"]:
            raise UsageError("--width and --head-dim exclude one another: the width is heads times head_dim")
        if given.get("like"):
            model = MODELS[given["like"]]
            axes["heads"] = axes["heads"] or (model.heads,)
            axes["head_dim"] = axes["head_dim"] or (() if axes["width"] else (model.head_dim,))
            axes["kv_heads"] = axes["kv_heads"] or (() if model.kv_heads is None else (model.kv_heads,))
            axes["masks"] = axes["masks"] or (model.mask,)
            axes["lengths"] = axes["lengths"] or model.lengths
        axes["lengths"] = axes["lengths"] or tuple(lengths)
        return cls(**axes)

    @property
    def chosen(self) -> bool:
        """Whether any option chooses more than lengths with as many queries as keys."""
        sizes = self.batch or self.heads or self.head_dim or self.kv_heads or self.width or self.masks
        return bool(sizes) or not all(isinstance(length, int) for length in self.lengths)

    def make_shapes(self) -> list[Shape]:
        """Return every combination of the values of all axes.

        Raises: UsageError where a width cannot be divided among the heads.
        """
        default = Shape(queries=1, keys=1)
        combinations = product(
            self.batch or (default.batch,), self.heads or (default.heads,), self.kv_heads or (None,),
            self.width or self.head_dim or (default.head_dim,), self.masks or (default.mask,), self.lengths,
        )  # fmt: skip
        found = []
        for batch, heads, kv_heads, wide, mask, length in combinations:
            if self.width and wide % heads:
                raise UsageError(f"--width: {wide} cannot be divided among {heads} heads; name another --heads")
            queries, keys = (length, length) if isinstance(length, int) else length
            head_dim = wide // heads if self.width else wide
            found.append(
                Shape(
                    queries=queries,
                    keys=keys,
                    batch=batch,
                    heads=heads,
                    head_dim=head_dim,
                    kv_heads=kv_heads,
                    mask=mask,
                )
            )
        return found
