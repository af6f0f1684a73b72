"""Chapter *masks*: what is hidden has no influence at all."""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnbench.checks.claims import Claim, Equal
from attnbench.checks.requirement import check, draws_dropout
from attnbench.subject import Subject

# Written over hidden tokens: far outside the data, and finite, since 0 × NaN would tell nothing. In float16 its
# projections must stay below 65504.
POISON = {"float64": 1e4, "float32": 1e4, "bfloat16": 1e4, "float16": 30.0}


@check(when=lambda case: case.problem.padding_mask is not None and not draws_dropout(case))
def padding_cannot_leak(subject: Subject) -> Iterator[Claim]:
    """Values of padded tokens change no bit of the output of a real token."""
    problem, tensors = subject.case.problem, subject.inputs.tensors
    mask = tensors["key_padding_mask"].detach()
    padded = mask if mask.dtype == torch.bool else mask == float("-inf")
    batch_padded = padded[None] if problem.batch is None else padded
    names = ("query",) if problem.self_attention else ("key", "value")
    before = subject.run()["output"].detach().clone()
    poisoned = {name: _poisoned(subject, tensors[name], batch_padded) for name in names}
    with subject.overwritten(poisoned):
        after = subject.run()["output"].detach()
    if problem.self_attention:
        # A padded token is a query too: only rows of real tokens are compared.
        real = _tokens_first(subject, ~batch_padded)
        before, after = before[real], after[real]
    yield Equal(value=after, expected=before, what="output of real tokens after padded tokens changed")


@check(
    when=lambda case: (
        case.problem.attention_mask == "causal"
        and min(case.problem.queries, case.problem.keys) > 1
        and not case.problem.add_bias_kv
        and not draws_dropout(case)
    )
)
def future_cannot_leak(subject: Subject) -> Iterator[Claim]:
    """Under a causal mask, later tokens change no bit of an earlier token's output."""
    problem, tensors = subject.case.problem, subject.inputs.tensors
    last = min(problem.queries, problem.keys) // 2  # the last query that is compared; it sees keys 0 to last
    future = torch.zeros(problem.batch or 1, problem.keys, dtype=torch.bool, device=tensors["query"].device)
    future[:, last + 1 :] = True
    names = ("query",) if problem.self_attention else ("key", "value")
    before = subject.run()["output"].detach().clone()
    with subject.overwritten({name: _poisoned(subject, tensors[name], future) for name in names}):
        after = subject.run()["output"].detach()
    past = torch.zeros(problem.batch or 1, problem.queries, dtype=torch.bool, device=future.device)
    past[:, : last + 1] = True
    rows = _tokens_first(subject, past)
    yield Equal(value=after[rows], expected=before[rows], what=f"output of tokens 0 to {last} after later ones changed")


def _tokens_first(subject: Subject, tokens: Tensor) -> Tensor:
    """Tokens (batch, length) as the first dimensions of the problem's own layout."""
    problem = subject.case.problem
    if problem.batch is None:
        return tokens[0]
    return tokens if problem.batch_first else tokens.T


def _poisoned(subject: Subject, tensor: Tensor, tokens: Tensor) -> Tensor:
    """Tensor whose chosen tokens hold a large number of alternating sign."""
    poison = torch.full_like(tensor, POISON[subject.case.dtype]).detach()
    poison[..., ::2] *= -1
    chosen = _tokens_first(subject, tokens)[..., None]
    return torch.where(chosen, poison, tensor.detach())
