"""Chapter *shapes*: one module serves every size."""

from collections.abc import Iterator

from attnbench.cases import Case
from attnbench.checks.claims import Claim
from attnbench.checks.requirement import check, eager, siblings_of
from attnbench.checks.runs import agree, same
from attnbench.operators.multihead.siblings import unbatched
from attnbench.subject import Subject

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


@check(when=lambda case: _ordinary(case) and _pairs(case) < PAIRS, siblings=True)
def other_shapes_between_calls(subject: Subject) -> Iterator[Claim]:
    """After calls of other shapes a module gives what a fresh one gives."""
    case, inputs, problem, siblings = subject.case, subject.inputs, subject.case.problem, siblings_of(subject)
    sequences, queries, keys = (range(n) for n in (problem.sequences, problem.queries, problem.keys))
    batched = problem.batch is not None
    larger = siblings.selected(
        case, inputs, sequences=[*sequences, 0] if batched else None, queries=[*queries] * 2, keys=[*keys] * 2
    )
    smaller = siblings.selected(
        case, inputs, sequences=[0] if batched else None, queries=queries[: (len(queries) + 1) // 2],
        keys=keys[: (len(keys) + 1) // 2],
    )  # fmt: skip
    subject.run()
    for other, how in ((larger, "a smaller one"), (smaller, "a larger one")):
        used = subject.on(*other)["output"]
        fresh = subject.on(*other, module=subject.build()[0])["output"]
        yield same(subject, used, fresh, f"of a call after {how}, against a fresh module's")
    fresh = subject.run(subject.build()[1])["output"]
    yield same(subject, subject.run()["output"], fresh, "of a call after others, against a fresh module's")


@check(when=lambda case: _ordinary(case) and case.problem.batch is not None, siblings=True)
def a_batch_of_one_is_unbatched(subject: Subject) -> Iterator[Claim]:
    """A batch of one gives what its sequence gives without a batch."""
    siblings = siblings_of(subject)
    one = siblings.selected(subject.case, subject.inputs, sequences=[0])
    batch, none = subject.on(*one), subject.on(*unbatched(*one))
    axes = {"output": siblings.sequence_axis(subject.case), "weights": 0}
    without = {name: value.detach().unsqueeze(axes[name]) for name, value in none.items()}
    yield from agree(without, batch, "without a batch, against that of a batch of one")
