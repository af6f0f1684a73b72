"""Gates of the commits, each against the commit before it."""

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from attngate import gating, planning
from attngate.command import command
from research.story.commits import NAME, Commit, Repository

__all__ = ["TOLD", "Shard", "check_part", "expect_verdicts", "run_gate"]

# Verdicts that name a commit. The gate also tells that a number of calls is another, and that a time is not slower.
TOLD = frozenset({"wrong", "gone", "slower", "bigger", "mended", "faster", "smaller"})
# Part of the suite core: the first number of so many parts.
Shard = tuple[int, int]


@contextlib.contextmanager
def check_part(shard: Shard | None) -> Iterator[None]:
    """Let gates check a part of the suite ``core``; None: the whole suite, as they do elsewhere."""
    whole = planning.make_conform_job
    with mock.patch.object(gating, "make_conform_job", lambda job: replace(whole(job), shard=shard)):
        yield


def run_gate(repository: Repository, base: str, words: Sequence[str]) -> dict[str, Any]:
    """Run ``attnbench gate`` of the commit that is checked out, and return its outcome, as its file has it."""
    with tempfile.TemporaryDirectory(prefix="story-") as made:
        file = Path(made, "outcome.json")
        results = str(Path(made, "results"))
        with contextlib.chdir(repository.folder), contextlib.redirect_stdout(io.StringIO()):
            command.main(
                [NAME, "--base", base, *words, "--results", results, "--json", str(file)], standalone_mode=False
            )
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found


def expect_verdicts(commit: Commit, fail_on: Sequence[str]) -> list[str]:
    """Return the verdicts that a gate must give on a commit; without ``slower``, it times nothing."""
    return sorted(one for one in commit.gate if "slower" in fail_on or one not in ("slower", "faster"))
