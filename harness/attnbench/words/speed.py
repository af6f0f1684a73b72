"""Why a comparison of two times gives no verdict, in words."""

from attnbench.analysis.speed_verdict import Cause, NoVerdict
from attnbench.analysis.stats import CLEAN_CALLS
from attnbench.words.say import say

__all__ = ["explain_no_verdict"]

_ONE_PROCESS = "1 process is too few for a verdict"
_CAUSES: dict[Cause, str] = {
    "few_processes": "{count} processes are too few for a verdict",
    "crosses_threshold": "the confidence interval crosses the threshold of {percent:g} %",
    "few_calls": "calls are too slow: a process made only {count} calls, and {needed} are needed",
    "throttled": (
        "the device's clock changed or was throttled in {count} cycles: {lost} of {of} processes are not usable"
    ),
    "delayed_launches": "other work delayed kernel launches in {lost} of {of} processes",
    "disturbed": "other work disturbed {lost} of {of} processes",
    "own_losses": "only its own calls were disturbed in {lost} of {of} processes, so it may have chosen the others",
    "control": "A/A control failed: the baseline differs from its copy by {percent:.1f} %",
    "fixed_values": "all timed calls had the same input values (policy fixed_values), so results may have been kept",
}


def explain_no_verdict(found: NoVerdict | None) -> str:
    """Say why samples give no verdict; empty for a verdict."""
    if found is None:
        return ""
    template = _ONE_PROCESS if found.cause == "few_processes" and found.count == 1 else _CAUSES[found.cause]
    return say(template, count=found.count, lost=found.lost, of=found.of, percent=100 * found.share, needed=CLEAN_CALLS)
