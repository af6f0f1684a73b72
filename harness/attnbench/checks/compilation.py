"""Chapter *compilation*: what torch's compilers make of an implementation is right, too."""

from collections.abc import Iterator
from dataclasses import replace

from attnbench.checks.claims import Agree, Claim, Match
from attnbench.checks.requirement import check, draws_dropout
from attnbench.interface import Refusal
from attnbench.subject import Subject


@check(when=lambda case: case.compiler is not None and not draws_dropout(case))
def compiled_parity(subject: Subject) -> Iterator[Claim]:
    """Compiled, outputs and gradients equal the oracle's within the error budget."""
    yield Match(quantities=subject.outputs | (subject.gradients if subject.case.differentiates else {}))


@check(when=lambda case: case.compiler == "aot_eager" and not draws_dropout(case))
def compiled_for_other_lengths(subject: Subject) -> Iterator[Claim]:
    """One compiled module called at another length gives what it gives without a compiler."""
    if not isinstance(
        subject.implementation.prepare(subject.module, subject.case, subject.inputs), type(subject.module)
    ):
        raise Refusal("its calls are prepared for each case")
    longer = subject.case.problem.one_longer()
    if longer is None:
        raise Refusal("its problem has no lengths that can be changed")
    inputs = subject.operator.inputs(replace(subject.case, problem=replace(longer, seed=longer.seed + 1)))
    subject.run()
    compiled = subject.named(subject.call(**inputs.arguments()))["output"]
    eager = subject.named(subject.module(**inputs.arguments()))["output"]
    yield Agree(
        value=compiled,
        expected=eager,
        quantity="output",
        what="the compiled output at another length, against the eager one",
    )
