"""Chapter *compilation*: implementations compiled by torch's compilers."""

from collections.abc import Iterator
from dataclasses import replace

from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks.observations import Match, Observation
from attnbench.checks.requirement import check, draws_dropout, has_tokens
from attnbench.checks.runs import compare_runs
from attnbench.interface import Refusal
from attnbench.records.value_facts import phrase


@check(when=lambda case: case.compiler is not None and not draws_dropout(case))
def compiled_parity(candidate: Candidate) -> Iterator[Observation]:
    """The outputs and gradients of a compiled call equal the oracle's within the error budget."""
    yield Match(quantities=candidate.results)


def _shows_lengths(case: Case) -> bool:
    """Whether a case shows how a compiled module acts at another length.

    Compiling a module again, for any length, takes two seconds. Cases with an empty axis or with fully masked rows are
    about what a compiler does with nothing to attend to, and are left out.
    """
    usual = has_tokens(case) and "empty" not in case.problem.mask
    return case.compiler == "aot_eager" and usual and not draws_dropout(case)


@check(when=_shows_lengths)
def compiled_for_other_lengths(candidate: Candidate) -> Iterator[Observation]:
    """A compiled module that is called with another length gives the outputs and gradients of the uncompiled module."""
    if not isinstance(
        candidate.implementation.prepare(candidate.module, candidate.case, candidate.inputs), type(candidate.module)
    ):
        raise Refusal(phrase("prepared_for_one_length"))
    longer = candidate.case.problem.lengthen()
    if longer is None:
        raise Refusal(phrase("fixed_length"))
    case = replace(candidate.case, problem=replace(longer, seed=longer.seed + 1))
    inputs = candidate.operator.inputs(case)
    candidate.run()
    other = candidate.move_to(case, inputs)
    found = []
    for call in (candidate.call, candidate.module):
        outputs = other.run(call)
        # Torch refuses retain_graph where a graph compiled for any length reuses the memory of what it saved.
        gradients = other.compute_gradients(outputs, retain_graph=False) if case.differentiates else {}
        found.append(outputs | gradients)
    compiled, eager = found
    yield from compare_runs(compiled, eager, phrase("compiled_at_another_length"))
