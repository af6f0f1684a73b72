"""What an implementation never takes, in words: from the factor values that are in no case that it takes."""

from attnbench.runner.completion.combinations import Combinations, Flags

__all__ = ["describe_restrictions"]


def describe_restrictions(combinations: Combinations, taken: Flags) -> list[str]:
    """Return a text for each factor with values that are never taken; the one with the largest share of them first.

    ``taken`` is true at the number of each value that is taken. There is no text if no value is taken.
    """
    found = []
    for (factor, values), numbers in zip(combinations.covering.factors.items(), combinations.choices, strict=True):
        words = combinations.covering.words.get(factor, {})
        named = [
            (words.get(value, f"{factor} {value}"), taken[number])
            for value, number in zip(values, numbers, strict=True)
        ]
        kept = list(dict.fromkeys(word for word, takes in named if takes))
        # Several values may have the same word. It is not named as lost if one of them is taken.
        lost = [word for word in dict.fromkeys(word for word, _ in named) if word not in kept]
        if kept and lost:
            share = sum(not takes for _, takes in named) / len(named)
            # Either the values that are taken are named or those that are not: what is shorter.
            found.append((share, " or ".join(kept) if len(kept) <= len(lost) // 2 + 1 else "no " + ", no ".join(lost)))
    # The sort is stable: factors with equal shares stay in the operator's order.
    return [text for _, text in sorted(found, key=lambda pair: -pair[0])]
