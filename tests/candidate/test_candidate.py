"""Tests of ``Candidate``: the form of results, gradients in the reference's layout, and the call modes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.candidate.candidate import Candidate, Malformed, WithoutGradient
from attnbench.cases import Case, Mode
from attnbench.interface import Implementation
from attnbench.operators.multihead.suites import CROSS, SELF
from attnbench.oracle.inputs import round_inputs
from attnbench.plugins.registry import load, load_operator
from attnbench.records.value_facts import Phrase, phrase

if TYPE_CHECKING:
    from conftest import Conformance


def make_case(mode: Mode = "train", **changes: Any) -> Case:
    """Make a float64 case of the problem CROSS with some fields changed."""
    return Case(operator="multihead", problem=CROSS, dtype="float64", mode=mode).with_problem(**changes)


class Returns(Implementation):
    """Implementation whose result is a given function, applied to the reference's output and weights."""

    name = "returns"

    def __init__(self, change: Callable[[Tensor, Tensor | None], Any]) -> None:
        self._change = change

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Return the reference itself."""
        return reference

    def prepare(self, module: Any, case: Case, inputs: Any) -> Any:
        """Return a call of the reference that applies the function to output and weights."""
        return lambda **arguments: self._change(*module(**arguments))


def make_candidate(implementation: Implementation | Callable[..., Any], one: Case) -> Candidate:
    """Make a candidate on a case; a function in place of an implementation is applied to the reference's results."""
    operator = load_operator("multihead")
    if not isinstance(implementation, Implementation):
        implementation = Returns(implementation)
    return Candidate(implementation, operator, one, operator.inputs(one))


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Assert that two dicts have the same names, and the same values up to 1e-10."""
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
    """Gradients have the reference's names and the oracle's values, whatever layout a module's parameters have."""
    one = make_case(**changes)
    tested = make_candidate(load(name), one)
    exact = round_inputs(tested.inputs.map_tensors(torch.Tensor.detach), torch.float64)
    expected = load_operator("multihead").evaluate(one, exact)
    assert_close(tested.outputs | tested.gradients, expected)
    own = {"in_proj_weight"} if name == "torch_mha" else {"w_q.0"}
    assert own <= tested.parameters().keys() or changes.get("kdim")


def test_one_tensor_as_query_key_and_value_has_one_gradient() -> None:
    """The gradient of a tensor that is query, key and value is ``grad.query``; there is no other gradient of it."""
    tested = make_candidate(load("torch_mha"), Case(operator="multihead", problem=SELF, mode="train"))
    assert {"grad.query"} <= tested.gradients.keys()
    assert {"grad.key", "grad.value"}.isdisjoint(tested.gradients)


def test_gradients_of_unused_inputs_are_zero() -> None:
    """If the output does not depend on an input or parameter, the gradient of that tensor is 0, not missing."""
    tested = make_candidate(
        lambda output, weights: (output.detach() + tested.inputs.tensors["query"], None), make_case()
    )
    assert set(tested.gradients) == {
        "grad.query", "grad.key", "grad.value",
        "grad.in_proj_weight", "grad.in_proj_bias", "grad.out_proj.weight", "grad.out_proj.bias",
    }  # fmt: skip
    assert torch.equal(tested.gradients["grad.query"], tested.inputs.cotangents["output"])
    assert not tested.gradients["grad.key"].any()
    assert not tested.gradients["grad.in_proj_weight"].any()


# The parts of a result, as the exceptions name them.
PAIR = "output, weights"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda output, weights: None, phrase("not_a_tuple", names=PAIR, got="NoneType")),
        (lambda output, weights: output, phrase("not_a_tuple", names=PAIR, got="Tensor")),
        (lambda output, weights: [output, None], phrase("not_a_tuple", names=PAIR, got="list")),
        (lambda output, weights: (output,), phrase("not_a_tuple_of_length", names=PAIR, count=1)),
        (lambda output, weights: (output, None, 1), phrase("not_a_tuple_of_length", names=PAIR, count=3)),
        (lambda output, weights: (None, None), phrase("not_a_tensor", name="output", got="NoneType")),
        (lambda output, weights: (output.tolist(), None), phrase("not_a_tensor", name="output", got="list")),
        (lambda output, weights: (output, 0.5), phrase("not_a_tensor_or_none", name="weights", got="float")),
    ],
)
def test_a_malformed_result_is_an_error(change: Callable[..., Any], fault: Phrase) -> None:
    """The exception has what a call must return and what it returned."""
    with pytest.raises(Malformed) as raised:
        make_candidate(change, make_case()).run()
    assert raised.value.args == (fault,)


def test_weights_that_are_none_are_left_out() -> None:
    """``run`` returns only tensors: without attention weights there is no entry "weights"."""
    assert make_candidate(lambda output, weights: (output, None), make_case()).run().keys() == {"output"}
    assert make_candidate(load("torch_mha"), make_case(need_weights=True)).run().keys() == {"output", "weights"}


def test_outputs_that_do_not_require_grad_are_an_error() -> None:
    """Computing gradients raises Malformed if an implementation detaches its output."""
    tested = make_candidate(lambda output, weights: (output.detach(), None), make_case())
    with pytest.raises(WithoutGradient):
        _ = tested.gradients


class OwnNames(Implementation):
    """Implementation whose parameters have other names than the reference's, and that does not define ``weights``."""

    name = "own_names"

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        """Return a module that contains the reference."""

        class Wrapped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = reference

            def forward(self, **arguments: Any) -> Any:
                return self.inner(**arguments)

        return Wrapped()


def test_an_undeclared_layout_is_an_error_with_the_remedy() -> None:
    """The exception names the parameters without a match in the reference."""
    with pytest.raises(Malformed) as raised:
        _ = make_candidate(OwnNames(), make_case(bias=False)).gradients
    names = "in_proj_weight, inner.in_proj_weight, inner.out_proj.weight, out_proj.weight"
    assert raised.value.args == (phrase("other_parameters", names=names),)


def test_boolean_masks_have_no_gradients() -> None:
    """No gradient of a boolean attn_mask or key_padding_mask is computed."""
    tested = make_candidate(load("torch_mha"), make_case(mask="bool2d+pad"))
    assert {"grad.attn_mask", "grad.key_padding_mask"}.isdisjoint(tested.gradients)


def test_a_step_with_gradients_returns_them() -> None:
    """In mode train, a step returns the output and the gradients of every floating-point input and every parameter."""
    tested = make_candidate(load("torch_mha"), make_case(mask="float2d"))
    output, *found = tested.make_step()()
    assert torch.equal(output, tested.outputs["output"])
    expected = tested.gradients
    names = ["query", "key", "value", "attn_mask", *tested.parameters()]
    assert_close(dict(zip(names, found, strict=True)), {name: expected[f"grad.{name}"] for name in names})


def test_a_step_in_inference_returns_the_results() -> None:
    """In mode inference, a step is only the call, without gradients."""
    tested = make_candidate(load("torch_mha"), make_case("inference"))
    output, _ = tested.make_step()()
    assert not output.requires_grad
    assert torch.equal(output, tested.outputs["output"])


def test_every_module_is_built_from_the_same_reference() -> None:
    """A change of one module's parameters affects neither a module that is built later nor the reference."""
    tested = make_candidate(lambda output, weights: (output, None), make_case())
    with torch.no_grad():
        tested.module.out_proj.weight.zero_()
    module, _ = tested.build()
    assert torch.equal(module.out_proj.weight, tested.inputs.parameters["out_proj.weight"])
    assert bool(tested.reference.out_proj.weight.any())


def test_inputs_are_overwritten_in_place_and_restored() -> None:
    """``overwrite`` writes new values into the input tensors, and restores the old values even after an exception."""
    tested = make_candidate(load("torch_mha"), make_case())
    query = tested.inputs.tensors["query"]
    before = query.detach().clone()

    def overwrite_and_raise() -> None:
        with tested.overwrite({"query": -before}):
            assert tested.inputs.tensors["query"] is query
            assert torch.equal(query, -before)
            raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        overwrite_and_raise()
    assert torch.equal(query, before)
    assert query.requires_grad


def test_a_candidate_gets_its_own_inputs(conformance: "Conformance") -> None:
    """If a candidate writes into its inputs, the inputs of the next candidate on the case are unchanged."""
    one = Case(operator="multihead", problem=CROSS)
    first = conformance.candidate(load("torch_mha"), one)
    with torch.no_grad():
        first.inputs.tensors["query"].zero_()
    assert bool(conformance.candidate(load("torch_mha"), one).inputs.tensors["query"].any())


class Watcher(nn.Module):
    """Module that returns the query times a parameter, and records under which torch settings it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.seen: dict[str, bool] = {}

    def forward(self, **arguments: Any) -> tuple[Tensor, None]:
        """Record the torch settings, and return the scaled query."""
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
    """Implementation of the module ``Watcher``."""

    def build(self, reference: Any) -> Watcher:
        """Return a Watcher with the reference's dtype and device; it has none of the reference's parameters."""
        return Watcher().to(reference.out_proj.weight)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("inference", {"parameters"}),
        ("inference_mode", {"inference_mode", "parameters"}),
        ("eval", {"gradients", "inputs", "parameters"}),
        ("train", {"training", "gradients", "inputs", "parameters"}),
        ("sampling", {"training", "parameters"}),
        ("frozen", {"training", "gradients", "inputs"}),
        ("tuning", {"gradients", "parameters"}),
        ("autocast", {"training", "gradients", "autocast", "inputs", "parameters"}),
        ("autocast_inference", {"autocast", "parameters"}),
    ],
)
def test_a_mode_sets_how_a_module_is_called(mode: Mode, expected: set[str]) -> None:
    """The torch settings of a call mode hold inside the call, and are restored after it."""
    watched = make_candidate(Watching(), make_case(mode).with_fields(dtype="bfloat16"))
    watched.run()
    assert {name for name, on in watched.module.seen.items() if on} == expected
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["aot", "exported"])
def test_a_compiled_mode_compiles(mode: Mode) -> None:
    """In the modes "aot" and "exported" the call is compiled; its output agrees with that of the eager module."""
    built = make_candidate(load("reshaped"), make_case(mode))
    assert built.call is not built.module
    with torch.set_grad_enabled(built.case.differentiates):
        eager = built.module(**built.inputs.arguments())[0]
    torch.testing.assert_close(built.run()["output"], eager)


class WrongShape(Tensor):
    """Tensor subclass whose ``shape`` is wrong."""

    @property
    def shape(self) -> Any:
        """Shape (99,), whatever the tensor's shape is."""
        return torch.Size([99])


class Wrapping(Watching):
    """Implementation whose output is a WrongShape."""

    def prepare(self, module: Any, case: Case, inputs: Any) -> Any:
        """Return a call whose output is the query as a WrongShape."""
        return lambda **arguments: (arguments["query"].detach().as_subclass(WrongShape), None)


def test_a_subclass_of_tensor_is_checked_as_a_plain_tensor() -> None:
    """``run`` converts an output to a plain Tensor, so that overridden methods and properties are not used."""
    tested = make_candidate(Wrapping(), make_case())
    output = tested.run()["output"]
    assert type(output) is Tensor
    assert output.shape == tested.inputs.tensors["query"].shape
