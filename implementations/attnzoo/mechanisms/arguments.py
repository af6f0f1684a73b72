"""What does not fit is refused in one line, before it broadcasts into a wrong answer."""

import torch
from torch import Tensor

__all__ = ["demand", "demand_heads"]

# Names of masks: each must be boolean, since numbers would be taken for true and false.
MASKS = ("key_padding_mask", "attn_mask", "keep")


def demand(**given: tuple[Tensor | None, str]) -> None:
    """Refuse tensors whose shapes do not fit together, and masks that are not boolean.

    Each tensor comes with the names of its sizes, such as "batch length width"; a bar parts two such lists, and a
    number is itself. Whichever tensor has a name first says how large it is.

    Raises: ValueError, TypeError.
    """
    sizes: dict[str, int] = {}
    for name, (tensor, words) in given.items():
        if tensor is None:
            continue
        if name in MASKS and tensor.dtype != torch.bool:
            raise TypeError(f"{name} must be boolean, got {tensor.dtype}; for numbers see attnbench.masks")
        lists, shape = [part.split() for part in words.split("|")], tuple(tensor.shape)
        known = [f"{word} = {sizes[word]}" for word in dict.fromkeys(words.split()) if word in sizes]
        labels = next((part for part in lists if len(part) == len(shape)), None)
        found = [
            int(label) if label.isdigit() else sizes.setdefault(label, size)
            for label, size in zip(labels or (), shape, strict=False)
        ]
        if labels is None or found != list(shape):
            wanted = " or ".join(f"({', '.join(part)})" for part in lists)
            told = f" with {', '.join(known)}" if known else ""
            raise ValueError(f"{name} must have shape {wanted}{told}, got {shape}")


def demand_heads(num_heads: int, embed_dim: int) -> None:
    """Refuse a number of heads that does not divide the width.

    Raises: ValueError.
    """
    if num_heads < 1 or embed_dim % num_heads:
        raise ValueError(f"num_heads must divide embed_dim = {embed_dim}, got {num_heads}")
