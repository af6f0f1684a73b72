"""Tests of one implementation on one case: what it returns, and its gradients in the reference's layout."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import Case, Mode
from attnbench.interface import Implementation
from attnbench.operators.multihead.suites import CROSS, SELF
from attnbench.oracle.inputs import round_inputs
from attnbench.plugins.registry import load, load_operator

if TYPE_CHECKING:
    from conftest import Conformance


def case(mode: Mode = "train", **changes: Any) -> Case:
    """Case in float64."""
    return Case(operator="multihead", problem=CROSS, dtype="float64", mode=mode).with_problem(**changes)


class Returns(Implementation):
    """Implementation whose call returns what it is told to make of the reference's results."""

    name = "returns"

    def __init__(self, change: Callable[[Tensor, Tensor | None], Any]) -> None:
        self._change = change

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """The reference itself."""
        return reference

    def prepare(self, module: Any, case: Case, inputs: Any) -> Any:
        """A call with other results."""
        return lambda **arguments: self._change(*module(**arguments))


def candidate(implementation: Implementation | Callable[..., Any], one: Case) -> Candidate:
    """Implementation, or a change of the reference's results, on a case."""
    operator = load_operator("multihead")
    if not isinstance(implementation, Implementation):
        implementation = Returns(implementation)
    return Candidate(implementation, operator, one, operator.inputs(one))


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Fail unless both hold the same quantities."""
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize(
    "changes",
    [
        {"need_weights": True, "mask": "float3d+padfloat", "add_bias_kv": True},
        {"kdim": 10, "vdim": 14},
        {"bias": False},
    ],
)
@pytest.mark.parametrize("name", ["torch_mha", "per_head"])
def test_gradients_are_in_the_layout_of_the_reference(name: str, changes: dict[str, Any]) -> None:
    """Whatever layout a module's parameters have, gradients come under the reference's names, and are right."""
    one = case(**changes)
    on = candidate(load(name), one)
    exact = round_inputs(on.inputs.map_tensors(torch.Tensor.detach), torch.float64)
    expected = load_operator("multihead").evaluate(one, exact)
    assert_close(on.outputs | on.gradients, expected)
    own = {"in_proj_weight"} if name == "torch_mha" else {"w_q.0"}
    assert own <= on.parameters().keys() or changes.get("kdim")


def test_one_tensor_as_query_key_and_value_has_one_gradient() -> None:
    """It stands under the first name."""
    on = candidate(load("torch_mha"), Case(operator="multihead", problem=SELF, mode="train"))
    assert {"grad.query"} <= on.gradients.keys()
    assert {"grad.key", "grad.value"}.isdisjoint(on.gradients)


def test_a_gradient_that_reaches_nothing_is_zero() -> None:
    """An output that ignores the keys has zero gradients there, told and not missing."""
    on = candidate(lambda output, weights: (output.detach() + on.inputs.tensors["query"], None), case())
    assert set(on.gradients) == {
        "grad.query", "grad.key", "grad.value",
        "grad.in_proj_weight", "grad.in_proj_bias", "grad.out_proj.weight", "grad.out_proj.bias",
    }  # fmt: skip
    assert torch.equal(on.gradients["grad.query"], on.inputs.cotangents["output"])
    assert not on.gradients["grad.key"].any()
    assert not on.gradients["grad.in_proj_weight"].any()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda output, weights: None, "the call must return a tuple (output, weights), got NoneType"),
        (lambda output, weights: output, "the call must return a tuple (output, weights), got Tensor"),
        (lambda output, weights: [output, None], "the call must return a tuple (output, weights), got list"),
        (lambda output, weights: (output,), "the call must return a tuple (output, weights), got a tuple of 1"),
        (lambda output, weights: (output, None, 1), "the call must return a tuple (output, weights), got a tuple of 3"),
        (lambda output, weights: (None, None), "output must be a Tensor, got NoneType"),
        (lambda output, weights: (output.tolist(), None), "output must be a Tensor, got list"),
        (lambda output, weights: (output, 0.5), "weights must be a Tensor or None, got float"),
    ],
)
def test_what_is_no_result_is_told_in_words(change: Callable[..., Any], fault: str) -> None:
    """The message says what a call must return and what came."""
    with pytest.raises(Malformed) as raised:
        candidate(change, case()).run()
    assert str(raised.value) == fault


def test_weights_that_are_none_are_left_out() -> None:
    """Only tensors are results."""
    assert candidate(lambda output, weights: (output, None), case()).run().keys() == {"output"}
    assert candidate(load("torch_mha"), case(need_weights=True)).run().keys() == {"output", "weights"}


def test_outputs_without_gradients_are_told() -> None:
    """An implementation that detaches its output has no backward."""
    on = candidate(lambda output, weights: (output.detach(), None), case())
    with pytest.raises(Malformed, match="no gradient reaches the inputs: the outputs do not require grad"):
        _ = on.gradients


class OwnNames(Implementation):
    """Module whose parameter has another name, with nothing said about it."""

    name = "own_names"

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """The reference as a part of something else."""

        class Wrapped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = reference

            def forward(self, **arguments: Any) -> Any:
                return self.inner(**arguments)

        return Wrapped()


def test_a_layout_that_is_not_declared_is_told_with_the_remedy() -> None:
    """The message names the parameters that nobody can match."""
    with pytest.raises(Malformed) as raised:
        _ = candidate(OwnNames(), case(bias=False)).gradients
    assert str(raised.value) == (
        "the module's parameters and the names that weights() returns differ in in_proj_weight, inner.in_proj_weight, "
        "inner.out_proj.weight, out_proj.weight; define weights(parameters) if the module names or lays out its "
        "parameters in another way"
    )


def test_boolean_masks_take_no_gradients() -> None:
    """Only floating tensors are leaves."""
    on = candidate(load("torch_mha"), case(mask="bool2d+pad"))
    assert {"grad.attn_mask", "grad.key_padding_mask"}.isdisjoint(on.gradients)


def test_a_step_with_gradients_returns_them() -> None:
    """The timed pass gives a gradient of the output to every floating input and every parameter."""
    on = candidate(load("torch_mha"), case(mask="float2d"))
    found = on.make_step()()
    expected = on.gradients
    names = ["query", "key", "value", "attn_mask", *on.parameters()]
    assert_close(dict(zip(names, found, strict=True)), {name: expected[f"grad.{name}"] for name in names})


def test_a_step_in_inference_returns_the_results() -> None:
    """The timed pass is the call alone, without gradients."""
    on = candidate(load("torch_mha"), case("inference"))
    output, _ = on.make_step()()
    assert not output.requires_grad
    assert torch.equal(output, on.outputs["output"])


def test_every_module_is_built_from_the_same_reference() -> None:
    """What one module does to its weights reaches neither the next one nor the reference."""
    on = candidate(lambda output, weights: (output, None), case())
    with torch.no_grad():
        on.module.out_proj.weight.zero_()
    module, _ = on.build()
    assert torch.equal(module.out_proj.weight, on.inputs.parameters["out_proj.weight"])
    assert bool(on.reference.out_proj.weight.any())


def test_inputs_are_overwritten_in_place_and_put_back() -> None:
    """The tensors stay the same objects, so that what was prepared for them sees the new values."""
    on = candidate(load("torch_mha"), case())
    query = on.inputs.tensors["query"]
    before = query.detach().clone()

    def look() -> None:
        with on.overwrite({"query": -before}):
            assert on.inputs.tensors["query"] is query
            assert torch.equal(query, -before)
            raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        look()
    assert torch.equal(query, before)
    assert query.requires_grad


def test_a_subject_gets_inputs_of_its_own(conformance: "Conformance") -> None:
    """One that writes into its inputs leaves those of the next one alone."""
    one = Case(operator="multihead", problem=CROSS)
    first = conformance.candidate(load("torch_mha"), one)
    with torch.no_grad():
        first.inputs.tensors["query"].zero_()
    assert bool(conformance.candidate(load("torch_mha"), one).inputs.tensors["query"].any())


class Watcher(nn.Module):
    """Returns its query scaled by a parameter, and notes how it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.seen: dict[str, bool] = {}

    def forward(self, **arguments: Any) -> tuple[Tensor, None]:
        """Note what a call can see of its mode."""
        self.seen = {
            "training": self.training,
            "gradients": torch.is_grad_enabled(),
            "inference_mode": torch.is_inference_mode_enabled(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "inputs": arguments["query"].requires_grad,
            "parameters": self.factor.requires_grad,
        }
        return arguments["query"] * self.factor, None


class Watching(Implementation):
    """An implementation whose module tells how it was called."""

    def build(self, reference: Any) -> Watcher:
        """A module without the reference's weights."""
        return Watcher().to(reference.out_proj.weight)


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("inference", set()),
        ("inference_mode", {"inference_mode"}),
        ("eval", {"gradients", "inputs", "parameters"}),
        ("train", {"training", "gradients", "inputs", "parameters"}),
        ("sampling", {"training"}),
        ("frozen", {"training", "gradients", "inputs"}),
        ("tuning", {"gradients", "parameters"}),
        ("autocast", {"training", "gradients", "autocast", "inputs", "parameters"}),
    ],
)
def test_a_mode_is_how_a_module_is_called(mode: Mode, told: set[str]) -> None:
    """Each mode shows inside the call, and nothing of it outlives the call."""
    watched = candidate(Watching(), case(mode).with_fields(dtype="bfloat16"))
    watched.run()
    assert {name for name, on in watched.module.seen.items() if on} == told
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("mode", ["aot", "exported"])
def test_a_compiled_mode_compiles(mode: Mode) -> None:
    """In a mode with a compiler the call is no longer the module's own, and gives what the module gives."""
    built = candidate(load("reshaped"), case(mode))
    assert built.call is not built.module
    with torch.set_grad_enabled(built.case.differentiates):
        eager = built.module(**built.inputs.arguments())[0]
    torch.testing.assert_close(built.run()["output"], eager)


class Liar(Tensor):
    """Says that it has another shape."""

    @property
    def shape(self) -> Any:
        """Not its shape."""
        return torch.Size([99])


class Lying(Watching):
    """Hands out a tensor of a class of its own."""

    def prepare(self, module: Any, case: Case, inputs: Any) -> Any:
        """A call that wraps its output."""
        return lambda **arguments: (arguments["query"].detach().as_subclass(Liar), None)


def test_a_subclass_of_tensor_is_judged_by_what_it_holds() -> None:
    """What an output says of itself does not count."""
    lied = candidate(Lying(), case())
    output = lied.run()["output"]
    assert type(output) is Tensor
    assert output.shape == lied.inputs.tensors["query"].shape
