"""List the ways in which the layers of a module can be the projections of attention."""

from collections.abc import Iterator
from itertools import permutations

from torch import nn

from attnbench.kernel.differentiable import find_differentiable
from attnbench.workers.trial.roles import find_layer_role

__all__ = ["list_projections"]

Layers = dict[str, str]


def list_projections(module: nn.Module, width: int) -> Iterator[tuple[Layers, bool]]:
    """Yield mappings of projections to layers, and whether weights are (inputs, outputs); the likeliest comes first.

    A mapping that the names of the layers say is not doubted: a module that computes otherwise is wrong.
    """
    weights = {name: one for name, one in find_differentiable(module).items() if one.dim() == 2}
    by_count: dict[int, list[str]] = {1: [], 2: [], 3: []}
    transposed = False
    for name, weight in weights.items():
        count = weight.numel() // width**2
        if count not in by_count or sorted(weight.shape) != [width, count * width]:
            return
        by_count[count].append(name.removesuffix(".weight"))
        transposed |= count > 1 and weight.shape[0] == width
    square = [
        isinstance(module.get_submodule(layer.rpartition(".")[0] if layer in weights else layer), nn.Linear)
        for layer in by_count[1]
    ]
    # The shape of a square weight does not say which dimension has the inputs; those of ``torch.nn.Linear`` are known.
    both = (False,) if any(square) else (False, True)
    for own in (transposed,) if by_count[2] or by_count[3] else both:
        for layers in _map_layers(by_count[1], by_count[2], by_count[3]):
            yield layers, own


def _map_layers(single: list[str], double: list[str], triple: list[str]) -> Iterator[Layers]:
    if len(triple) == 1 and not double and len(single) <= 1:
        out = {"out": single[0]} if single else {}
        for key in _list_keys("qkv"):
            yield {key: triple[0], **out}
    elif len(double) == 1 and not triple and len(single) in (1, 2):
        for names in _assign(single, ("q", "out")):
            for key in _list_keys("kv"):
                yield {"q": names["q"], key: double[0], **{role: one for role, one in names.items() if role == "out"}}
    elif not double and not triple and len(single) in (3, 4):
        yield from _assign(single, ("q", "k", "v", "out"))


def _list_keys(letters: str) -> Iterator[str]:
    """Yield the keys of a layer that computes several projections."""
    for suffix in ("", " by head"):
        for order in permutations(letters):
            yield "".join(order) + suffix


def _assign(layers: list[str], roles: tuple[str, ...]) -> Iterator[Layers]:
    """Yield layers by role: as their names say, or in every order, that of the module first."""
    wanted = roles[: len(layers)]
    named = {str(find_layer_role(layer)): layer for layer in layers}
    if {*named} == {*wanted}:
        yield {role: named[role] for role in wanted}
        return
    for order in permutations(layers):
        yield dict(zip(wanted, order, strict=True))
