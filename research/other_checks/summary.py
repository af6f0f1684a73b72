"""The tables of the study: mutants caught and correct variants accused, by rule and by topic."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from research.other_checks.rules import CHECKS

__all__ = ["FORMULA", "HUNG", "format_tables", "summarise"]

Record = dict[str, Any]
# FORMULA: name of the record of the correct formula. HUNG: the fault of an implementation that ended a check early.
FORMULA = "(correct formula)"
HUNG = "hung, or ended its process"


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Return for each rule the caught mutants, also by topic, the accused variants and the seconds; and attnbench's.

    A rule that rejects the correct formula rejects many mutants for the formula's reason: ``alike`` of them, which are
    not counted by topic. The seconds are those of the check on the correct formula.
    """
    formula = next(one for one in records if one["kind"] == "formula")
    mutants, variants = ([one for one in records if one["kind"] == kind] for kind in ("mutant", "variant"))
    rules = {}
    for check in (CHECKS[name] for name in formula["cpu_s"]):
        for rule in check.rules:
            rejected = [one for one in mutants if rule in one["faults"]]
            caught = [one for one in rejected if one["faults"][rule] != formula["faults"].get(rule)]
            rules[rule] = {
                "source": check.source,
                "rejected": len(rejected),
                "alike": len(rejected) - len(caught),
                "caught": len(caught),
                "by_topic": _count_topics(mutants, {one["name"] for one in caught}),
                "accused": [one["name"] for one in variants if rule in one["faults"]],
                "cpu_s": formula["cpu_s"][check.name],
            }
    return {
        "mutants": len(mutants),
        "variants": len(variants),
        "topics": _count_topics(mutants, {one["name"] for one in mutants}),
        "rules": rules,
        "attnbench": {
            one["name"]: one
            | {"by_topic": _count_topics(mutants, one["caught"]) if one["caught"] is not None else None}
            for one in records
            if one["kind"] == "attnbench"
        },
    }


def _count_topics(mutants: Sequence[Record], caught: Collection[str]) -> dict[str, int]:
    """Return how many of the caught mutants each topic has."""
    topics = dict.fromkeys((one["topic"] for one in mutants), 0)
    for one in mutants:
        topics[one["topic"]] += one["name"] in caught
    return topics


def format_tables(summary: Mapping[str, Any]) -> str:
    """Return the Markdown tables: one row a rule, then one row a topic of mutants."""
    head = f"| rule | mutants caught of {summary['mutants']} | correct variants accused of {summary['variants']} | s |"
    lines = [head, "|---|---|---|---|"]
    for rule, own in summary["rules"].items():
        alike = f" (and {own['alike']} as the correct formula)" if own["alike"] else ""
        lines.append(f"| {rule} | {own['caught']}{alike} | {len(own['accused'])} | {_format_seconds(own['cpu_s'])} |")
    for name, own in summary["attnbench"].items():
        accused = "" if own["accused"] is None else len(own["accused"])
        lines.append(f"| attnbench, `{name}` | {own['killed']} | {accused} | {_format_seconds(own['cpu_s'])} |")
    columns = {rule: own["by_topic"] for rule, own in summary["rules"].items()} | {
        f"attnbench, `{name}`": own["by_topic"] for name, own in summary["attnbench"].items() if own["by_topic"]
    }
    lines += ["", f"| mutants of | of | {' | '.join(columns)} |", f"|{'---|' * (len(columns) + 2)}"]
    for topic, count in summary["topics"].items():
        lines.append(f"| {topic} | {count} | {' | '.join(str(own[topic]) for own in columns.values())} |")
    return "\n".join(lines)


def _format_seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2g}"
