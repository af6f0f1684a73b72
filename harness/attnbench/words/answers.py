"""What to use for a call, in words."""

from attnbench.analysis.answers import Unbounded
from attnbench.words.say import say

__all__ = ["NOTHING_CHOSEN", "UNCHECKED", "describe_gain", "describe_regret", "format_percent"]

# In place of an answer.
NOTHING_CHOSEN = "nothing that conforms was timed"
# Of an answer that is not among implementations that are known to conform.
UNCHECKED = "not known to conform"
_UNBOUNDED: dict[Unbounded, str] = {
    "alone": "no other that may be chosen was timed",
    "one_process": "no bound: a single process timed the call",
    "disturbed": "no bound: other work disturbed too many processes",
    "control": "no bound: the two copies of the baseline differ",
    "fallback": "the fallback",
}


def describe_regret(regret: float | None, unbounded: Unbounded | None) -> str:
    """Say how far behind another implementation an answer may be, such as "at most 0.6 % behind any other"."""
    if unbounded is not None:
        return say(_UNBOUNDED[unbounded])
    if not regret:
        return say("not behind any other")
    return say("at most {percent} behind any other", percent=format_percent(regret))


def describe_gain(value: float, low: float, high: float, baseline: str) -> str:
    """Say how much faster or slower than the baseline a time is, such as "5 % faster than torch_mha (0 to 10 %)".

    The numbers are the time divided by the baseline's time, and the ends of its interval.
    """
    faster = value < 1
    gain, ends = (1 - value, (1 - high, 1 - low)) if faster else (value - 1, (low - 1, high - 1))
    least, most = map(format_percent, ends)
    template = "{gain} faster than {baseline} ({least} to {most})"
    template = template if faster else "{gain} slower than {baseline} ({least} to {most})"
    return say(template, gain=format_percent(gain), baseline=baseline, least=least.removesuffix(" %"), most=most)


def format_percent(share: float) -> str:
    """Format a share in per cent with two significant digits, such as "0.6 %"."""
    percent = 100 * share
    digits = f"{percent:.0f}" if abs(percent) >= 10 else f"{percent:.2g}"
    return say("{digits} %", digits=digits.replace("-", "−"))
