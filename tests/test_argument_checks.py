"""Tests of the checks of arguments in ``attnbench.argument_checks``."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnbench import masks
from attnbench.argument_checks import demand_dtype, demand_heads, demand_shapes, demand_tensor, demand_whole_numbers

TOKENS = torch.zeros(2, 3, 4)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: demand_tensor("mask", [True]), TypeError, "mask must be a tensor, got list"),
        (
            lambda: demand_tensor("mask", TOKENS.int(), "boolean", "floating point"),
            TypeError,
            "mask must be boolean or floating point, got torch.int32",
        ),
        (
            lambda: demand_tensor("lengths", TOKENS.to(torch.complex64), "whole numbers"),
            TypeError,
            "lengths must be whole numbers, got torch.complex64",
        ),
        (lambda: demand_dtype(torch.int64), TypeError, "dtype must be floating point, got torch.int64"),
        (lambda: demand_dtype("float32"), TypeError, "dtype must be floating point, got float32"),
        (lambda: demand_shapes(x=(None, "batch")), TypeError, "x must be a tensor, got NoneType"),
        (
            lambda: demand_shapes(x=(TOKENS, "batch length width"), y=(TOKENS[:, 0], "batch length | width 4")),
            ValueError,
            "y must have shape (batch, length) or (width, 4) with batch = 2, length = 3, width = 4, got (2, 4)",
        ),
        (lambda: demand_whole_numbers(padding=0.5), TypeError, "padding must be a whole number, got 0.5"),
        (lambda: demand_whole_numbers(1, a=1, b=True), TypeError, "b must be a whole number of at least 1, got True"),
        (lambda: demand_whole_numbers(0, a=-1), ValueError, "a must be a whole number of at least 0, got -1"),
        (
            lambda: demand_heads(2.0, {"embed_dim": 4}),
            TypeError,
            "num_heads must be a whole number of at least 1, got 2.0",
        ),
        (lambda: demand_heads(3, {"embed_dim": 4}), ValueError, "num_heads must divide embed_dim = 4, got 3"),
    ],
)
def test_a_wrong_argument_is_an_error_of_one_line(
    wrong: Callable[[], object], error: type[Exception], message: str
) -> None:
    """The line names the argument, what was needed and what was given."""
    with pytest.raises(error) as raised:
        wrong()
    assert str(raised.value) == message


def test_numpy_integers_are_whole_numbers() -> None:
    """An integer of any class is accepted."""
    demand_whole_numbers(1, num_heads=torch.ones(1, dtype=torch.int64).numpy()[0])


class _Masked(torch.nn.Module):
    def forward(self, tokens: Tensor, padding: Tensor, lengths: Tensor) -> Tensor:
        keys = tokens.shape[1]
        later = masks.union(padding, masks.causal(keys, keys))
        kept = masks.reference_mask(masks.over_heads(later, 2).flatten(0, 1), padding, num_heads=2, dtype=tokens.dtype)
        keep, _ = masks.positional(
            keys, keys, causal="bottom_right", window=2, key_lengths=lengths, slopes=None, dtype=tokens.dtype
        )
        both = masks.extended(masks.combined(kept, keep, tokens.dtype), 0)
        short = masks.from_lengths(lengths, keys, polarity="keep")[:, None, None, :]
        return masks.softmax_over_visible(masks.additive(both & short, tokens.dtype))


@pytest.mark.parametrize("sizes_vary", [False, True])
def test_argument_checks_compile_without_graph_breaks(sizes_vary: bool) -> None:
    """A module that checks its arguments and makes masks is compiled to one graph, for static and for dynamic sizes."""
    given = [(torch.zeros(b, 4, 6), torch.zeros(b, 4, dtype=torch.bool), torch.full((b,), 3)) for b in (2, 3)]
    compiled = torch.compile(_Masked(), backend="eager", fullgraph=True, dynamic=sizes_vary)
    for arguments in given:
        assert torch.equal(compiled(*arguments), _Masked()(*arguments))


def test_masks_are_exported_for_any_batch() -> None:
    """Argument checks do not bind an exported graph to the batch size of the example inputs."""
    batch = torch.export.Dim("batch")
    arguments = (torch.zeros(3, 4, 6), torch.zeros(3, 4, dtype=torch.bool), torch.full((3,), 3))
    exported = torch.export.export(_Masked(), arguments, dynamic_shapes=[{0: batch}] * 3)
    more = tuple(torch.cat([each, each]) for each in arguments)
    assert torch.equal(exported.module()(*more), _Masked()(*more))
