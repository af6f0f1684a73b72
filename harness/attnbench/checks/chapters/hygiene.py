"""Chapter *hygiene*: a call leaves the world as it was and depends on its arguments alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Agree, Equal, Holds, Observation
from attnbench.checks.requirement import check, draws_dropout, eager
from attnbench.oracle.inputs import changed


# What a call writes to its inputs may be there already when it is called again.
@check(first=True)
def inputs_untouched(candidate: Candidate) -> Iterator[Observation]:
    """A call, and its backward, changes no bit of inputs, masks or parameters."""
    watched = candidate.inputs.tensors | candidate.parameters()
    before = {name: tensor.detach().clone() for name, tensor in watched.items()}
    outputs = candidate.run()
    if candidate.case.differentiates:
        candidate.gradients_of(outputs)
    for name, tensor in watched.items():
        yield Equal(value=tensor.detach(), expected=before[name], what=f"{name} after the call")


@check(when=eager)
def outputs_are_its_own(candidate: Candidate) -> Iterator[Observation]:
    """An output shares no memory with an input and is not overwritten by the next call."""
    first = candidate.run()
    kept = {name: value.detach().clone() for name, value in first.items()}
    storages = {t.untyped_storage().data_ptr() for t in candidate.inputs.tensors.values()}
    shares = first["output"].untyped_storage().data_ptr() in storages and first["output"].numel() > 0
    yield Holds(holds=not shares, what="the output shares memory with an input")
    name = next(iter(candidate.leaves() or candidate.inputs.tensors))
    with candidate.overwritten({name: -candidate.inputs.tensors[name].detach()}):
        # Two places may be written to in turn.
        candidate.run()
        candidate.run()
    for name, value in first.items():
        yield Equal(value=value.detach(), expected=kept[name], what=f"{name} of the first call after two more")


@check(when=eager)
def no_stale_state(candidate: Candidate) -> Iterator[Observation]:
    """New values written into inputs and parameters give what a fresh module gives on them."""
    tensors, masks = candidate.inputs.tensors, _masks(candidate)
    names = {name for name, tensor in tensors.items() if tensor.is_floating_point() and name not in masks}
    new = {name: torch.flip(tensors[name].detach(), (-1,)) for name in names}
    if "key_lengths" in tensors:
        new["key_lengths"] = candidate.case.problem.keys - tensors["key_lengths"]
    candidate.run()
    with candidate.overwritten(new):
        fresh_module, _ = candidate.build()
        _scale_parameters(fresh_module, 0.5)
        # On copies: what is known by its address is not known there, whoever keeps it.
        copies = changed(candidate.inputs, lambda _, tensor: tensor.clone())
        fresh = candidate.on(candidate.case, copies, fresh_module)["output"].detach()
        _scale_parameters(candidate.module, 0.5)
        used = candidate.run()["output"].detach().clone()
        _scale_parameters(candidate.module, 2.0)
    yield Agree(value=used, expected=fresh, quantity="output", what="output on new values, against a fresh module's")
    if masks and not candidate.inputs.options.get("is_causal"):
        # Prepared anew: a call may hold its mask in a form of its own.
        flipped = {name: torch.flip(tensors[name].detach(), (-1,)) for name in masks}
        other = replace(candidate.inputs, tensors=tensors | flipped)
        yield Agree(
            value=candidate.on(candidate.case, other)["output"],
            expected=candidate.on(candidate.case, other, candidate.build()[0])["output"],
            quantity="output",
            what="output under new masks, against a fresh module's",
        )


def _masks(candidate: Candidate) -> set[str]:
    """Inputs that hide keys or are added to logits."""
    tensors = candidate.inputs.tensors
    return {
        name
        for name, tensor in tensors.items()
        if name in candidate.case.problem.additive_masks or tensor.dtype == torch.bool
    }


def _scale_parameters(module: object, factor: float) -> None:
    """As an optimiser does, in place; by a power of two, so that nothing is rounded."""
    if isinstance(module, torch.nn.Module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(factor)


@check()
def global_state_untouched(candidate: Candidate) -> Iterator[Observation]:
    """Building and calling leave torch as it was; outside training a call draws no random number."""
    before = global_state.noted()
    _, call = candidate.build()
    # Not where a seed leaves it: a call that seeds the generator anew moves it too.
    torch.rand(1)
    random = torch.get_rng_state()
    inside: list[dict[str, Any]] = []

    def watched(**arguments: Any) -> Any:
        """The call, looked at from within the gradient mode and autocast of the case, which restore themselves."""
        inside.append(global_state.noted())
        returned = call(**arguments)
        inside.append(global_state.noted())
        return returned

    outputs = candidate.run(watched)
    drew = not torch.equal(random, torch.get_rng_state())
    if candidate.case.differentiates:
        candidate.gradients_of(outputs)
    changed = {
        f"{name} from {first[name]} to {then[name]}": None
        for first, then in (inside, (before, global_state.noted()))
        for name in before
        if first[name] != then[name]
    }
    yield Holds(holds=not changed, what=f"it changed {', '.join(changed)}")
    if not draws_dropout(candidate.case):
        yield Holds(holds=not drew, what="the random generator moved during a call that draws nothing")
