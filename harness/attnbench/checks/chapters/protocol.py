"""Chapter *protocol*: the module is one of torch's: saved, copied, converted and called with lent parameters."""

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate
from attnbench.candidate.compilation import Called
from attnbench.cases import Case, Dtype
from attnbench.checks.observations import Equal, Holds, Observation
from attnbench.checks.requirement import check, eager, has_tokens
from attnbench.checks.runs import agree, attempted, same
from attnbench.interface import Implementation, Refusal
from attnbench.oracle.inputs import rounded

# Dtypes to convert from; one that is finer shows what stays behind.
_DTYPES: tuple[Dtype, ...] = ("float64", "float32", "bfloat16", "float16")
# What turns a parameter into another one: exact in every dtype, and no output survives it.
OTHER = -0.5


def _ordinary(case: Case) -> bool:
    problem = case.problem
    return eager(case) and problem.regime == "plain" and has_tokens(case)


@check(when=_ordinary)
def state_dict_round_trip(candidate: Candidate) -> Iterator[Observation]:
    """A state dict, loaded strictly into a module with other weights, makes it give the same output."""
    module = _module(candidate)
    names = list(module.state_dict())
    expected = candidate.run()["output"]
    state = {name: value.clone() for name, value in module.state_dict().items()}
    yield Holds(holds=list(state) == names, what="a call changed the names in the state dict")
    other, call = candidate.build(_other_reference(candidate))
    candidate.run(call)
    _, fault = attempted(partial(other.load_state_dict, state))
    yield Holds(holds=not fault, what=f"load_state_dict raised {fault}")
    if not fault:
        yield same(
            candidate, candidate.run(call)["output"], expected, "of the loaded module, against that of the saved one"
        )


@check(when=_ordinary)
def copies_work(candidate: Candidate) -> Iterator[Observation]:
    """A deep copy and an unpickled module give the same output, and what is done to them stays with them."""
    module = _module(candidate)
    expected = candidate.run()["output"].detach().clone()
    for how, make in _COPIES.items():
        other, fault = attempted(partial(make, module))
        yield Holds(holds=not fault, what=f"making {how} raised {fault}")
        if other is None:
            continue
        yield same(candidate, candidate.on(candidate.case, candidate.inputs, other)["output"], expected, f"of {how}")
        yield from _same_dropout(candidate, other, how)
        _overwrite(other, [OTHER * parameter.detach() for parameter in other.parameters()])
        yield same(candidate, candidate.run()["output"], expected, f"of the module after {how} of it changed")


@check(when=_ordinary)
def functional_call_works(candidate: Candidate) -> Iterator[Observation]:
    """With parameters lent by torch.func.functional_call it gives outputs and gradients of a module that holds them."""
    module = _module(candidate)
    holder, call = candidate.build()
    _overwrite(holder, [OTHER * parameter.detach() for parameter in holder.parameters()])
    expected = candidate.run(call)
    candidate.run()
    lent = {
        name: (OTHER * parameter.detach()).requires_grad_(parameter.requires_grad)
        for name, parameter in module.named_parameters()
    }
    called = Called(candidate.call, module)
    given = {f"owner.{name}": parameter for name, parameter in lent.items()}
    found = candidate.run(lambda **arguments: torch.func.functional_call(called, given, (), arguments))
    yield same(
        candidate, found["output"], expected["output"], "of lent parameters, against that of a module that holds them"
    )
    if not candidate.case.tracks_parameters or not candidate.implementation.policies.deterministic:
        return
    held = dict(holder.named_parameters())
    gradients = [
        torch.autograd.grad(candidate.loss(outputs), tensors, allow_unused=True, materialize_grads=True)
        for outputs, tensors in ((found, list(lent.values())), (expected, [held[name] for name in lent]))
    ]
    for name, value, wanted in zip(lent, *gradients, strict=True):
        yield Equal(value=value, expected=wanted, what=f"the gradient of {name}, lent, against that of one held")


@check(when=_ordinary)
def tensors_are_registered(candidate: Candidate) -> Iterator[Observation]:
    """A module of another dtype and other weights, converted by to() and given these parameters, gives this output."""
    module, case = _module(candidate), candidate.case
    others = (case.with_fields(dtype=dtype) for dtype in _DTYPES if dtype != case.dtype)
    other_case = next((one for one in others if candidate.implementation.unsupported(one) is None), None)
    if other_case is None:
        raise Refusal(f"it takes no dtype but {case.dtype}")
    dtype = getattr(torch, other_case.dtype)
    inputs = rounded(candidate.inputs.mapped(lambda tensor: tensor.detach()), dtype)
    reference = _other_reference(candidate).to(dtype)
    other = candidate.implementation.build(reference).train(case.training).requires_grad_(case.tracks_parameters)
    candidate.on(other_case, inputs, other)
    other.to(getattr(torch, case.dtype))
    own, given = dict(other.named_parameters()), dict(module.named_parameters())
    strangers = sorted(own.keys() ^ given.keys())
    yield Holds(holds=not strangers, what=f"modules of the same kind differ in the parameters {', '.join(strangers)}")
    if strangers:
        return
    _overwrite(other, [given[name].detach() for name in own])
    outputs, fault = attempted(partial(candidate.on, case, candidate.inputs, other))
    yield Holds(holds=not fault, what=f"after to({case.dtype}) the call raised {fault}")
    if outputs is None:
        return
    expected = candidate.run()
    for name in [name for name in outputs if name in expected]:
        came, wanted = outputs[name].dtype, expected[name].dtype
        yield Holds(holds=came == wanted, what=f"after to({case.dtype}) {name} has dtype {came}, must be {wanted}")
    yield from agree(outputs, expected, "of the converted module, against that of one built in this dtype")


class _Pickler(pickle.Pickler):
    """An implementation is code, not state: a module that knows its own refers to it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.implementations: list[Implementation] = []

    def persistent_id(self, thing: Any) -> Any:
        if not isinstance(thing, Implementation):
            return None
        self.implementations.append(thing)
        return len(self.implementations) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, implementations: list[Implementation]) -> None:
        super().__init__(file)
        self._implementations = implementations

    def persistent_load(self, number: Any) -> Any:
        return self._implementations[number]


def _unpickled(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(module)
    file.seek(0)
    loaded: nn.Module = _Unpickler(file, pickler.implementations).load()
    return loaded


_COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {"a deep copy": copy.deepcopy, "an unpickled module": _unpickled}


def _same_dropout(candidate: Candidate, other: nn.Module, how: str) -> Iterator[Observation]:
    """In training the module and its copy drop the same weights from the same seed."""
    case = candidate.case.with_fields(mode="sampling")
    implementation = candidate.implementation
    if not case.problem.dropout or implementation.unsupported(case) or not implementation.policies.deterministic:
        return
    drawn = []
    for module in (other, candidate.module):
        global_state.seed(0)
        try:
            drawn.append(candidate.on(case, candidate.inputs, module.train())["output"])
        finally:
            module.train(candidate.case.training)
    yield same(candidate, drawn[0], drawn[1], f"of {how} in training, from the same seed")


def _module(candidate: Candidate) -> nn.Module:
    if not isinstance(candidate.module, nn.Module):
        raise Refusal("its module is no torch.nn.Module")
    return candidate.module


def _other_reference(candidate: Candidate) -> nn.Module:
    """The reference with other weights."""
    reference: nn.Module = copy.deepcopy(candidate.reference)
    _overwrite(reference, [OTHER * parameter.detach() for parameter in reference.parameters()])
    return reference


def _overwrite(module: nn.Module, values: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values, strict=True):
            parameter.copy_(value)
