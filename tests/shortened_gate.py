"""A gate that takes seconds: two cases stand for the suite core, and one timed case for those of real use.

As a program, it is the command attnbench with this gate, and with the one check of a case that compares outputs.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

from attnbench.cli import main
from attngate import gating, planning

__all__ = ["CASES", "shorten"]

FORM = "multihead/B2.L6.S6.E24.H3/bias+batch_first+self_attention/mask={}/regime=plain/seed=0/float32/cpu/eval"
CASES = (FORM.format("none"), FORM.format("bool3d"))


def shorten(replace_name: Callable[[object, str, object], None]) -> None:
    """Shorten the gate; ``replace_name`` is called as ``setattr``."""
    whole, uses = gating.make_conform_job, planning.list_uses
    replace_name(gating, "make_conform_job", lambda job: replace(whole(job), cases=CASES))
    replace_name(planning, "list_uses", lambda *given: uses(*given)[:1])


if __name__ == "__main__":
    shorten(setattr)
    if sys.argv[1] == "conform":
        sys.argv += ["--check", "forward_parity"]
    main()
