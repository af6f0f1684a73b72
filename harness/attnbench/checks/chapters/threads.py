"""Chapter *threads*: two threads call one module at the same time."""

from collections.abc import Container, Iterator, Mapping

from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.checks.observations import Agree, Holds, Observation
from attnbench.checks.requirement import check, is_small
from attnbench.checks.runs import describe_exception, draw_again, has_same_bits
from attnbench.checks.turns import LIMIT_S, Outcome, Stoppable, count_lines, take_turns
from attnbench.interface import Refusal
from attnbench.records.value_facts import phrase

# Largest number of query-key pairs, over all sequences and heads, of the cases of this chapter: what two calls share
# does not depend on the sizes.
PAIRS = 210
# A call stops at one of so many lines. Cases begin at different lines: the cases of a suite together stop at all.
EVERY = 3
# Number of lines at which the second call stops, too.
CROSSINGS = 8
# Number of times that the second call waits for the first one, as for a lock, after which no further turns are tried.
BLOCKED = 3


@check(when=lambda case: is_small(case, pairs=PAIRS) and case.mode == "inference")
def two_threads(candidate: Candidate) -> Iterator[Observation]:
    """A call gives the same results while another thread calls the module with other values, masks and options."""
    other = _draw_other(candidate)
    alone = candidate.outputs, other.run()
    lines = [count_lines(_make_stoppable(one)) for one in (candidate, other)]
    if not min(lines):
        raise Refusal(phrase("no_lines"))
    stops = range(candidate.case.seed % EVERY, lines[0], EVERY)
    left = BLOCKED
    for number, line in enumerate(stops):
        # The second call of a new module ends while the first one waits.
        first = candidate.remake()
        pairs: list[tuple[Candidate, Candidate, int | None]] = [(first, other.remake(module=first.module), None)]
        if not number % max(len(stops) // CROSSINGS, 1):
            # The second call of a module that was called before goes on when the first one has ended.
            pairs.append((candidate, other, lines[1] * number // len(stops)))
        for one, two, until in pairs:
            turns = take_turns(_make_stoppable(one), _make_stoppable(two), line=line, until=until)
            if not (turns.first.ended and turns.second.ended):
                yield Holds(holds=False, violation=phrase("threads_wait", seconds=LIMIT_S))
                return
            for outcome, expected in zip((turns.first, turns.second), alone, strict=True):
                yield from _compare(outcome, expected, candidate.outputs)
            left -= turns.blocked
        if left <= 0:
            return


def _make_stoppable(candidate: Candidate) -> Stoppable[dict[str, Tensor]]:
    return lambda stoppable: candidate.run(stoppable(candidate.call))


def _draw_other(candidate: Candidate) -> Candidate:
    """Return a candidate that calls the same module with other values and masks and with the other ``need_weights``."""
    flag, changes = "need_weights", {}
    if flag in candidate.inputs.options:
        asked = {flag: not candidate.inputs.options[flag]}
        if candidate.implementation.unsupported(candidate.case.with_problem(**asked)) is None:
            changes = asked
    case, inputs = draw_again(candidate, **changes)
    return candidate.remake(case=case, inputs=inputs, module=candidate.module)


def _compare(
    outcome: Outcome[dict[str, Tensor]], expected: Mapping[str, Tensor], known: Container[str]
) -> Iterator[Observation]:
    """Observe that a call gave what it gives alone; only quantities that are ``known`` have an error budget."""
    if outcome.error is not None:
        yield Holds(holds=False, violation=phrase("threads_raised", raised=describe_exception(outcome.error)))
        return
    found = outcome.result or {}
    if found.keys() != expected.keys():
        returned, wanted = ", ".join(found), ", ".join(expected)
        yield Holds(holds=False, violation=phrase("threads_returned", returned=returned, wanted=wanted))
        return
    how = phrase("beside_another_thread")
    for name, value in found.items():
        if name in known and not has_same_bits(value, expected[name]):
            yield Agree(value=value.detach(), expected=expected[name].detach(), quantity=name, how=how)
