"""What an implementation never takes, in words: from the factor values that are in no case that it takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.runner.completion.combinations import Combinations, Flags

__all__ = ["describe_restrictions"]


def describe_restrictions(combinations: Combinations, taken: Flags) -> list[str]:
    """Return a text for each factor with values that are never taken; the one with the largest share of them first.

    ``taken`` is true at the number of each value that is taken. There is no text if no value is taken.
    """
    covering = combinations.covering
    kept_values = {
        factor: [value for value, number in zip(values, numbers, strict=True) if taken[number]]
        for (factor, values), numbers in zip(covering.factors.items(), combinations.choices, strict=True)
    }
    # Factors of which one value is taken. What this value excludes of other factors is no restriction of its own.
    fixed = {factor: kept[0] for factor, kept in kept_values.items() if len(kept) == 1}
    found = []
    for factor, values in covering.factors.items():
        kept = kept_values[factor]
        others = {name: value for name, value in fixed.items() if name != factor}
        lost = [value for value in values if value not in kept and covering.is_allowed(others | {factor: value})]
        if kept and lost:
            text = _describe_values(covering.words.get(factor, {}), factor, kept, lost)
            found.append((len(lost) / len(values), text))
        else:
            fixed.pop(factor, None)
    # The sort is stable: factors with equal shares stay in the operator's order.
    return [text for _, text in sorted(found, key=lambda pair: -pair[0]) if text]


def _describe_values(words: Mapping[Any, str], factor: str, kept: Sequence[Any], lost: Sequence[Any]) -> str:
    """Name the values that are taken, or those that are lost if they are fewer; empty if these have no own words."""
    kept_words = list(dict.fromkeys(words.get(value, f"{factor} {value}") for value in kept))
    lost_words = dict.fromkeys(words.get(value, f"{factor} {value}") for value in lost)
    # Several values may have the same word. It is not named as lost if one of them is taken.
    only_lost = [word for word in lost_words if word not in kept_words]
    if len(kept_words) <= (len(kept_words) + len(only_lost)) // 2:
        return " or ".join(kept_words)
    return "no " + ", no ".join(only_lost) if only_lost else ""
