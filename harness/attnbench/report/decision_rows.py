"""The rows of decisions.csv: what to use for each timed call, with the bound on its regret."""

from collections.abc import Sequence

import pandas as pd

from attnbench.analysis.summary import Decision
from attnbench.report.columns import DECISIONS

__all__ = ["make_row", "tabulate_decisions"]


def tabulate_decisions(decisions: Sequence[Decision]) -> pd.DataFrame:
    """Return the rows of decisions.csv: one for each place, form, length, mode and pass."""
    return pd.DataFrame([make_row(one) for one in decisions], columns=list(DECISIONS))


def make_row(decision: Decision) -> dict[str, object]:
    """Return the row of a decision, by column; what is not known is left out."""
    table, column, answer, chosen = decision.table, decision.column, decision.answer, decision.chosen
    reference = decision.cells.get(table.baseline)
    row: dict[str, object] = {
        "machine": table.place.machine,
        "device": table.place.device,
        "dtype": table.place.dtype,
        "threads": table.place.threads,
        "form": table.form,
        "queries": column.queries,
        "keys": column.keys,
        "mode": column.mode,
        "pass": column.pass_,
        "reference": table.baseline,
        "conforming": table.conforming,
        "reference_peak_bytes": reference.peak_bytes if reference else None,
    }
    if answer is None or chosen is None:
        return row
    conformance, ratio = decision.conformance[answer.name], chosen.ratio
    return row | {
        "implementation": answer.name,
        "regret": answer.regret,
        "unbounded": answer.unbounded or "",
        "behind": answer.behind,
        "decided": answer.decided,
        "ratio": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "processes": answer.processes,
        "more_would_help": answer.more_would_help,
        "suite": conformance.suite,
        "checked": conformance.checked,
        "peak_bytes": chosen.peak_bytes,
    }
