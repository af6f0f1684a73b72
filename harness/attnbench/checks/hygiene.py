"""Chapter *hygiene*: a call leaves the world as it was and depends on its arguments alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from attnbench import torchstate
from attnbench.checks.claims import Agree, Claim, Equal, Holds
from attnbench.checks.requirement import check, draws_dropout, eager
from attnbench.inputs import changed
from attnbench.subject import Subject


# What a call writes to its inputs may be there already when it is called again.
@check(first=True)
def inputs_untouched(subject: Subject) -> Iterator[Claim]:
    """A call, and its backward, changes no bit of inputs, masks or parameters."""
    watched = subject.inputs.tensors | subject.parameters()
    before = {name: tensor.detach().clone() for name, tensor in watched.items()}
    outputs = subject.run()
    if subject.case.differentiates:
        subject.gradients_of(outputs)
    for name, tensor in watched.items():
        yield Equal(value=tensor.detach(), expected=before[name], what=f"{name} after the call")


@check(when=eager)
def outputs_are_its_own(subject: Subject) -> Iterator[Claim]:
    """An output shares no memory with an input and is not overwritten by the next call."""
    first = subject.run()
    kept = {name: value.detach().clone() for name, value in first.items()}
    storages = {t.untyped_storage().data_ptr() for t in subject.inputs.tensors.values()}
    shares = first["output"].untyped_storage().data_ptr() in storages and first["output"].numel() > 0
    yield Holds(holds=not shares, what="the output shares memory with an input")
    name = next(iter(subject.leaves() or subject.inputs.tensors))
    with subject.overwritten({name: -subject.inputs.tensors[name].detach()}):
        # Two places may be written to in turn.
        subject.run()
        subject.run()
    for name, value in first.items():
        yield Equal(value=value.detach(), expected=kept[name], what=f"{name} of the first call after two more")


@check(when=eager)
def no_stale_state(subject: Subject) -> Iterator[Claim]:
    """New values written into inputs and parameters give what a fresh module gives on them."""
    tensors, masks = subject.inputs.tensors, _masks(subject)
    names = {name for name, tensor in tensors.items() if tensor.is_floating_point() and name not in masks}
    new = {name: torch.flip(tensors[name].detach(), (-1,)) for name in names}
    if "key_lengths" in tensors:
        new["key_lengths"] = subject.case.problem.keys - tensors["key_lengths"]
    subject.run()
    with subject.overwritten(new):
        fresh_module, _ = subject.build()
        _scale_parameters(fresh_module, 0.5)
        # On copies: what is known by its address is not known there, whoever keeps it.
        copies = changed(subject.inputs, lambda _, tensor: tensor.clone())
        fresh = subject.on(subject.case, copies, fresh_module)["output"].detach()
        _scale_parameters(subject.module, 0.5)
        used = subject.run()["output"].detach().clone()
        _scale_parameters(subject.module, 2.0)
    yield Agree(value=used, expected=fresh, quantity="output", what="output on new values, against a fresh module's")
    if masks and not subject.inputs.options.get("is_causal"):
        # Prepared anew: a call may hold its mask in a form of its own.
        flipped = {name: torch.flip(tensors[name].detach(), (-1,)) for name in masks}
        other = replace(subject.inputs, tensors=tensors | flipped)
        yield Agree(
            value=subject.on(subject.case, other)["output"],
            expected=subject.on(subject.case, other, subject.build()[0])["output"],
            quantity="output",
            what="output under new masks, against a fresh module's",
        )


def _masks(subject: Subject) -> set[str]:
    """Inputs that hide keys or are added to logits."""
    tensors = subject.inputs.tensors
    return {
        name
        for name, tensor in tensors.items()
        if name in subject.case.problem.additive_masks or tensor.dtype == torch.bool
    }


def _scale_parameters(module: object, factor: float) -> None:
    """As an optimiser does, in place; by a power of two, so that nothing is rounded."""
    if isinstance(module, torch.nn.Module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(factor)


@check()
def global_state_untouched(subject: Subject) -> Iterator[Claim]:
    """Building and calling leave torch as it was; outside training a call draws no random number."""
    before = torchstate.noted()
    _, call = subject.build()
    # Not where a seed leaves it: a call that seeds the generator anew moves it too.
    torch.rand(1)
    random = torch.get_rng_state()
    inside: list[dict[str, Any]] = []

    def watched(**arguments: Any) -> Any:
        """The call, looked at from within the gradient mode and autocast of the case, which restore themselves."""
        inside.append(torchstate.noted())
        returned = call(**arguments)
        inside.append(torchstate.noted())
        return returned

    outputs = subject.run(watched)
    drew = not torch.equal(random, torch.get_rng_state())
    if subject.case.differentiates:
        subject.gradients_of(outputs)
    changed = {
        f"{name} from {first[name]} to {then[name]}": None
        for first, then in (inside, (before, torchstate.noted()))
        for name in before
        if first[name] != then[name]
    }
    yield Holds(holds=not changed, what=f"it changed {', '.join(changed)}")
    if not draws_dropout(subject.case):
        yield Holds(holds=not drew, what="the random generator moved during a call that draws nothing")
