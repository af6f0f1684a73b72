"""Deviations: what an implementation was seen to do, although its policies declare otherwise."""

from collections.abc import Iterable, Mapping

from attnbench.interface import Policies
from attnbench.records.value_facts import PolicyDeviation, SeenPolicy

__all__ = ["HIDDEN_ROW_POLICIES", "find_remedy", "is_default", "join_deviations", "make_deviation"]

# Policies that together describe one thing: what an implementation does with fully masked rows.
HIDDEN_ROW_POLICIES = frozenset({"hidden_rows", "hidden_row_gradients"})


def make_deviation(policies: Policies, **seen: str | bool) -> PolicyDeviation:
    """Return the deviation from declared policies; ``seen`` has the values that were seen, by policy."""
    return PolicyDeviation(
        policies=tuple(
            SeenPolicy(name=name, seen=value, declared=getattr(policies, name)) for name, value in seen.items()
        )
    )


def is_default(deviation: PolicyDeviation) -> bool:
    """Whether what was seen is the default, so that the declaration has to be removed."""
    defaults = Policies()
    return all(policy.seen == getattr(defaults, policy.name, None) for policy in deviation.policies)


def find_remedy(deviation: PolicyDeviation) -> Mapping[str, str | bool]:
    """Return the policies to declare, or the declared ones to remove (``is_default``), by name."""
    if not is_default(deviation):
        return {policy.name: policy.seen for policy in deviation.policies}
    defaults = Policies()
    return {
        policy.name: policy.declared
        for policy in deviation.policies
        if policy.declared != getattr(defaults, policy.name, None)
    }


def join_deviations(deviations: Iterable[PolicyDeviation]) -> tuple[PolicyDeviation, ...]:
    """Return one deviation with all policies to declare, and one with all policies to remove, if there are any."""
    joined: dict[bool, dict[SeenPolicy, None]] = {}
    for deviation in deviations:
        joined.setdefault(is_default(deviation), {}).update(dict.fromkeys(deviation.policies))
    return tuple(PolicyDeviation(policies=tuple(policies)) for policies in joined.values())
