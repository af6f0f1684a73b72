"""Chapter *hygiene*: a call leaves the world as it was and depends on its arguments alone."""

from collections.abc import Iterator

import torch

from attnbench.checks.claims import Agree, Claim, Equal, Holds
from attnbench.checks.requirement import check, draws_dropout
from attnbench.subject import Subject


@check()
def inputs_untouched(subject: Subject) -> Iterator[Claim]:
    """A call, and its backward, changes no bit of inputs, masks or parameters."""
    watched = subject.inputs.tensors | subject.parameters()
    before = {name: tensor.detach().clone() for name, tensor in watched.items()}
    outputs = subject.run()
    if subject.case.mode != "inference":
        subject.gradients_of(outputs)
    for name, tensor in watched.items():
        yield Equal(value=tensor.detach(), expected=before[name], what=f"{name} after the call")


@check(when=lambda case: not draws_dropout(case))
def outputs_are_its_own(subject: Subject) -> Iterator[Claim]:
    """An output shares no memory with an input and is not overwritten by the next call."""
    first = subject.run()
    kept = {name: value.detach().clone() for name, value in first.items()}
    storages = {t.untyped_storage().data_ptr() for t in subject.inputs.tensors.values()}
    shares = first["output"].untyped_storage().data_ptr() in storages and first["output"].numel() > 0
    yield Holds(holds=not shares, what="the output shares memory with an input")
    with subject.overwritten({"query": -subject.inputs.tensors["query"].detach()}):
        subject.run()
    for name, value in first.items():
        yield Equal(value=value.detach(), expected=kept[name], what=f"{name} of the first call after a second one")


@check(when=lambda case: not draws_dropout(case))
def no_stale_state(subject: Subject) -> Iterator[Claim]:
    """New values written into inputs and parameters give what a fresh module gives on them."""
    tensors = subject.inputs.tensors
    names = {"query", "key", "value"} & tensors.keys()
    subject.run()
    with subject.overwritten({name: torch.flip(tensors[name].detach(), (-1,)) for name in names}):
        fresh_module, fresh_call = subject.build()
        _scale_parameters(fresh_module, 0.5)
        fresh = subject.run(fresh_call)["output"].detach()
        _scale_parameters(subject.module, 0.5)
        used = subject.run()["output"].detach().clone()
        _scale_parameters(subject.module, 2.0)
    yield Agree(value=used, expected=fresh, quantity="output", what="output on new values, against a fresh module's")


def _scale_parameters(module: object, factor: float) -> None:
    """As an optimiser does, in place; by a power of two, so that nothing is rounded."""
    if isinstance(module, torch.nn.Module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(factor)


@check(when=lambda case: not draws_dropout(case))
def repeats_itself(subject: Subject) -> Iterator[Claim]:
    """The same call gives the same bits; or, where that is declared otherwise, agrees within the error budget."""
    first, second = subject.run()["output"].detach(), subject.run()["output"].detach()
    what = "output of the same call again"
    if subject.implementation.policies.deterministic:
        yield Equal(value=second, expected=first, what=what)
    else:
        yield Agree(value=second, expected=first, quantity="output", what=what)
