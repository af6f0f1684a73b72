"""Chapter *compilation*: implementations compiled by torch's compilers."""

from collections.abc import Iterator
from dataclasses import replace

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Agree, Match, Observation
from attnbench.checks.requirement import check, draws_dropout
from attnbench.interface import Refusal
from attnbench.records.value_facts import phrase


@check(when=lambda case: case.compiler is not None and not draws_dropout(case))
def compiled_parity(candidate: Candidate) -> Iterator[Observation]:
    """The outputs and gradients of a compiled call equal the oracle's within the error budget."""
    yield Match(quantities=candidate.outputs | (candidate.gradients if candidate.case.differentiates else {}))


@check(when=lambda case: case.compiler == "aot_eager" and not draws_dropout(case))
def compiled_for_other_lengths(candidate: Candidate) -> Iterator[Observation]:
    """A compiled module that is called with another length gives the same output as the uncompiled module."""
    if not isinstance(
        candidate.implementation.prepare(candidate.module, candidate.case, candidate.inputs), type(candidate.module)
    ):
        raise Refusal(phrase("prepared_for_one_length"))
    longer = candidate.case.problem.lengthen()
    if longer is None:
        raise Refusal(phrase("fixed_length"))
    inputs = candidate.operator.inputs(replace(candidate.case, problem=replace(longer, seed=longer.seed + 1)))
    candidate.run()
    compiled = candidate.name_outputs(candidate.call(**inputs.arguments()))["output"]
    eager = candidate.name_outputs(candidate.module(**inputs.arguments()))["output"]
    yield Agree(
        value=compiled,
        expected=eager,
        quantity="output",
        how=phrase("compiled_at_another_length"),
    )
