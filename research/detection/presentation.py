"""Tables and figure of the results of the commands ``judge`` and ``runs``."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from research.detection.comparisons import OUR_RULE, Evaluation, Tally, upper_bound
from research.detection.plants import BYTE_SHARE, SHARES

__all__ = ["draw_figure", "format_runs_table", "format_table"]

# PANEL and HEIGHT: width and height of a panel of the figure in inches. DPI: dots per inch. SALT: text that makes the
# ids of SVG elements reproducible.
PANEL, HEIGHT, DPI, SALT = 4.2, 3.2, 150, "attnbench"


def format_table(evaluations: Sequence[Evaluation]) -> str:
    """Format one Markdown table for each condition; a table has one row for each rule."""
    return "\n\n".join(_format_condition(one) for one in evaluations)


def _format_condition(one: Evaluation) -> str:
    shares = [share for share in SHARES if share]
    sizes = [f"found, {_format_size(one, share)}" for share in shares]
    heads = ["rule", "processes × values × calls", "wall, s", "false verdicts", *sizes, "wrong with extra work"]
    heads += ["inconclusive", "unknown without extra work"]
    caption = f"δ, the smallest difference that counts, is {100 * one.delta:g} %; {one.processes} processes"
    caption += "" if one.others is None else f"; {one.others:.2f} cores in use before a process began"
    caption += f"; the competing process used {one.competitor:.2f} cores" if one.competitor else ""
    lines = [f"**{one.condition}**: {caption}.", ""]
    lines += [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    by_rule: dict[str, dict[int, Tally]] = {}
    for tally in one.tallies:
        by_rule.setdefault(tally.rule, {})[tally.share] = tally
    for rule, tallies in by_rule.items():
        none, plants = tallies[0], [tallies[share] for share in shares]
        cells = [rule, none.layout, f"{none.wall_s:.1f}", _format_rate(none, "slower", "faster")]
        cells += [_format_rate(tally, "slower") for tally in plants]
        cells += [_format_bounded(sum(tally.wrong for tally in plants), sum(tally.comparisons for tally in plants))]
        every = list(tallies.values())
        inconclusive = _format_bounded(sum(t.count("inconclusive") for t in every), sum(t.comparisons for t in every))
        # For a slowdown near the threshold the verdict ``unknown`` is expected, so ``unknown`` is counted only for the
        # copy without extra work.
        cells += [inconclusive, _format_rate(none, "unknown")] if OUR_RULE in rule else ["–", "–"]
        lines.append(f"| {' | '.join(cells)} |")
    disjoint = next(tally.disjoint for tally in one.tallies if tally.rule.startswith(OUR_RULE))
    draws = one.tallies[0].comparisons
    lines += [
        "",
        f"{draws} draws per cell; at most {disjoint} comparisons by attnbench are possible without shared processes.",
    ]
    return "\n".join(lines)


def _format_size(one: Evaluation, share: int) -> str:
    """Format the measured slowdown of a copy, or the intended slowdown if none was measured."""
    true = next(tally.true for tally in one.tallies if tally.share == share)
    return f"about {share} %" if true is None else f"{100 * true:.2f} %"


def _format_rate(tally: Tally, *states: str) -> str:
    return _format_bounded(tally.count(*states), tally.comparisons)


def _format_bounded(count: int, of: int) -> str:
    """Format a rate in percent, with its upper confidence bound."""
    return f"{100 * count / of:.1f} % (≤ {100 * upper_bound(count, of):.1f} %)"


def format_runs_table(rows: Sequence[tuple[str, int, dict[str, int], float]]) -> str:
    """Format the rows that ``count_verdicts`` returns as a Markdown table."""
    lines = ["| condition | plant | runs | wall, s | verdicts | found | opposite | inconclusive |"]
    lines += ["|---|---:|---:|---:|---|---:|---:|---:|"]
    for condition, share, states, wall_s in rows:
        of = sum(states.values())
        verdicts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        columns = (("slower", "bigger"), ("faster", "smaller"), ("inconclusive",))
        rates = [_format_bounded(sum(states.get(state, 0) for state in column), of) for column in columns]
        plant = "one byte" if share == BYTE_SHARE else f"about {share} %" if share else "none"
        lines.append(f"| {condition} | {plant} | {of} | {wall_s:.1f} | {verdicts} | {' | '.join(rates)} |")
    return "\n".join(lines)


def draw_figure(evaluations: Sequence[Evaluation], path: Path) -> None:
    """Plot the percentage of comparisons that end in ``slower`` against the true slowdown, one panel per condition."""
    columns = min(2, len(evaluations))
    lines = math.ceil(len(evaluations) / columns)
    with rc_context({"svg.hashsalt": SALT, "font.size": 8.5}):
        plot = Figure(figsize=(PANEL * columns, HEIGHT * lines + 1), layout="constrained")
        panels = plot.subplots(lines, columns, squeeze=False, sharey=True)
        for panel, one in zip(panels.flat, evaluations, strict=False):
            for rule in dict.fromkeys(tally.rule for tally in one.tallies):
                ours = rule.startswith(OUR_RULE)
                points = sorted(
                    (100 * (t.share / 100 if t.true is None else t.true), 100 * t.count("slower") / t.comparisons)
                    for t in one.tallies
                    if t.rule == rule
                )
                panel.plot(
                    *zip(*points, strict=True),
                    "o-",
                    label=rule,
                    linewidth=2.4 if ours else 1,
                    alpha=1 if ours else 0.75,
                )
            panel.set(title=one.condition, xlabel="true slowdown, %", ylim=(-3, 103))
            panel.grid(alpha=0.3)
        for panel in list(panels.flat)[len(evaluations) :]:
            panel.set_visible(False)
        panels[0][0].set_ylabel("comparisons that say slower, %")
        handles, labels = panels[0][0].get_legend_handles_labels()
        plot.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        plot.savefig(path, dpi=DPI, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
