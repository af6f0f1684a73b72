"""Facts to English: every sentence about findings, causes, refusals, times and runs that a user reads is made here.

In come typed facts (``records.facts``), rows of ``analysis.summary`` and answers of ``analysis.answers``; out go plain
texts. Nothing reads such a text back, and nothing here decides anything: with other words, every group, verdict, exit
code, number and order stays the same. Markup, colours and layout belong to the terminal and to the report.
"""
