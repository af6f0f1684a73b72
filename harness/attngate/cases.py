"""The cases that a gate times if no option chooses others: they stand for the real uses of attention."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnbench.cases import CaseId, Shape
from attnbench.records.types import Pass
from attnbench.runner import Session, list_profile_cases, list_shape_cases

__all__ = ["USES", "Use", "list_uses"]

# Length that is timed of an operator that has none of the shapes.
LENGTH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A use of attention: a shape of calls, and the pass that is timed."""

    name: str
    shape: Shape
    timed: Pass = "forward"


# A call of an unfused kernel takes 0.5 to 25 ms on one core, so that a process makes eleven calls or more of each side
# in three quarters of a second. The sizes are those of small models: all-MiniLM-L6 has 12 heads of 32, GPT-2 12 of 64.
_ENCODER = Shape(queries=128, keys=128, batch=2, heads=12, head_dim=32, mask="padding", padding=0.3)
_TRAINED = replace(_ENCODER, queries=64, keys=64)
USES = (
    Use(name="one short sentence, where overhead counts", shape=Shape(queries=16, keys=16)),
    Use(name="encoder, a padded batch", shape=_ENCODER),
    Use(name="encoder, training on a padded batch", shape=_TRAINED, timed="forward+backward"),
    Use(name="decoder, a causal prompt", shape=Shape(queries=128, keys=128, heads=12, mask="causal")),
    Use(
        name="decoder, causal training", shape=Shape(queries=256, keys=256, mask="causal"), timed="forward+backward"
    ),
    Use(name="decoder, one query", shape=Shape(queries=1, keys=256, heads=12)),
    Use(name="cross attention", shape=Shape(queries=64, keys=256)),
    Use(name="a long sequence", shape=Shape(queries=512, keys=512)),
)  # fmt: skip


def list_uses(session: Session, operator: str, passes: Sequence[Pass] = ()) -> list[str]:
    """Return the ids of the cases of an operator that stand for real use, the shortest first.

    An operator may lack some of the shapes, and one that is not timed has no cases.
    """
    found: list[str] = []
    for use in USES:
        if not passes or use.timed in passes:
            try:
                found += list_shape_cases(session, [use.shape], [use.timed], of=[operator])
            except ValueError:
                continue
    found = found or list_profile_cases(session, [LENGTH], passes, of=[operator])
    return sorted(dict.fromkeys(found), key=lambda case: CaseId.parse(case).lengths)
