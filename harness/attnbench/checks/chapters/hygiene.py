"""Chapter *hygiene*: a call has no side effects and depends only on its arguments."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Agree, Equal, Holds, Observation
from attnbench.checks.requirement import check, draws_dropout, is_eager
from attnbench.kernel.differentiable import scale_parameters, scaled_parameters
from attnbench.oracle.inputs import change_tensors
from attnbench.records.value_facts import phrase


@check()
def inputs_untouched(candidate: Candidate) -> Iterator[Observation]:
    """A call and its backward pass change no bit of inputs, masks or parameters."""
    watched = candidate.inputs.tensors | candidate.parameters()
    before = {name: tensor.detach().clone() for name, tensor in watched.items()}
    outputs = candidate.run()
    if candidate.case.differentiates:
        candidate.compute_gradients(outputs)
    for name, tensor in watched.items():
        yield Equal(value=tensor.detach(), expected=before[name], quantity=name, how=phrase("after_call"))


@check(when=is_eager)
def outputs_are_its_own(candidate: Candidate) -> Iterator[Observation]:
    """An output shares no memory with an input and is not overwritten by the next call."""
    first = candidate.run()
    kept = {name: value.detach().clone() for name, value in first.items()}
    storages = {t.untyped_storage().data_ptr() for t in candidate.inputs.tensors.values()}
    shares = first["output"].untyped_storage().data_ptr() in storages and first["output"].numel() > 0
    yield Holds(holds=not shares, violation=phrase("memory_shared"))
    name = next(iter(candidate.collect_leaves() or candidate.inputs.tensors))
    with candidate.overwrite({name: -candidate.inputs.tensors[name].detach()}):
        # Call twice: an implementation that alternates between two output buffers writes into the
        # first buffer again only at the second of these calls.
        candidate.run()
        candidate.run()
    for name, value in first.items():
        yield Equal(value=value.detach(), expected=kept[name], quantity=name, how=phrase("after_further_calls"))


@check(when=is_eager)
def no_stale_state(candidate: Candidate) -> Iterator[Observation]:
    """After inputs and parameters are overwritten, the output equals that of a newly built module."""
    tensors, masks = candidate.inputs.tensors, _find_masks(candidate)
    names = {name for name, tensor in tensors.items() if tensor.is_floating_point() and name not in masks}
    new = {name: torch.flip(tensors[name].detach(), (-1,)) for name in names}
    if "key_lengths" in tensors:
        new["key_lengths"] = candidate.case.problem.keys - tensors["key_lengths"]
    candidate.run()
    with candidate.overwrite(new):
        fresh_module, _ = candidate.build()
        scale_parameters(fresh_module, 0.5)
        # The new module gets copies of the inputs. A cache keyed by tensor address has no entry for
        # these copies, so it cannot return an outdated value.
        copies = change_tensors(candidate.inputs, lambda _, tensor: tensor.clone())
        fresh = candidate.run_on(candidate.case, copies, fresh_module)["output"].detach()
        with scaled_parameters(candidate.module, 0.5):
            used = candidate.run()["output"].detach().clone()
    yield Agree(value=used, expected=fresh, quantity="output", how=phrase("overwritten"))
    if masks and not candidate.inputs.options.get("is_causal"):
        # Here ``run_on`` calls ``prepare()`` again for the new masks: the function that the earlier
        # ``prepare()`` returned may contain a converted copy of the old masks.
        flipped = {name: torch.flip(tensors[name].detach(), (-1,)) for name in masks}
        other = replace(candidate.inputs, tensors=tensors | flipped)
        yield Agree(
            value=candidate.run_on(candidate.case, other)["output"],
            expected=candidate.run_on(candidate.case, other, candidate.build()[0])["output"],
            quantity="output",
            how=phrase("new_masks"),
        )


def _find_masks(candidate: Candidate) -> set[str]:
    """Return the names of the inputs that are boolean masks or are added to the logits."""
    tensors = candidate.inputs.tensors
    return {
        name
        for name, tensor in tensors.items()
        if name in candidate.case.problem.additive_masks or tensor.dtype == torch.bool
    }


@contextlib.contextmanager
def _one_thread_more() -> Iterator[None]:
    """Give torch a number of threads that no code asks for: setting the number that there is leaves no trace."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@check()
def global_state_untouched(candidate: Candidate) -> Iterator[Observation]:
    """Building and calling leave torch's global state unchanged; a call without dropout draws no random number."""
    with _one_thread_more():
        before = global_state.read_settings()
        _, call = candidate.build()
        # Draw a number first: otherwise a call that sets the current seed again would leave the state
        # of the generator unchanged, and the check would not detect the call.
        torch.rand(1)
        random = torch.get_rng_state()
        inside: list[dict[str, Any]] = []

        def watched(**arguments: Any) -> Any:
            """Call the implementation; record torch's settings directly before and after the call.

            ``candidate.run`` has then entered the call mode, so both records contain its settings.
            """
            inside.append(global_state.read_settings())
            returned = call(**arguments)
            inside.append(global_state.read_settings())
            return returned

        outputs = candidate.run(watched)
        drew = not torch.equal(random, torch.get_rng_state())
        if candidate.case.differentiates:
            candidate.compute_gradients(outputs)
        changed = {
            f"{name}: {first[name]} → {then[name]}": None
            for first, then in (inside, (before, global_state.read_settings()))
            for name in before
            if first[name] != then[name]
        }
    yield Holds(holds=not changed, violation=phrase("settings_changed", changes=", ".join(changed)))
    if not draws_dropout(candidate.case):
        yield Holds(holds=not drew, violation=phrase("random_state_advanced"))
