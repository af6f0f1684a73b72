"""Chapter *shapes*: one module serves every size."""

from collections.abc import Iterator

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Observation
from attnbench.checks.requirement import case_transforms_of, check, eager
from attnbench.checks.runs import agree, same
from attnbench.operators.multihead.case_transforms import unbatched

_REGIMES = ("flat", "plain", "identity")
# Beyond this many query-key pairs a sibling of several times as many costs more than it tells.
PAIRS = 8_000


def _ordinary(case: Case) -> bool:
    problem = case.problem
    sizes = (problem.sequences, problem.queries, problem.keys)
    return eager(case) and problem.regime in _REGIMES and min(sizes) > 0


def _pairs(case: Case) -> int:
    problem = case.problem
    return int(problem.sequences * problem.num_heads * problem.queries * problem.keys)


@check(when=lambda case: _ordinary(case) and _pairs(case) < PAIRS, case_transforms=True)
def other_shapes_between_calls(candidate: Candidate) -> Iterator[Observation]:
    """After calls of other shapes a module gives what a fresh one gives."""
    case, inputs, problem, case_transforms = (
        candidate.case,
        candidate.inputs,
        candidate.case.problem,
        case_transforms_of(candidate),
    )
    sequences, queries, keys = (range(n) for n in (problem.sequences, problem.queries, problem.keys))
    batched = problem.batch is not None
    larger = case_transforms.selected(
        case, inputs, sequences=[*sequences, 0] if batched else None, queries=[*queries] * 2, keys=[*keys] * 2
    )
    smaller = case_transforms.selected(
        case, inputs, sequences=[0] if batched else None, queries=queries[: (len(queries) + 1) // 2],
        keys=keys[: (len(keys) + 1) // 2],
    )  # fmt: skip
    candidate.run()
    for other, how in ((larger, "a smaller one"), (smaller, "a larger one")):
        used = candidate.on(*other)["output"]
        fresh = candidate.on(*other, module=candidate.build()[0])["output"]
        yield same(candidate, used, fresh, f"of a call after {how}, against a fresh module's")
    fresh = candidate.run(candidate.build()[1])["output"]
    yield same(candidate, candidate.run()["output"], fresh, "of a call after others, against a fresh module's")


@check(when=lambda case: _ordinary(case) and case.problem.batch is not None, case_transforms=True)
def a_batch_of_one_is_unbatched(candidate: Candidate) -> Iterator[Observation]:
    """A batch of one gives what its sequence gives without a batch."""
    case_transforms = case_transforms_of(candidate)
    one = case_transforms.selected(candidate.case, candidate.inputs, sequences=[0])
    batch, none = candidate.on(*one), candidate.on(*unbatched(*one))
    axes = {"output": case_transforms.sequence_axis(candidate.case), "weights": 0}
    without = {name: value.detach().unsqueeze(axes[name]) for name, value in none.items()}
    yield from agree(without, batch, "without a batch, against that of a batch of one")
