"""Chapter *dropout*: dropout of attention weights.

Dropout must be off in eval mode. In training mode, the mean over dropout masks must be the output
without dropout, and returned weights must be 0 where they were dropped.
"""

import math
from collections.abc import Iterator

import torch

from attnbench.analysis.deviations import make_deviation
from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Average, Equal, Holds, Match, Observation
from attnbench.checks.requirement import check, draws_dropout
from attnbench.checks.slopes import compare_with_slope
from attnbench.interface import Refusal
from attnbench.records.value_facts import phrase

# Number of calls, each with a different seed. ``dropout_is_unbiased`` compares their mean output
# with the output without dropout.
DRAWS = 256
# Randomness is checked only on cases with at least this many attention weights. With this many
# weights and a dropout rate of 0.1 or more, two seeds drop exactly the same weights with a
# probability below 1 in 10^9.
MANY = 200
# Number of calls, each with a different seed, over which ``dropout_masks_are_independent`` counts
# the pairs of neighbouring weights that are both dropped or both kept.
PAIRED_DRAWS = 64
# Largest allowed deviation of a count of weights from its expected value, in standard deviations.
# Chance alone exceeds 6 standard deviations with a probability of 2 in 10^9.
SIGMAS = 6.0
# Returned weights count as weights before dropout up to this difference from the weights without dropout: the sum of
# the differences of all weights, as a share of the sum of the weights. It is above rounding errors in bfloat16, and
# below the 20 % by which a dropout rate of 0.1 changes the weights.
CLEAN = 0.05


@check(when=lambda case: case.problem.dropout > 0 and not draws_dropout(case))
def dropout_rests_in_eval(candidate: Candidate) -> Iterator[Observation]:
    """In eval mode, dropout changes nothing and draws no random number."""
    global_state.seed(0)
    state = torch.get_rng_state()
    first = candidate.run()["output"].detach().clone()
    drew = not torch.equal(state, torch.get_rng_state())
    yield Holds(holds=not drew, violation=phrase("random_state_advanced_in_eval"))
    global_state.seed(1)
    yield Equal(
        value=candidate.run()["output"].detach(),
        expected=first,
        quantity="output",
        how=phrase("second_seed"),
    )


def _compute_clean_weights(candidate: Candidate) -> torch.Tensor:
    """Return the attention weights without dropout, computed by the operator's formula.

    The weights are 0 in the rows of padded queries that the policy ``padded_queries`` excludes. In fully masked
    rows the weights are 0, or all equal if the policies declare the mean of all values.
    """
    choices, fault = candidate.implementation.policies.choices, None
    if choices.hidden_rows == "mean":
        fault = candidate.operator.declare_hidden_rows(choices)
    quantities = candidate.operator.evaluate(candidate.case.with_fields(mode="sampling"), candidate.inputs, fault=fault)
    return candidate.blank_excluded_rows(quantities, candidate.case, candidate.inputs)["weights"]


def _draws_enough(case: Case) -> bool:
    """Whether dropout acts on at least ``MANY`` attention weights of a case, and not nearly all of them are close to 0.

    With fewer such weights, a check of randomness could fail by chance.
    """
    problem = case.problem
    no_key = problem.padding_mask == "padempty" and problem.sequences < 2
    no_row = problem.attention_mask == "empty2d" and problem.queries < 2
    many = problem.pairs >= MANY and problem.regime in ("flat", "plain", "peaked")
    return many and not (no_key or no_row) and draws_dropout(case) and case.compiler is None and not case.autocast


def _shows_dropout_mask(case: Case) -> bool:
    """Whether a call returns the weights of each head, whose zeros show the dropout mask."""
    problem = case.problem
    shows = problem.need_weights and not problem.average_attn_weights and problem.columns > 0
    return draws_dropout(case) and shows and case.compiler is None and not case.autocast


@check(when=_shows_dropout_mask)
def dropout_is_told_by_weights(candidate: Candidate) -> Iterator[Observation]:
    """Returned weights show the dropout mask: under this mask, output, weights and gradients equal the oracle's."""
    global_state.seed(0)
    outputs = candidate.run()
    weights = outputs.get("weights")
    if weights is None:
        yield Holds(holds=False, violation=phrase("weights_missing"))
        return
    keep = weights.detach() != 0
    clean = _compute_clean_weights(candidate)
    visible = clean != 0
    trials, rate = int(visible.sum()), candidate.case.problem.dropout
    dropped = int((visible & ~keep).sum())
    policies = candidate.implementation.policies
    if policies.returned_weights == "before_dropout":
        yield Holds(
            holds=not dropped,
            violation=phrase("weights_are_zero", count=dropped, total=trials),
            deviation=make_deviation(policies, returned_weights="after_dropout"),
        )
        yield Match(quantities={"weights": weights})
        return
    if not dropped and _are_clean(weights, clean) and _output_is_random(candidate):
        yield Holds(
            holds=False,
            violation=phrase("weights_show_no_dropout", total=trials),
            deviation=make_deviation(policies, returned_weights="before_dropout"),
        )
        return
    bound = SIGMAS * math.sqrt(trials * rate * (1 - rate)) + 1
    yield Holds(
        holds=abs(dropped - trials * rate) <= bound,
        violation=phrase("dropped_share", count=dropped, total=trials, rate=rate),
        measured=abs(dropped - trials * rate),
        allowed=bound,
    )
    keep_heads = keep if candidate.case.problem.batch is not None else keep[None]
    gradients = candidate.compute_gradients(outputs) if candidate.case.differentiates else {}
    yield Match(quantities=outputs | gradients, keep=keep_heads)


def _are_clean(weights: torch.Tensor, clean: torch.Tensor) -> bool:
    """Whether weights are roughly the weights without dropout.

    Weights after dropout differ more: dropout drops a weight, or divides it by 1 − p.
    """
    if weights.shape != clean.shape:
        return False
    weights, clean = weights.detach().double(), clean.double()
    return float((weights - clean).abs().sum()) <= CLEAN * float(clean.sum())


def _output_is_random(candidate: Candidate) -> bool:
    """Whether two seeds give different outputs."""
    outputs = []
    for seed in (0, 1):
        global_state.seed(seed)
        outputs.append(candidate.run()["output"].detach().clone())
    return not torch.equal(*outputs)


@check(when=_draws_enough)
def dropout_is_unbiased(candidate: Candidate) -> Iterator[Observation]:
    """In training the output is random, and its mean is the output without dropout."""
    draws = []
    for seed in range(DRAWS):
        global_state.seed(seed)
        draws.append(candidate.run()["output"].detach().double())
    stacked = torch.stack(draws)
    yield Average(quantity="output", mean=stacked.mean(0), std=stacked.std(0), draws=DRAWS)


@check(when=_shows_dropout_mask)
def dropout_masks_are_independent(candidate: Candidate) -> Iterator[Observation]:
    """Each weight is dropped independently of other weights along batch, heads, queries and keys."""
    if candidate.implementation.policies.returned_weights == "before_dropout":
        raise Refusal(phrase("weights_before_dropout"))
    weights = _compute_clean_weights(candidate)
    kept = []
    for seed in range(PAIRED_DRAWS):
        global_state.seed(seed)
        returned = candidate.run().get("weights")
        if returned is None:
            raise Refusal(phrase("no_weights_for_mask"))
        kept.append(returned.detach() != 0)
    masks = torch.stack(kept)
    if bool(masks[:, weights != 0].all()):
        raise Refusal(phrase("nothing_dropped", draws=PAIRED_DRAWS))
    rate = candidate.case.problem.dropout
    agreeing = rate**2 + (1 - rate) ** 2
    axes = ("batch", "heads", "queries", "keys")[-weights.dim() :]
    for axis, name in enumerate(axes):
        for distance in _list_distances(weights.shape[axis]):
            both = (weights != 0) & (weights.roll(distance, axis) != 0)
            if not bool(both.any()):
                continue
            same = (masks == masks.roll(distance, axis + 1))[:, both]
            spread = math.sqrt(agreeing * (1 - agreeing) / max(same.numel(), 1))
            # Each weight is in two pairs, one with each of the two weights at this distance along the axis. Therefore
            # the pairs are not independent; the factor √2 widens the bound accordingly.
            off, bound = abs(float(same.double().mean()) - agreeing), SIGMAS * math.sqrt(2) * spread
            yield Holds(
                holds=off <= bound, measured=off, allowed=bound,
                violation=phrase("dropped_together", axis=name, distance=distance, off=off),
            )  # fmt: skip


def _list_distances(length: int) -> list[int]:
    """Return the powers of two below ``length``: dropout masks repeat after a tile, whose size is a power of two."""
    return [2**power for power in range(length.bit_length()) if 2**power < length]


@check(when=_draws_enough)
def dropout_follows_the_seed(candidate: Candidate) -> Iterator[Observation]:
    """The same seed drops the same weights; another seed drops other weights."""
    global_state.seed(1)
    first = candidate.run()["output"].detach().clone()
    global_state.seed(2)
    other = candidate.run()["output"].detach().clone()
    global_state.seed(1)
    yield Equal(
        value=candidate.run()["output"].detach(),
        expected=first,
        quantity="output",
        how=phrase("same_seed"),
    )
    yield Holds(holds=not torch.equal(first, other), violation=phrase("seeds_alike"))


@check(
    when=lambda case: (
        _draws_enough(case) and case.dtype == "float64" and case.tracks_inputs and not case.problem.shares_queries
    )
)
def dropout_gradients(candidate: Candidate) -> Iterator[Observation]:
    """Backward uses the dropout mask of the forward pass: gradients equal finite differences under the same seed."""
    cotangents = candidate.inputs.cotangents

    def loss() -> torch.Tensor:
        global_state.seed(3)
        return candidate.compute_loss(candidate.run())

    for name in ("query", "value"):
        tensor = candidate.inputs.tensors[name]
        (gradient,) = torch.autograd.grad(loss(), [tensor])
        yield compare_with_slope(
            gradient, tensor, loss, f"grad.{name}", precision=candidate.precision,
            weights={output: cotangents[output] for output in candidate.outputs},
        )  # fmt: skip


@check(when=lambda case: draws_dropout(case) and case.compiler is None)
def dropout_survives_eval(candidate: Candidate) -> Iterator[Observation]:
    """A call in eval() does not change the dropout of a later call in train()."""
    if not isinstance(candidate.module, torch.nn.Module):
        raise Refusal(phrase("no_module"))
    global_state.seed(4)
    first = candidate.run()["output"].detach().clone()
    candidate.module.eval()
    candidate.run()
    candidate.module.train()
    global_state.seed(4)
    yield Equal(
        value=candidate.run()["output"].detach(),
        expected=first,
        quantity="output",
        how=phrase("after_eval"),
    )
