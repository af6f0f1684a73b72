"""Cheats, which make the timing say that they are fast, and honest oddities, which only look like cheats.

Each cheat names the defence that stops it. With all defences the cheat is stopped; without this defence it succeeds.
"""

from attncheats import (
    answers,
    caching,
    early,
    honest,
    honest_neighbours,
    instruments,
    late,
    processors,
    results,
    settings,
    slowing,
    totals,
)

__all__ = ["CHEATS", "ODDITIES"]

_KINDS = (caching, answers, results, settings, processors, instruments, early, late, totals, slowing)
CHEATS = {cheat.name: cheat for kind in _KINDS for cheat in kind.cheats}
ODDITIES = {oddity.name: oddity for kind in (honest, honest_neighbours) for oddity in kind.oddities}
