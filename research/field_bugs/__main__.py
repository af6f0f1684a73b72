"""What a suite says of bugs of public trackers, made again: ``python -m research.field_bugs --help``.

Every bug, every mutant of their kinds and every correct variant runs on the suite, as ``attnbench conform`` runs an
implementation. A bug or mutant is caught if a check fails on it. A correct variant on which a check fails is accused.
The result of each implementation is stored when it ends.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from attnbench.cases import Level, shard
from attnbench.jobs.values import SHARD
from attnbench.processes.oracle_requests import ListSuite
from attnbench.records.types import FAILURES
from attnbench.runner import Limits, NoProgress, Session, conform
from research.field_bugs.catalogue import FAULTS, IMPLEMENTATIONS
from research.lines import Lines, StudyError

__all__ = ["format_table", "summarise"]

DATA = Path(__file__).parents[1] / "data" / "field_bugs"
ROOT = str(Path(__file__).parents[2])
PLACE = "research.field_bugs.catalogue"

Record = dict[str, Any]


class _Session(Session):
    """A session whose candidate workers find this study, which is not installed."""

    def find_variables(self) -> Mapping[str, str]:
        return {"PYTHONPATH": ROOT}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the implementations that have no stored result, and print what is stored."""
    options = _make_parser().parse_args(arguments)
    part, parts = options.shard
    name = options.suite if parts == 1 else f"{options.suite}-{part}of{parts}"
    header = {"kind": "header", "suite": options.suite, "shard": f"{part}/{parts}"}
    try:
        with Lines.open(options.data / f"{name}.jsonl", header, resume=options.resume) as lines:
            done = {record["name"] for record in lines.records}
            left = [name for name in options.only or IMPLEMENTATIONS if name not in done]
            for record in run(left, options.suite, options.shard, options.threads) if left else ():
                lines.add(record)
                print(_describe(record), flush=True)
            records = lines.records
    except StudyError as error:
        print(error, file=sys.stderr)
        return 1
    print(format_table(records))
    if options.json:
        options.json.write_text(json.dumps(summarise(records), indent=1) + "\n", encoding="utf-8")
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m research.field_bugs", description=__doc__.partition(":")[0])
    parser.add_argument("--suite", default="core", choices=get_args(Level), help="suite of cases (default: core)")
    parser.add_argument(
        "--shard", default=(1, 1), type=_parse_shard, metavar="I/N", help="part I of N of the suite's cases"
    )
    parser.add_argument("--only", action="append", type=_parse_name, metavar="NAME", help="only this one; repeatable")
    parser.add_argument("--threads", type=int, help="number of threads of each call")
    parser.add_argument("--data", type=Path, default=DATA, help=f"folder of the results (default: {DATA})")
    parser.add_argument("--resume", action="store_true", help="continue from the stored results")
    parser.add_argument("--json", type=Path, metavar="FILE", help="JSON file to which the summary is written")
    return parser


def _parse_name(text: str) -> str:
    """Return the name of an implementation.

    Raises: ArgumentTypeError, with the most similar names, if there is none of this name.
    """
    if text in IMPLEMENTATIONS:
        return text
    similar = ", ".join(get_close_matches(text, IMPLEMENTATIONS)) or "catalogue.py has the names"
    raise argparse.ArgumentTypeError(f"must be a bug, mutant or variant of the study, got {text!r}: {similar}")


def _parse_shard(text: str) -> tuple[int, int]:
    """Return the number of a part and of all parts.

    Raises: ArgumentTypeError if the text is not I/N with 1 <= I <= N.
    """
    try:
        part, parts = SHARD.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {SHARD.need}, such as {SHARD.example}, got {text!r}") from None
    return part, parts


def run(names: Sequence[str], suite: Level, part: tuple[int, int], threads: int | None = None) -> Iterator[Record]:
    """Yield the record of each implementation: the failed cases of each check, the number of cases, the seconds."""
    with _Session(limits=Limits(threads=threads)) as session:
        operators = dict.fromkeys(IMPLEMENTATIONS[name].operator for name in names)
        plans = {
            operator: session.plan(shard(session.ask_oracle(ListSuite(operator=operator, level=suite)), *part))
            for operator in operators
        }
        for name in names:
            begin = time.perf_counter()
            own = plans[IMPLEMENTATIONS[name].operator]
            failed: Counter[str] = Counter()
            for result in conform(session, [f"{PLACE}:{name}"], own, run="", progress=NoProgress()):
                failed.update(finding.check for finding in result.findings if finding.status in FAILURES)
            yield {
                "name": name, "failed": dict(failed.most_common()), "cases": len(own),
                "seconds": round(time.perf_counter() - begin, 1),
            }  # fmt: skip


def _describe(record: Record) -> str:
    """Return one line on an implementation: whether it is caught or accused, and by which checks."""
    fault, failed = FAULTS.get(record["name"]), record["failed"]
    verdict = ("caught" if failed else "missed") if fault else ("accused" if failed else "passed")
    what = f"{fault.origin} of kind {'+'.join(map(str, fault.kinds))}" if fault else "correct variant"
    by = ", ".join(f"{check} on {count}" for check, count in failed.items())
    return f"{verdict:8}{record['name']} ({what}, {record['seconds']} s){f': {by}' if by else ''}"


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Return how many bugs and mutants are caught, by kind, those that are missed, and the accused variants."""
    failed = {record["name"]: record["failed"] for record in records}
    faults = [FAULTS[name] for name in failed if name in FAULTS]
    return {
        "caught": {
            origin: {
                str(kind): [sum(bool(failed[fault.name]) for fault in own), len(own)]
                for kind in sorted({fault.kinds[0] for fault in faults if fault.origin == origin})
                if (own := [fault for fault in faults if (fault.origin, fault.kinds[0]) == (origin, kind)])
            }
            for origin in ("bug", "mutant")
        },
        "missed": [fault.name for fault in faults if not failed[fault.name]],
        "accused": {name: checks for name, checks in failed.items() if checks and name not in FAULTS},
        "variants": sum(name not in FAULTS for name in failed),
    }


def format_table(records: Sequence[Record]) -> str:
    """Return a Markdown table of the bugs and mutants that are caught of each kind, and the names of the rest."""
    summary = summarise(records)
    bugs, mutants = summary["caught"]["bug"], summary["caught"]["mutant"]
    lines = ["| kind | bugs caught | mutants caught |", "|---|---|---|"]
    for kind in sorted({*bugs, *mutants}):
        cells = (f"{own[kind][0]} of {own[kind][1]}" if kind in own else "" for own in (bugs, mutants))
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    totals = (
        f"{sum(own[0] for own in one.values())} of {sum(own[1] for own in one.values())}" for one in (bugs, mutants)
    )
    lines.append(f"| all | {' | '.join(totals)} |")
    lines.append(f"\nmissed: {', '.join(summary['missed']) or 'none'}")
    accused = (f"{name} by {', '.join(checks)}" for name, checks in summary["accused"].items())
    lines.append(f"accused: {'; '.join(accused) or 'none'} of {summary['variants']} correct variants")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
