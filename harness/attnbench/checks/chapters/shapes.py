"""Chapter *shapes*: one module is called with several shapes."""

from collections.abc import Iterator

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Observation
from attnbench.checks.requirement import check, get_case_transforms, is_eager
from attnbench.checks.runs import compare_bitwise, compare_runs
from attnbench.operators.multihead.case_transforms import remove_batch
from attnbench.records.value_facts import phrase

_REGIMES = ("flat", "plain", "identity")
# ``other_shapes_between_calls`` applies only to cases with fewer query-key pairs than this, counted
# over all sequences and heads. The check makes calls with several times as many pairs as the case,
# which would otherwise take too long.
PAIRS = 8_000


def _is_ordinary(case: Case) -> bool:
    """Whether a case is eager, has tokens, and has logits of moderate size."""
    problem = case.problem
    sizes = (problem.sequences, problem.queries, problem.keys)
    return is_eager(case) and problem.regime in _REGIMES and min(sizes) > 0


def _count_pairs(case: Case) -> int:
    problem = case.problem
    return int(problem.sequences * problem.num_heads * problem.queries * problem.keys)


@check(when=lambda case: _is_ordinary(case) and _count_pairs(case) < PAIRS, case_transforms=True)
def other_shapes_between_calls(candidate: Candidate) -> Iterator[Observation]:
    """After calls with other shapes, a module gives the same output as a newly built module."""
    case, inputs, problem, case_transforms = (
        candidate.case,
        candidate.inputs,
        candidate.case.problem,
        get_case_transforms(candidate),
    )
    sequences, queries, keys = (range(n) for n in (problem.sequences, problem.queries, problem.keys))
    batched = problem.batch is not None
    larger = case_transforms.select(
        case, inputs, sequences=[*sequences, 0] if batched else None, queries=[*queries] * 2, keys=[*keys] * 2
    )
    smaller = case_transforms.select(
        case, inputs, sequences=[0] if batched else None, queries=queries[: (len(queries) + 1) // 2],
        keys=keys[: (len(keys) + 1) // 2],
    )  # fmt: skip
    candidate.run()
    for other, name in ((larger, "larger_after_smaller"), (smaller, "smaller_after_larger")):
        used = candidate.run_on(*other)["output"]
        fresh = candidate.run_on(*other, module=candidate.build()[0])["output"]
        yield compare_bitwise(candidate, used, fresh, phrase(name))
    fresh = candidate.run(candidate.build()[1])["output"]
    yield compare_bitwise(
        candidate,
        candidate.run()["output"],
        fresh,
        phrase("after_other_shapes"),
    )


@check(when=lambda case: _is_ordinary(case) and case.problem.batch is not None, case_transforms=True)
def a_batch_of_one_is_unbatched(candidate: Candidate) -> Iterator[Observation]:
    """A batch of one sequence gives the same outputs as that sequence without a batch dimension."""
    case_transforms = get_case_transforms(candidate)
    one = case_transforms.select(candidate.case, candidate.inputs, sequences=[0])
    batch, none = candidate.run_on(*one), candidate.run_on(*remove_batch(*one))
    axes = {"output": case_transforms.sequence_axis(candidate.case), "weights": 0}
    without = {name: value.detach().unsqueeze(axes[name]) for name, value in none.items()}
    yield from compare_runs(without, batch, phrase("unbatched"))
