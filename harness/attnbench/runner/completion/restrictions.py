"""Descriptions, in words, of the factor values that are in no case that an implementation supports."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.runner.completion.combinations import Combinations, Flags

__all__ = ["describe_restrictions"]


def describe_restrictions(combinations: Combinations, taken: Flags) -> list[str]:
    """Return a text for each factor with values that are never taken, sorted by their share, largest first.

    ``taken`` is true at the number of each value that is taken. If no value is taken, there is no text.
    """
    covering = combinations.covering
    kept_values = {
        factor: [value for value, number in zip(values, numbers, strict=True) if taken[number]]
        for (factor, values), numbers in zip(covering.factors.items(), combinations.choices, strict=True)
    }
    # Factors with exactly one value that is taken. A value of another factor that is not allowed together with this
    # value is not reported as a further restriction.
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
    """Name the values in ``kept``, or the values in ``lost`` if these have fewer words.

    The text is empty if every word for a lost value is also the word for a kept value.
    """
    kept_words = list(dict.fromkeys(words.get(value, f"{factor} {value}") for value in kept))
    lost_words = dict.fromkeys(words.get(value, f"{factor} {value}") for value in lost)
    # Several values may have the same word. The word is not named as lost if one of these values is kept.
    only_lost = [word for word in lost_words if word not in kept_words]
    if len(kept_words) <= (len(kept_words) + len(only_lost)) // 2:
        return " or ".join(kept_words)
    return "no " + ", no ".join(only_lost) if only_lost else ""
