"""The commits of the scratch repository: what each changes, and what is expected of the gate and of the history.

The first version is the example of docs/your-own.md. In multi-head attention, a mask for each head has three
dimensions, (batch · heads, queries, keys); this module makes it four-dimensional, (batch, heads, queries, keys).
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnbench.analysis.run_diff import Verdict

__all__ = ["NAME", "STORY", "Commit", "Repository", "make_repository"]

SOURCE = Path(__file__).parents[2] / "tests" / "plugin_example" / "my_attention.py"
FILE = "mine.py"
NAME = f"{FILE}:MyAttention"
# Date of the first commit, 1 January 2026, in seconds since 1970; asv and ``attnbench history`` order commits by dates.
START_S = 1_767_225_600
Quantity = Literal["peak_bytes", "saved_bytes", "workspace_bytes", "kernel_calls", "flop", "measured"]
Edit = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit, with the changes of ``mine.py``, or else a line that is added to another file."""

    subject: str
    edits: tuple[Edit, ...] = ()
    other_file: str = ""
    # Verdicts of the gate on one change or several, by the words of its file; ``same`` and ``other`` are left out.
    gate: frozenset[Verdict] = frozenset()
    # Counters that move at this commit. Some move with the planted one: a tensor more needs a call more that makes it.
    # What fails its checks is not measured.
    history: frozenset[Quantity] = frozenset()

    @property
    def is_planted(self) -> bool:
        """Whether the gate or the history must name this commit."""
        return bool(self.gate or self.history)


def _invert(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    return tuple((after, before) for before, after in reversed(edits))


SCORES = "        q, k, v = (self.project(x, part)"
RESULT = "        output = self.out_proj("
LOGITS = "        logits = torch.einsum("
AVERAGE = "        if average_attn_weights:\n"
# A product of two matrices of 512 rows has 268 Mflop; a call at 16 tokens with 4 heads of width 64 has 8.7 Mflop. So
# the planted slowdown is large in short calls. It is not a share of a call: that would need a calibration on each
# machine. The product needs no memory beside its constants.
SLOWER: tuple[Edit, ...] = (
    (
        "class MyAttention(nn.Module):",
        "ONES, SPACE = torch.ones(512, 512), torch.empty(512, 512)\n\n\nclass MyAttention(nn.Module):",
    ),
    (SCORES, f"        torch.mm(ONES, ONES, out=SPACE)\n{SCORES}"),
)
PEAK: tuple[Edit, ...] = ((RESULT, f"        kept = weights.clone()\n{RESULT}"),)
# The product that saves another tensor also takes time, forward and backward.
SAVED: tuple[Edit, ...] = ((RESULT, f"        weights = weights * torch.ones_like(weights)\n{RESULT}"),)
MASK: tuple[Edit, ...] = (
    ("attn_mask.reshape(logits.shape)", "attn_mask.unflatten(0, (self.num_heads, len(query))).transpose(0, 1)"),
)
GRADIENT: tuple[Edit, ...] = (("self.in_proj_bias.chunk(3)", "self.in_proj_bias.detach().chunk(3)"),)
FEWER: tuple[Edit, ...] = (
    (
        "weights = torch.softmax(logits.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)",
        "logits = torch.softmax(logits.masked_fill_(empty, 0.0), dim=-1)\n"
        "        weights = logits.masked_fill(empty, 0.0)\n"
        "        del logits",
    ),
)


def _note(subject: str, file: str) -> Commit:
    return Commit(subject=subject, other_file=file)


def _reword(subject: str, before: str, after: str) -> Commit:
    return Commit(subject=subject, edits=((before, after),))


STORY = (
    Commit(subject="First version"),
    _note("Add a page for readers", "README.md"),
    _reword("Docstring names the paper", "by ``torch.einsum``, with", "by ``torch.einsum`` (Vaswani et al.), with"),
    Commit(
        subject="SLOWER: a matrix product that nothing uses", edits=SLOWER, gate=frozenset({"slower"}),
        history=frozenset({"kernel_calls"}),
    ),
    _note("Add a change log", "CHANGELOG.md"),
    Commit(
        subject="Rename a local variable",
        edits=(("three = attn_mask.dim()", "is_per_head = attn_mask.dim()"), ("if three else", "if is_per_head else")),
    ),
    _note("Add a note on masks", "notes.md"),
    Commit(
        subject="BIGGER: a copy of the weights during the call", edits=PEAK, gate=frozenset({"bigger"}),
        history=frozenset({"kernel_calls", "peak_bytes", "workspace_bytes"}),
    ),
    _note("Describe the masks", "README.md"),
    Commit(
        subject="Repair: no unused matrix product", edits=_invert(SLOWER), gate=frozenset({"faster"}),
        history=frozenset({"kernel_calls"}),
    ),
    _reword("Comment on a shape", f"{AVERAGE}", f"        # (batch, heads, queries, keys)\n{AVERAGE}"),
    Commit(
        subject="WRONG: the bias of the projections has no gradient", edits=GRADIENT, gate=frozenset({"wrong"}),
        history=frozenset({"measured"}),
    ),
    _note("Log the change", "CHANGELOG.md"),
    Commit(subject="WRONG: heads and sequences of a 4-D mask are swapped", edits=MASK, gate=frozenset({"wrong"})),
    _note("Add a licence", "LICENSE"),
    Commit(
        subject="Repair: the bias has its gradient", edits=_invert(GRADIENT), gate=frozenset({"mended"}),
        history=frozenset({"measured"}),
    ),
    Commit(
        subject="Repair: no copy of the weights", edits=_invert(PEAK), gate=frozenset({"smaller"}),
        history=frozenset({"kernel_calls", "peak_bytes", "workspace_bytes"}),
    ),
    _reword("Another docstring", "Refuse shapes that would broadcast", "Raise ValueError for shapes that broadcast"),
    Commit(
        subject="BIGGER: another tensor is saved for backward", edits=SAVED, gate=frozenset({"bigger", "slower"}),
        history=frozenset({"kernel_calls", "peak_bytes", "saved_bytes", "workspace_bytes"}),
    ),
    _note("Log the repairs", "CHANGELOG.md"),
    Commit(subject="Repair: masks keep their order", edits=_invert(MASK), gate=frozenset({"mended"})),
    _reword("Comment on the scale", LOGITS, f"        # Queries have fewer numbers than logits.\n{LOGITS}"),
    Commit(
        subject="Repair: no other tensor is saved", edits=_invert(SAVED), gate=frozenset({"smaller", "faster"}),
        history=frozenset({"kernel_calls", "peak_bytes", "saved_bytes", "workspace_bytes"}),
    ),
    _note("Describe the memory", "README.md"),
    Commit(
        subject="BETTER: one copy of the logits fewer at a time", edits=FEWER, gate=frozenset({"smaller", "faster"}),
        history=frozenset({"kernel_calls", "peak_bytes", "workspace_bytes"}),
    ),
    _note("Log the improvement", "CHANGELOG.md"),
    _reword("Shorter docstring", "the reference's names of arguments and parameters.", "the reference's names."),
    _note("Add a list of contributors", "AUTHORS"),
    _reword(
        "Order of two lines", "        self.dropout = dropout\n        self.batch_first = batch_first\n",
        "        self.batch_first = batch_first\n        self.dropout = dropout\n",
    ),
    _note("Release", "CHANGELOG.md"),
)  # fmt: skip


class Repository:
    """A git repository in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def git(self, *words: str, date_s: int = START_S) -> str:
        """Run git in the repository, and return what it prints; a commit has the date in seconds since 1970."""
        settings = ("-c", "user.name=story", "-c", "user.email=story@example.org", "-c", "commit.gpgsign=false")
        dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"{date_s} +0000")
        done = subprocess.run(
            ["git", *settings, *words], cwd=self.folder, env=os.environ | dates, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def check_out(self, commit: str) -> None:
        """Make the working tree that of a commit, which no branch needs."""
        self.git("checkout", "-q", "--detach", commit)


def make_repository(folder: Path, story: Sequence[Commit]) -> tuple[Repository, list[str]]:
    """Make a repository with the commits of a story, an hour apart; return it and the hashes of the commits.

    Raises: ValueError where an edit does not apply to one place of the file.
    """
    folder.mkdir(parents=True)
    made, hashes = Repository(folder), []
    made.git("init", "-q", "-b", "main")
    source = SOURCE.read_text(encoding="utf-8")
    for number, commit in enumerate(story):
        for before, after in commit.edits:
            if source.count(before) != 1:
                raise ValueError(
                    f"{commit.subject}: {before!r} must be in {FILE} once, is {source.count(before)} times"
                )
            source = source.replace(before, after)
        (folder / FILE).write_text(source, encoding="utf-8")
        if commit.other_file:
            with (folder / commit.other_file).open("a", encoding="utf-8") as file:
                file.write(f"{number}. {commit.subject}\n")
        made.git("add", ".")
        made.git("commit", "-q", "-m", commit.subject, date_s=START_S + 3600 * number)
        hashes.append(made.git("rev-parse", "HEAD"))
    return made, hashes
