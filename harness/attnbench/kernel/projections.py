"""Convert the reference's parameters into those of a module with other projections."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from attnbench.interface.conventions import OUT, is_by_head, read_letters

__all__ = ["convert_parameters", "find_weight"]


def convert_parameters(
    parameters: Mapping[str, Tensor], module: nn.Module, projections: Mapping[str, str], *, num_heads: int,
    transposed: bool,
) -> dict[str, Tensor]:  # fmt: skip
    """Return the parameters of a module's layers by name, computed from the reference's.

    Without a key for it in ``projections``, the output projection keeps its name in the reference. A bias of a layer
    for which the reference has none is 0. ``transposed`` says that weights are (inputs, outputs).
    """
    weights = {
        **dict(zip("qkv", parameters["in_proj_weight"].chunk(3), strict=True)),
        OUT: parameters[f"{OUT}_proj.weight"],
    }
    biased = "in_proj_bias" in parameters
    # A bias that the reference lacks depends on its weight, with a factor of 0, so that it has a derivative.
    biases = (
        {**dict(zip("qkv", parameters["in_proj_bias"].chunk(3), strict=True)), OUT: parameters[f"{OUT}_proj.bias"]}
        if biased
        else {key: 0 * weight[:, 0] for key, weight in weights.items()}
    )
    own = {}
    for key, layer in projections.items():
        weight = _join(key, weights, num_heads)
        own[find_weight(module, layer)] = weight.T if transposed else weight
        bias = f"{layer}.bias"
        if biased or _has_parameter(module, bias):
            own[bias] = _join(key, biases, num_heads)
    if OUT not in projections:
        own |= {f"{OUT}_proj.{kind}": one[OUT] for kind, one in (("weight", weights), *([("bias", biases)] * biased))}
    return own


def _join(key: str, parts: Mapping[str, Tensor], num_heads: int) -> Tensor:
    """Return the rows of one layer: those of its letters one after the other, or alternating by head."""
    if key == OUT:
        return parts[OUT]
    chosen = [parts[letter] for letter in read_letters(key)]
    if not is_by_head(key):
        return torch.cat(chosen)
    return torch.stack([torch.unflatten(one, 0, (num_heads, -1)) for one in chosen], dim=1).flatten(0, 2)


def find_weight(module: nn.Module, layer: str) -> str:
    """Return the name of a layer's weight; a layer may also be a parameter by itself."""
    return layer if _has_parameter(module, layer) else f"{layer}.weight"


def _has_parameter(module: nn.Module, name: str) -> bool:
    return name in dict(module.named_parameters())
