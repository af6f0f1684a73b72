"""What the checks of other tools catch: ``python -m research.other_checks --help``.

Every mutant and every correct variant of an operator is put under the rules by which other tools accept an
implementation, and under that of ``attnbench.testing``, which judges single calls. A rule catches a mutant, and accuses
a correct variant, if it rejects it. The result of each implementation is stored when it ends. attnbench's own numbers
are the shipped mutation scores and the processor time of ``attnbench conform``.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from attnbench.interface import Implementation, Operator
from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.multihead.formula import Formula
from attnbench.mutants.mutant import ModuleImplementation, Mutant, MutantSet, load_mutant_set
from attnbench.plugins.registry import load_operator
from research.lines import Lines, StudyError
from research.other_checks.isolation import run_isolated
from research.other_checks.references import REFERENCES, compute_references
from research.other_checks.rules import select_checks
from research.other_checks.summary import FORMULA, HUNG, format_tables, summarise
from research.process_cost import measure_command

DATA = Path(__file__).parents[1] / "data" / "other_checks"
# Seconds after which a check on one implementation is ended. A check takes less than two on an idle core.
LIMIT_S = 60.0
# For each operator, a correct implementation whose conformance run is timed.
TIMED = {"multihead": "batched_matmul", "attention_core": "core_batched_matmul"}
FORMULAS = {"multihead": Formula, "attention_core": CoreFormula}
# What torch imports at the first gradient or comparison, in 0.7 s of processor time.
LATE_IMPORTS = ("torch.fx.experimental.symbolic_shapes", "torch.distributed.tensor")
SUITES = ("quick", "core")

Record = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the implementations that have no stored result, and print the tables of what is stored."""
    options = _make_parser().parse_args(arguments)
    operator = load_operator(options.operator)
    torch.set_num_threads(1)
    try:
        header = {"kind": "header", "operator": operator.name, "checks": list(select_checks(operator.name))}
        with Lines.open(options.data / f"{operator.name}.jsonl", header, resume=options.resume) as lines:
            done = {record["name"] for record in lines.records}
            for record in try_all(load_mutant_set(operator), operator.name, done, options.limit):
                lines.add(record)
                print(f"{record['name']}: {', '.join(record['faults']) or 'rejected by no rule'}", file=sys.stderr)
            for suite in SUITES:
                if suite not in done and suite in (options.suite or SUITES):
                    lines.add(measure_suite(operator, suite, options.mutants))
            summary = summarise(lines.records)
    except StudyError as error:
        print(error, file=sys.stderr)
        return 1
    print(format_tables(summary))
    if options.json:
        options.json.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m research.other_checks", description=__doc__.partition(":")[0])
    parser.add_argument("operator", choices=list(TIMED), help="operator whose mutants and variants are tried")
    parser.add_argument(
        "--suite", action="append", choices=SUITES, help="suite of attnbench to time; repeatable (default: both)"
    )
    parser.add_argument(
        "--mutants", type=Path, metavar="FILE",
        help="file that attnbench conform --mutants --suite core --operator OPERATOR --json wrote: accused variants",
    )  # fmt: skip
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of a check on one implementation")
    parser.add_argument("--data", type=Path, default=DATA, help=f"folder of the results (default: {DATA})")
    parser.add_argument("--resume", action="store_true", help="continue from the stored results")
    parser.add_argument("--json", type=Path, metavar="FILE", help="JSON file to which the summary is written")
    return parser


def try_all(mutants: MutantSet, operator: str, done: set[str], limit_s: float) -> Iterator[Record]:
    """Yield the record of the correct formula, and of every mutant and variant, that is not in ``done``."""
    _prepare(operator)
    formula = ModuleImplementation(FORMULAS[operator], name=FORMULA, operator=operator)
    if FORMULA not in done:
        # The seconds of the checks are those of this run: references are not kept yet.
        yield {"name": FORMULA, "kind": "formula"} | _try(formula, limit_s)
    _keep_references(operator, limit_s)
    for mutant in mutants.mutants:
        if mutant.name not in done:
            tried = _try(mutant.implementation, limit_s)
            yield {"name": mutant.name, "kind": "mutant", "topic": find_topic(mutant)} | tried
    for variant in mutants.variants:
        if variant.name not in done:
            yield {"name": variant.name, "kind": "variant"} | _try(variant, limit_s)


def _prepare(operator: str) -> None:
    """Import and draw what all forks share: what torch imports at a first use, masks and parameters."""
    for name in LATE_IMPORTS:
        import_module(name)
    for check in select_checks(operator).values():
        for setting in check.settings(operator):
            setting.draw(0)


def _keep_references(operator: str, limit_s: float) -> None:
    """Compute what the reference gives on each setting in a fork, and keep it in this process for later forks."""
    for _, outcome in run_isolated({"references": partial(compute_references, operator)}, limit_s):
        if outcome is not None:
            REFERENCES.update(outcome[0])


def _try(implementation: Implementation, limit_s: float) -> Record:
    """Return which rules reject an implementation and why, and the processor time of each check."""
    faults: dict[str, str] = {}
    cpu_s: dict[str, float | None] = {}
    checks = select_checks(implementation.operator)
    calls = {name: partial(check.find_faults, implementation) for name, check in checks.items()}
    for name, outcome in run_isolated(calls, limit_s):
        faults |= dict.fromkeys(checks[name].rules, HUNG) if outcome is None else outcome[0]
        cpu_s[name] = None if outcome is None else round(outcome[1], 3)
    return {"faults": faults, "cpu_s": cpu_s}


def find_topic(mutant: Mutant) -> str:
    """Return the topic of a mutant: the module that has its class, such as masks or historical.sizes."""
    made = getattr(mutant.implementation, "module_class", None) or getattr(mutant.implementation, "_module", None)
    place = getattr(made, "__module__", type(mutant.implementation).__module__)
    return place.rpartition("attnbench.mutants.")[2].partition(".")[2] or place


def measure_suite(operator: Operator, suite: str, mutants: Path | None) -> Record:
    """Return attnbench's mutation score on a suite, and the processor time of a conformance run on it.

    The run starts without stored expected values. The caught mutants and the accused variants are those of the file
    ``mutants``; None if there is no file, or if it was written for a smaller suite.
    """
    package, _, file = operator.mutation_scores.partition(":")
    score = _find_score(json.loads(files(package).joinpath(file).read_text(encoding="utf-8")), operator, suite)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATTNBENCH_CACHE"] = folder
        cost = measure_command("conform", TIMED[operator.name], "--suite", suite, "--results", folder, exit_codes=(0,))
    written = json.loads(mutants.read_text(encoding="utf-8")) if mutants else None
    caught = accused = None
    if written and (own := _find_score(written, operator, suite)):
        score = own
        levels = SUITES[: SUITES.index(suite) + 1]
        caught = [name for name, one in written["mutants"].items() if one["level"] in levels]
        accused = list(written["false_alarms"])
    return {
        "name": suite, "kind": "attnbench", "killed": score["killed"], "scored": score["mutants"],
        "caught": caught, "accused": accused, "cpu_s": round(cost.cpu_s, 1),
    }  # fmt: skip


def _find_score(written: Record, operator: Operator, suite: str) -> Record:
    """Return the mutation score of an operator's suite in a file of scores; empty if the file has none."""
    scores = written["scores"].values()
    return next((one for one in scores if one["level"] == suite and operator.name in one["list_versions"]), {})


if __name__ == "__main__":
    sys.exit(main())
