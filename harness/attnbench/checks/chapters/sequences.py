"""Chapter *sequences*: a call after other calls gives what a first call gives."""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case, Mode
from attnbench.checks.observations import Agree, Holds, Match, Observation
from attnbench.checks.pickling import pickle_and_unpickle
from attnbench.checks.requirement import check, is_small
from attnbench.checks.runs import OTHER, draw_again, has_same_bits, try_call
from attnbench.interface import Inputs, Refusal
from attnbench.kernel.differentiable import scale_parameters, scaled_parameters
from attnbench.oracle.inputs import round_inputs
from attnbench.records.value_facts import Phrase, phrase

# Dtype of a second module in the same process: half precision beside float32 and float64, float32 beside half.
OTHER_DTYPE: Mapping[str, str] = {
    "float64": "bfloat16", "float32": "bfloat16", "bfloat16": "float32", "float16": "float32",
}  # fmt: skip
# Largest number of query-key pairs, over all sequences and heads, of the cases of this chapter. What a module keeps of
# a call does not depend on the sizes. 210 pairs have two sequences and three heads of five queries and seven keys.
PAIRS = 210


def _is_ordinary(case: Case) -> bool:
    """Whether a case is small, and its tokens are few enough for several calls of each module."""
    return is_small(case, pairs=PAIRS)


@check(when=_is_ordinary)
def first_or_later_call(candidate: Candidate) -> Iterator[Observation]:
    """A call after calls in other modes, with other values, lengths or dtypes equals the oracle's, as a first call."""
    for how, case, inputs in _list_earlier_calls(candidate):
        if candidate.implementation.unsupported(case) is not None:
            continue
        first = candidate.remake(case=case, inputs=inputs)
        _call(first)
        yield from _match_call(candidate, first.module if case.dtype == candidate.case.dtype else None, how)


@check(when=lambda case: _is_ordinary(case) and case.mode == "eval")
def copies_after_calls(candidate: Candidate) -> Iterator[Observation]:
    """Copies, saved states and conversions of a module that was called before equal the oracle's, as a first call."""
    if not isinstance(candidate.module, nn.Module):
        raise Refusal(phrase("no_module"))
    modes: tuple[Mode, ...] = ("inference", "train")
    for mode in modes:
        case = candidate.case.with_fields(mode=mode)
        if candidate.implementation.unsupported(case) is not None:
            continue
        for name, derive in _DERIVED.items():
            first = candidate.remake(case=case, inputs=_alias(candidate.inputs))
            _call(first)
            module, fault = try_call(partial(derive, first))
            yield Holds(holds=not fault, violation=phrase(f"{name}_raised_later", mode=mode, raised=fault))
            if module is not None:
                yield from _match_call(candidate, module, phrase(f"{name}_later", mode=mode))


@check(when=lambda case: _is_ordinary(case) and case.differentiates)
def backward_passes_in_turns(candidate: Candidate) -> Iterator[Observation]:
    """Two calls before their backward passes give the gradients of calls one after the other; gradients accumulate."""
    other_case, other_inputs = draw_again(candidate)
    other = candidate.remake(case=other_case, inputs=other_inputs, module=candidate.module)
    alone = other.compute_gradients(other.run())
    outputs, others = candidate.run(), other.run()
    for one, found, expected in ((candidate, outputs, candidate.gradients), (other, others, alone)):
        for name, value in one.compute_gradients(found).items():
            yield Agree(value=value, expected=expected[name], quantity=name, how=phrase("backward_in_turns"))
    yield from _accumulate(candidate)


def _accumulate(candidate: Candidate) -> Iterator[Observation]:
    """Observe that two backward passes of two calls leave twice the gradient of one in each leaf."""
    leaves = candidate.collect_leaves() | {
        name: tensor for name, tensor in candidate.parameters().items() if tensor.requires_grad
    }
    for tensor in leaves.values():
        tensor.grad = None
    try:
        for _ in range(2):
            candidate.compute_loss(candidate.run()).backward()  # type: ignore[no-untyped-call]
        found = [None if tensor.grad is None else tensor.grad / 2 for tensor in leaves.values()]
    finally:
        for tensor in leaves.values():
            tensor.grad = None
    for name, value in candidate.name_gradients(found).items():
        yield Agree(value=value, expected=candidate.gradients[name], quantity=name, how=phrase("accumulated"))


def _list_earlier_calls(candidate: Candidate) -> Iterator[tuple[Phrase, Case, Inputs]]:
    """Yield calls before the judged one: how the judged call is told, and the case and the inputs of the call.

    A call in train() has a backward pass.
    """
    case, inputs = candidate.case, candidate.inputs
    yield phrase("after_evaluation"), case.with_fields(mode="inference"), _alias(inputs)
    yield phrase("after_inference_mode"), case.with_fields(mode="inference_mode"), _alias(inputs)
    yield phrase("after_training"), case.with_fields(mode="train"), _alias(inputs)
    yield phrase("after_other_values"), *draw_again(candidate)
    problem, longer = case.problem, case.problem.lengthen()
    if longer is not None:
        yield phrase("after_longer_call"), *draw_again(candidate, queries=longer.queries, keys=longer.keys)
        if problem.keys > 1 and not problem.shares_queries:
            yield phrase("after_fewer_keys"), *draw_again(candidate, keys=problem.keys // 2)
    dtype = OTHER_DTYPE[case.dtype]
    converted = round_inputs(_alias(inputs), getattr(torch, dtype))
    yield phrase("after_other_dtype"), case.with_fields(dtype=dtype), converted


def _alias(inputs: Inputs) -> Inputs:
    """Return inputs in the same memory whose ``requires_grad`` can be set apart from that of the given inputs."""
    return inputs.map_tensors(lambda tensor: tensor.detach())


def _call(candidate: Candidate) -> None:
    """Make a call, with a backward pass if the case has gradients."""
    outputs = candidate.run()
    if candidate.case.differentiates:
        candidate.compute_gradients(outputs)


def _match_call(candidate: Candidate, module: Any, how: Phrase) -> Iterator[Observation]:
    """Observe what a call of ``module``, or of a new module, gives in the candidate's case.

    Quantities with the bits of the candidate's first call are left out: other checks compare that call.
    """
    first, found = candidate.results, candidate.remake(module=module).results
    changed = {
        name: value for name, value in found.items() if not (name in first and has_same_bits(value, first[name]))
    }
    if changed:
        yield Match(quantities=changed, how=how)


def _load_into_new(first: Candidate) -> nn.Module:
    """Return a new module with other parameters that has loaded the state dict of a called module."""
    module, _ = first.build()
    scale_parameters(module, OTHER)
    module.load_state_dict(first.module.state_dict())
    return module  # type: ignore[no-any-return]


def _copy_with_old_parameters(first: Candidate) -> nn.Module:
    """Return a deep copy that was made after a call with other parameters, and whose parameters were then changed."""
    with scaled_parameters(first.module, OTHER):
        first.run()
        module: nn.Module = copy.deepcopy(first.module)
    scale_parameters(module, 1 / OTHER)
    return module


def _convert_twice(first: Candidate) -> nn.Module:
    """Return a called module that was converted to float64 and back, and called in between if it supports float64."""
    dtype: Tensor | Any = getattr(torch, first.case.dtype)
    wide = first.case.with_fields(dtype="float64")
    module = first.module.to(torch.float64)
    if first.implementation.unsupported(wide) is None:
        first.run_on(wide, round_inputs(_alias(first.inputs), torch.float64), module)
    return module.to(dtype)  # type: ignore[no-any-return]


_DERIVED: Mapping[str, Callable[[Candidate], nn.Module]] = {
    "deep_copy": lambda first: copy.deepcopy(first.module),
    "changed_deep_copy": _copy_with_old_parameters,
    "unpickled_module": lambda first: pickle_and_unpickle(first.module),
    "loaded_state": _load_into_new,
    "module_converted_twice": _convert_twice,
}
