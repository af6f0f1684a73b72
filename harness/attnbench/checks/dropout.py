"""Chapter *dropout*: off in eval; in training on the weights, unbiased, and told by them."""

import math
from collections.abc import Iterator

import torch

from attnbench.checks.claims import Average, Claim, Equal, Holds, Match
from attnbench.checks.requirement import check, draws_dropout
from attnbench.subject import Subject

# Draws whose mean is compared, each from its own seed.
DRAWS = 256
# Standard deviations that the share of dropped weights may be off: 1 in 10^9 by chance.
SIGMAS = 6.0


@check(when=lambda case: case.problem.dropout > 0 and not draws_dropout(case))
def dropout_rests_in_eval(subject: Subject) -> Iterator[Claim]:
    """In eval, dropout changes nothing and draws no random number."""
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = subject.run()["output"].detach().clone()
    drew = not torch.equal(state, torch.get_rng_state())
    yield Holds(holds=not drew, what="the random generator moved during a call in eval")
    torch.manual_seed(1)
    yield Equal(value=subject.run()["output"].detach(), expected=first, what="output of two calls from different seeds")


@check(when=lambda case: draws_dropout(case) and case.problem.need_weights and not case.problem.average_attn_weights)
def dropout_is_told_by_weights(subject: Subject) -> Iterator[Claim]:
    """Returned weights are the dropped ones: with the mask that they show, output and gradients are the oracle's."""
    torch.manual_seed(0)
    outputs = subject.run()
    weights = outputs.get("weights")
    if weights is None:
        yield Holds(holds=False, what="need_weights=True returned None as weights")
        return
    keep = weights.detach() != 0
    clean = subject.operator.evaluate(subject.case, subject.inputs)["weights"]
    visible = clean != 0
    trials, rate = int(visible.sum()), subject.case.problem.dropout
    dropped = int((visible & ~keep).sum())
    bound = SIGMAS * math.sqrt(trials * rate * (1 - rate)) + 1
    yield Holds(
        holds=abs(dropped - trials * rate) <= bound,
        what=f"{dropped} of {trials} weights were dropped at dropout={rate:g}",
        measured=abs(dropped - trials * rate),
        allowed=bound,
    )
    keep_heads = keep if subject.case.problem.batch is not None else keep[None]
    yield Match(quantities=outputs | subject.gradients_of(outputs), keep=keep_heads)


@check(when=draws_dropout)
def dropout_is_unbiased(subject: Subject) -> Iterator[Claim]:
    """In training the output is random, and its mean is the output without dropout."""
    draws = []
    for seed in range(DRAWS):
        torch.manual_seed(seed)
        draws.append(subject.run()["output"].detach().double())
    stacked = torch.stack(draws)
    yield Average(quantity="output", mean=stacked.mean(0), std=stacked.std(0), draws=DRAWS)
