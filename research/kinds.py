"""What catches each wrong implementation: ``python -m research.kinds --help``.

Every mutant of multi-head attention runs on the case that shows it. The table has a row for each mutant: what is wrong,
the smallest suite that catches it, the check that catches it, and the diagnosis that the check gives. The suites come
from the file that ``attnbench conform --mutants --suite full --operator multihead --json FILE`` writes.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from attnbench.analysis.diagnoses import Diagnosis
from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function
from attnbench.checks.evaluation.causes import Causes
from attnbench.checks.evaluation.verdict import judge
from attnbench.checks.observations import deserialize, serialize
from attnbench.interface import Refusal
from attnbench.mutants.multihead import MUTANTS
from attnbench.mutants.mutant import Mutant
from attnbench.oracle.expected import CaseOracle
from attnbench.oracle.tensor_file import copy_value
from attnbench.plugins.registry import load_operator, load_problem_types
from attnbench.records.value_facts import PolicyDeviation
from attnbench.words.faults import name_diagnosis
from attnbench.words.findings import describe_fact

TABLE = Path("research/data/kinds.md")
HEAD = ("mutant", "what is wrong", "caught on", "by the check", "diagnosis")


@dataclass(frozen=True, slots=True)
class Row:
    """A mutant in the table.

    ``level`` is the smallest suite that catches the mutant. ``level`` is empty if no suite up to ``full`` catches it.
    ``diagnosis`` is empty if there is no diagnosis.
    """

    name: str
    why: str
    level: str
    check: str
    diagnosis: str


def diagnose_mutant(mutant: Mutant, check: str) -> str:
    """Return what ``check`` says about the mutant's fault, on the case that shows the mutant.

    The result is the check's diagnosis, or its sentence that names the policies to declare or to remove. If the check
    gives neither, the result is empty.
    """
    case = Case.parse(mutant.shown_by, cache(load_problem_types)())
    operator = load_operator(case.operator)
    policies = mutant.implementation.policies
    case_oracle = CaseOracle(case, operator, policies.precision(case.dtype), lambda: operator.inputs(case))
    try:
        candidate = Candidate(mutant.implementation, operator, case, operator.inputs(case))
        observations = deserialize(copy_value(serialize(list(load_check_function(check)(candidate)))))
    except (Malformed, Refusal):
        return ""
    found = judge(observations, case_oracle, policies, causes=Causes()).facts
    named = (fact for fact in found if isinstance(fact, Diagnosis | PolicyDeviation))
    return " ".join(name_diagnosis(fact) if isinstance(fact, Diagnosis) else describe_fact(fact) for fact in named)


def make_rows(results: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for each mutant; ``results`` are the mutants of the file that ``conform --mutants`` wrote."""
    settings = global_state.read_settings()
    for mutant in MUTANTS.mutants:
        level = results[mutant.name]["level"] or ""
        yield Row(
            name=mutant.name,
            why=mutant.why,
            level=level,
            check=mutant.caught_by,
            # No diagnosis if no suite up to ``full`` catches the mutant: the mutant's case takes more memory than most
            # machines have.
            diagnosis=diagnose_mutant(mutant, mutant.caught_by) if level else "",
        )
        global_state.restore_settings(settings)


def format_table(rows: Sequence[Row]) -> str:
    """Format the rows as a Markdown page, with the number of mutants that each suite catches."""
    levels = Counter(row.level or "no suite up to full" for row in rows)
    lines = [
        "# What catches each mutant of multi-head attention",
        "",
        f"{len(rows)} mutants: {', '.join(f'{count} caught on {level}' for level, count in levels.most_common())}; "
        f"{sum(bool(row.diagnosis) for row in rows)} diagnosed. Made by `python -m research.kinds`.",
        "",
        f"| {' | '.join(HEAD)} |",
        f"|{'---|' * len(HEAD)}",
    ]
    lines += [
        f"| {row.name} | {row.why.replace('|', chr(92) + '|')} | {row.level} | `{row.check}` | {row.diagnosis} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run every mutant on the case that shows it, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m research.kinds", description=__doc__.partition(":")[0])
    parser.add_argument(
        "results", type=Path, help="JSON file that conform --mutants --suite full --operator multihead wrote"
    )
    parser.add_argument("--table", type=Path, default=TABLE, help=f"file of the table (default: {TABLE})")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(options.results.read_text(encoding="utf-8"))["mutants"]
    options.table.write_text(format_table(list(make_rows(results))), encoding="utf-8")


if __name__ == "__main__":
    main()
