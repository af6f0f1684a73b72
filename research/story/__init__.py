"""Thirty commits with planted regressions, and what ``attnbench gate``, asv and ``attnbench history`` say of each."""
