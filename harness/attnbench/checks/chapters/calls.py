"""Chapter *calls*: arguments by position, arguments that are left out, and parameters as a constructor leaves them."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Holds, Match, Observation
from attnbench.checks.requirement import check, is_eager, is_small
from attnbench.checks.runs import compare_bitwise, try_call
from attnbench.interface import Refusal
from attnbench.kernel.differentiable import find_differentiable
from attnbench.records.value_facts import phrase

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@check(when=is_small)
def positional_arguments(candidate: Candidate) -> Iterator[Observation]:
    """Arguments by position, in the order of the reference's signature, give the same bits as keywords."""
    defaults = _read_defaults(candidate)
    names = _list_positions(candidate.call, list(defaults))
    for changes in _list_options(candidate, defaults):
        given = candidate.inputs.arguments() | changes
        arguments = {name: given.get(name, defaults[name]) for name in names}
        rest = {name: value for name, value in given.items() if name not in arguments}
        yield from _compare_call(
            candidate,
            partial(_call_by_position, candidate.call, list(arguments.values()), rest),
            candidate.run(**changes) if changes else candidate.outputs,
            "by_position",
            ", ".join(arguments),
        )


@check(when=is_small)
def default_arguments(candidate: Candidate) -> Iterator[Observation]:
    """Arguments that are left out have the reference's defaults, and a mask of None hides nothing."""
    defaults = _read_defaults(candidate)
    changes = _list_options(candidate, defaults)[-1]
    usual = candidate.inputs.options | changes
    left_out = [name for name, value in usual.items() if name in defaults and value == defaults[name]]
    given = {name: value for name, value in (candidate.inputs.arguments() | changes).items() if name not in left_out}
    yield from _compare_call(
        candidate,
        lambda **_: candidate.call(**given),
        candidate.run(**changes) if changes else candidate.outputs,
        "by_default",
        ", ".join(left_out),
    )
    accepted = _find_keywords(candidate.call)
    absent = {
        name: None
        for name, default in defaults.items()
        if default is None and name not in candidate.inputs.tensors and (accepted is None or name in accepted)
    }
    if absent:
        yield from _compare_call(
            candidate,
            partial(candidate.call, **absent),
            candidate.outputs,
            "with_none",
            ", ".join(f"{name}=None" for name in absent),
        )


@check(when=lambda case: is_small(case) and case.problem.has_parameters and case.tracks_parameters)
def initial_parameters(candidate: Candidate) -> Iterator[Observation]:
    """With parameters as the reference's constructor initialises them, outputs and gradients equal the oracle's."""
    parameters = candidate.operator.initial_parameters(candidate.case, candidate.inputs)
    if parameters is None:
        raise Refusal(phrase("no_initial_parameters"))
    new = candidate.remake(inputs=replace(candidate.inputs, parameters=dict(parameters)))
    yield Match(quantities=new.results, changed={f"parameter.{name}": value for name, value in parameters.items()})


@check(when=lambda case: is_eager(case) and case.problem.has_parameters and case.tracks_parameters)
def constructed_parameters(candidate: Candidate) -> Iterator[Observation]:
    """A module as its own constructor leaves it has finite parameters of the reference's names and shapes."""
    module = _construct(candidate)
    if not isinstance(module, nn.Module):
        raise Refusal(phrase("no_constructor"))
    found, wanted = find_differentiable(module), find_differentiable(candidate.reference)
    other = sorted(
        {name for name in found.keys() & wanted.keys() if found[name].shape != wanted[name].shape}
        | (found.keys() ^ wanted.keys())
    )
    yield Holds(holds=not other, violation=phrase("constructed_otherwise", names=", ".join(other)))
    strange = sorted(name for name, tensor in found.items() if not tensor.is_meta and not bool(tensor.isfinite().all()))
    yield Holds(holds=not strange, violation=phrase("constructed_not_finite", names=", ".join(strange)))
    meta = sorted(name for name, tensor in found.items() if tensor.is_meta)
    yield Holds(holds=not meta, violation=phrase("constructed_without_memory", names=", ".join(meta)))


def _construct(candidate: Candidate) -> Any:
    """Return a new module of the implementation; memory that its constructor leaves unwritten is NaN.

    Torch fills new memory with NaN in its deterministic mode. Otherwise it may happen to have finite numbers.
    """
    mode, only_warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with torch.random.fork_rng(devices=[]):
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        try:
            return candidate.implementation.construct(candidate.reference)
        finally:
            torch.use_deterministic_algorithms(mode, warn_only=only_warns)


def _read_defaults(candidate: Candidate) -> dict[str, Any]:
    """Return the default of each argument that the reference takes by position, in order.

    An argument without a default has ``inspect.Parameter.empty``.

    Raises: Refusal if the reference takes no argument by position.
    """
    parameters = inspect.signature(_get_function(candidate.reference)).parameters.values()
    found = {one.name: one.default for one in parameters if one.kind in _POSITIONAL}
    if not found:
        raise Refusal(phrase("reference_by_keyword"))
    return found


def _list_options(candidate: Candidate, defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the changes of options to call with: first no change.

    If the implementation supports the defaults, a second change sets the options that differ from them to the defaults.
    """
    options = candidate.inputs.options
    changes = {name: defaults[name] for name in options if name in defaults and options[name] != defaults[name]}
    refused = not changes or candidate.implementation.unsupported(candidate.case.with_problem(**changes))
    return [{}] if refused else [{}, changes]


def _list_positions(call: Callable[..., Any], names: list[str]) -> list[str]:
    """Return ``names``, the reference's arguments, up to the first name that the call does not take by position.

    Raises: Refusal if the call takes no argument by position.
    """
    parameters = _read_parameters(call)
    if parameters is None or any(one.kind is one.VAR_POSITIONAL for one in parameters.values()):
        return names
    taken = {name for name, one in parameters.items() if one.kind in _POSITIONAL}
    count = next((index for index, name in enumerate(names) if name not in taken), len(names))
    if not count:
        raise Refusal(phrase("call_by_keyword"))
    return names[:count]


def _find_keywords(call: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names of the keywords that a call accepts, or None if it accepts any keyword."""
    parameters = _read_parameters(call)
    if parameters is None or any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return None
    return frozenset(name for name, one in parameters.items() if one.kind is not one.POSITIONAL_ONLY)


def _read_parameters(call: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a call by name, or None for compiled code without a signature."""
    try:
        return inspect.signature(_get_function(call)).parameters
    except (TypeError, ValueError):
        return None


def _call_by_position(call: Callable[..., Any], positions: list[Any], rest: Mapping[str, Any], **_: Any) -> Any:
    return call(*positions, **rest)


def _get_function(call: Any) -> Callable[..., Any]:
    """Return the function that has the signature of a call: the forward method if the call is a module."""
    function: Callable[..., Any] = call.forward if isinstance(call, nn.Module) else call
    return function


def _compare_call(
    candidate: Candidate, call: Callable[..., Any], expected: Mapping[str, Tensor], how: str, names: str
) -> Iterator[Observation]:
    """Observe that a call returns the same outputs as another call, bit for bit.

    ``how`` is the key of a phrase that says how the call passes the arguments ``names``.
    """
    found, fault = try_call(lambda: candidate.run(call))
    yield Holds(holds=not fault, violation=phrase(f"{how}_raised", names=names, raised=fault))
    if found is None:
        return
    returned, wanted = ", ".join(found), ", ".join(expected)
    violation = phrase(f"{how}_returned", names=names, returned=returned, wanted=wanted)
    yield Holds(holds=found.keys() == expected.keys(), violation=violation)
    for name in [name for name in found if name in expected]:
        yield compare_bitwise(candidate, found[name], expected[name], phrase(how, names=names), name)
