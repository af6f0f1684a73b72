"""Lengths and effort of a profile, for the command line and for Python."""

from attnbench.runner import Effort

__all__ = ["EFFORTS", "LENGTHS", "QUICK_LENGTHS", "QUICK_WORK_S"]

# Default sequence lengths of a profile with the suite quick, in tokens.
QUICK_LENGTHS = (32, 128, 512)
# Default sequence lengths of a profile with any other suite, in tokens.
LENGTHS = (128, 256, 512, 1024, 2048)
# Timing effort by suite. A speed verdict needs at least seven processes, or eight if any is disturbed.
EFFORTS = {
    "quick": Effort(processes=7, most=12, budget_s=0.3),
    "core": Effort(processes=10, most=30, budget_s=1.0),
    "full": Effort(processes=10, most=30, budget_s=2.0),
} | dict.fromkeys(("slow", "gpu", "huge"), Effort(processes=10, most=30, budget_s=4.0))
# Default work limit of the suite quick, in seconds: a call that is predicted to take longer is not
# started. The checks of the suite make each call some forty times, and each of seven timing
# processes makes it seven times. The limit just allows a call of the naive loop (the slowest
# implementation) on real sentences without gradients. Without the limit, the naive loop would take
# as long as all other implementations together.
QUICK_WORK_S = 0.12
