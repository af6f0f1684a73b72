"""Chapter *protocol*: torch functions that save, copy or convert a module, or call a module with other parameters."""

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate
from attnbench.candidate.compilation import CallModule
from attnbench.cases import DTYPES, NUMBER_FORMATS, Case
from attnbench.checks.observations import Equal, Holds, Observation
from attnbench.checks.pickling import pickle_and_unpickle
from attnbench.checks.requirement import check, has_tokens, is_eager
from attnbench.checks.runs import OTHER, compare_bitwise, compare_runs, try_call
from attnbench.interface import Refusal
from attnbench.kernel.differentiable import find_differentiable, scale_parameters, track_parameters
from attnbench.oracle.inputs import round_inputs
from attnbench.records.value_facts import phrase

# Dtypes in which ``tensors_are_registered`` may build a module before to() converts the module to
# the case's dtype; the first supported dtype is used. More precise dtypes come first: if to()
# leaves a tensor in a more precise dtype, the result shows it.
_DTYPES = sorted(DTYPES, key=lambda dtype: -NUMBER_FORMATS[dtype].bytes)


def _is_ordinary(case: Case) -> bool:
    """Whether a case is eager, has tokens, and has inputs of the regime ``plain``."""
    problem = case.problem
    return is_eager(case) and problem.regime == "plain" and has_tokens(case)


@check(when=_is_ordinary)
def state_dict_round_trip(candidate: Candidate) -> Iterator[Observation]:
    """After load_state_dict with strict=True, a module with other weights gives the output of the saved module."""
    module = _get_module(candidate)
    names = list(module.state_dict())
    expected = candidate.run()["output"]
    state = {name: value.clone() for name, value in module.state_dict().items()}
    yield Holds(holds=list(state) == names, violation=phrase("state_names_changed"))
    other, call = candidate.build(_make_other_reference(candidate))
    candidate.run(call)
    _, fault = try_call(partial(other.load_state_dict, state))
    yield Holds(holds=not fault, violation=phrase("load_raised", raised=fault))
    if not fault:
        yield compare_bitwise(candidate, candidate.run(call)["output"], expected, phrase("loaded_module"))


@check(when=_is_ordinary)
def copies_work(candidate: Candidate) -> Iterator[Observation]:
    """A deep copy and an unpickled copy give the same output, and changing a copy does not change the original."""
    module = _get_module(candidate)
    expected = candidate.run()["output"].detach().clone()
    for name, make in _COPIES.items():
        other, fault = try_call(partial(make, module))
        yield Holds(holds=not fault, violation=phrase(f"{name}_raised", raised=fault))
        if other is None:
            continue
        yield compare_bitwise(
            candidate, candidate.run_on(candidate.case, candidate.inputs, other)["output"], expected, phrase(name)
        )
        yield from _compare_dropout(candidate, other, name)
        scale_parameters(other, OTHER)
        yield compare_bitwise(candidate, candidate.run()["output"], expected, phrase(f"after_change_of_{name}"))


@check(when=_is_ordinary)
def functional_call_works(candidate: Candidate) -> Iterator[Observation]:
    """With parameters passed by torch.func.functional_call, a module acts like a module that has these parameters."""
    module = _get_module(candidate)
    holder, call = candidate.build()
    scale_parameters(holder, OTHER)
    expected = candidate.run(call)
    candidate.run()
    given = {
        name: (OTHER * parameter.detach()).requires_grad_(parameter.requires_grad)
        for name, parameter in find_differentiable(module).items()
    }
    called = CallModule(candidate.call, module)
    named = {f"owner.{name}": parameter for name, parameter in given.items()}
    found = candidate.run(lambda **arguments: torch.func.functional_call(called, named, (), arguments))
    yield compare_bitwise(
        candidate,
        found["output"],
        expected["output"],
        phrase("functional_call"),
    )
    policies = candidate.implementation.policies
    if not candidate.case.tracks_parameters or not policies.repeats_bitwise("grad.", candidate.case.device):
        return
    held = find_differentiable(holder)
    gradients = [
        torch.autograd.grad(candidate.compute_loss(outputs), tensors, allow_unused=True, materialize_grads=True)
        for outputs, tensors in ((found, list(given.values())), (expected, [held[name] for name in given]))
    ]
    for name, value, wanted in zip(given, *gradients, strict=True):
        yield Equal(value=value, expected=wanted, quantity=f"grad.{name}", how=phrase("functional_call"))


@check(when=_is_ordinary)
def tensors_are_registered(candidate: Candidate) -> Iterator[Observation]:
    """A module converted by to(dtype) gives the outputs of a module built in that dtype with equal parameters."""
    module, case = _get_module(candidate), candidate.case
    others = (case.with_fields(dtype=dtype) for dtype in _DTYPES if dtype != case.dtype)
    other_case = next((one for one in others if candidate.implementation.unsupported(one) is None), None)
    if other_case is None:
        raise Refusal(phrase("single_dtype", dtype=case.dtype))
    dtype = getattr(torch, other_case.dtype)
    inputs = round_inputs(candidate.inputs.map_tensors(lambda tensor: tensor.detach()), dtype)
    reference = _make_other_reference(candidate).to(dtype)
    other = candidate.implementation.build(reference).train(case.training)
    track_parameters(other, requires_grad=case.leaves_parameters_trainable)
    candidate.run_on(other_case, inputs, other)
    other.to(getattr(torch, case.dtype))
    own, given = dict(other.named_parameters()), dict(module.named_parameters())
    strangers = sorted(own.keys() ^ given.keys())
    yield Holds(
        holds=not strangers,
        violation=phrase("parameters_differ", names=", ".join(strangers)),
    )
    if strangers:
        return
    _overwrite(other, [given[name].detach() for name in own])
    outputs, fault = try_call(partial(candidate.run_on, case, candidate.inputs, other))
    yield Holds(holds=not fault, violation=phrase("converted_raised", dtype=case.dtype, raised=fault))
    if outputs is None:
        return
    expected = candidate.run()
    for name in [name for name in outputs if name in expected]:
        came, wanted = (str(one[name].dtype).removeprefix("torch.") for one in (outputs, expected))
        violation = phrase("converted_dtype", dtype=case.dtype, quantity=name, came=came, wanted=wanted)
        yield Holds(holds=came == wanted, violation=violation)
    yield from compare_runs(outputs, expected, phrase("converted_module"))


_COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deep_copy": copy.deepcopy,
    "unpickled_module": pickle_and_unpickle,
}


def _compare_dropout(candidate: Candidate, other: nn.Module, name: str) -> Iterator[Observation]:
    """Observe that a module and its copy ``other`` drop the same weights under the same seed.

    Observe nothing if the case has no dropout, or if the implementation refuses dropout or is not deterministic.
    """
    case = candidate.case.with_fields(mode="sampling")
    implementation = candidate.implementation
    if not case.problem.dropout or implementation.unsupported(case) or not implementation.policies.deterministic:
        return
    drawn = []
    for module in (other, candidate.module):
        global_state.seed(0)
        try:
            drawn.append(candidate.run_on(case, candidate.inputs, module.train())["output"])
        finally:
            module.train(candidate.case.training)
    yield compare_bitwise(candidate, drawn[0], drawn[1], phrase(f"{name}_in_training"))


def _get_module(candidate: Candidate) -> nn.Module:
    if not isinstance(candidate.module, nn.Module):
        raise Refusal(phrase("no_module"))
    return candidate.module


def _make_other_reference(candidate: Candidate) -> nn.Module:
    """Return a copy of the reference module, with every parameter multiplied by ``OTHER``."""
    reference: nn.Module = copy.deepcopy(candidate.reference)
    scale_parameters(reference, OTHER)
    return reference


def _overwrite(module: nn.Module, values: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values, strict=True):
            parameter.copy_(value)
