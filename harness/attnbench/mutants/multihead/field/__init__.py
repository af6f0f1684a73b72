"""Mutants of kinds that public trackers report, which need a coincidence, a sequence of calls, modes or threads.

A module has the mutants of one kind: ``sizes`` (equal sizes and multiples of tiles), ``masks`` (two masks, or values
that look as if nothing were hidden), ``calls`` (a call after other calls), ``modes`` (a mode beside a mode), ``empty``
(nothing to attend to), ``threads`` (two threads), ``branches`` (four things at once). A reason ends with the report.
*After* a report: the mutant has its mechanism in another place or under another condition.
"""
