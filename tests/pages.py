"""Pages of documentation: their fenced blocks, and the commands and files that the blocks show.

A fence may carry one mark after its language: ```` ```console slow ````. A block with a mark is parsed and not run.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file())
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

LANGUAGES = ("console", "python", "toml", "json", "yaml", "mermaid", "text")
# Every reason for which a block is not run.
MARKS = {
    "slow": "takes minutes, or runs until it is stopped",
    "cuda": "needs a CUDA device",
    "network": "installs packages, or downloads a model",
    "yours": "needs files, commits or runs that only the reader has",
    "excerpt": "lines of a file of the repository, where ... stands for lines that are left out",
}
# Marks of blocks in which names of files, implementations and operators are placeholders.
PLACEHOLDERS = ("network", "yours")

_FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE_NAME = re.compile(r"# (\S*\.\w+)\n")
# Languages in which a comment starts with #.
_COMMENTED = ("python", "toml", "yaml", "text")
_INLINE = re.compile(r"(?<!`)`(attnbench [^`\n]+)`(?!`)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of a console block, and the output that the page shows below it."""

    line: str
    shown: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """Words of the command, without its comment and without assignments before its name."""
        words = shlex.split(self.line, comments=True)
        while words and re.match(r"\w+=", words[0]):
            del words[0]
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    page: Path
    # Number of the line of the opening fence.
    line: int
    language: str
    mark: str
    text: str

    @property
    def place(self) -> str:
        """Page and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """Name of the file that the block shows: the comment in its first line."""
        found = _FILE_NAME.match(self.text) if self.language in _COMMENTED else None
        return found[1] if found else None

    @property
    def commands(self) -> list[Command]:
        """Commands of a console block: the lines that start with ``$``, and their continuations.

        Raises: ValueError where the block does not start with a command.
        """
        if not self.text.startswith("$ "):
            raise ValueError(f"{self.place}: a console block starts with '$ ' and a command; for output alone use text")
        parts = re.split(r"^\$ ", self.text.replace("\\\n", " "), flags=re.MULTILINE)[1:]
        return [Command(line=line, shown=tuple(shown)) for line, *shown in map(str.splitlines, parts)]


def read_blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    blocks = []
    for found in _FENCE.finditer(text):
        language, _, mark = found["info"].strip().partition(" ")
        line = text.count("\n", 0, found.start()) + 1
        blocks.append(Block(page=page, line=line, language=language, mark=mark, text=found["text"]))
    return blocks


def read_inline_commands(page: Path) -> Iterator[str]:
    """Yield the commands of attnbench in the sentences and tables of a page."""
    yield from _INLINE.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))


def is_excerpt(text: str, source: str) -> bool:
    """Whether the lines of ``text`` are lines of ``source`` in the same order; ``...`` is any text, or any lines.

    Blank lines and indentation do not count.
    """
    lines = iter(line.strip() for line in source.splitlines())
    wanted = [line.strip() for line in text.splitlines() if line.strip() not in ("", "...")]
    patterns = [".*".join(map(re.escape, re.split(r"\s*\.\.\.", line))) for line in wanted]
    return all(any(re.fullmatch(pattern, line) for line in lines) for pattern in patterns)


# A number that follows from rounding or is a time: decimals, an exponent, or a unit of time. Other numbers are counts.
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?(?= ?(?:ms|µs|s|min)\b)|\d+\.\d+(?:e[+-]\d+)?|\d+e[+-]\d+")
_TIME = re.compile(r" ?(?:ms|µs|s|min)\b")


def is_output(shown: Sequence[str], printed: str) -> bool:
    """Whether a command printed the lines that a page shows; a line ``...`` is any lines, also none.

    Times may differ. Numbers with an exponent are errors of rounding, which depend on the processor's kernels: they may
    differ by a factor of 2. Other numbers with decimals may differ by 1 %. Everything else is the same text.
    """
    lines = [line.rstrip() for line in shown]
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else _make_pattern(line) + r"\n" for line in lines)
    found = re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines()))
    if found is None:
        return False
    expected = [number for line in lines if line.strip() != "..." for number in _NUMBER.finditer(line)]
    return all(
        _is_close(number[0], value)
        for number, value in zip(expected, found.groups(), strict=True)
        if not _TIME.match(number.string, number.end())
    )


def _make_pattern(line: str) -> str:
    """Return a regular expression for a shown line, with a group for each number that may differ."""
    parts = [re.escape(part) for part in _NUMBER.split(line)]
    return r"(\d+(?:\.\d+)?(?:e[+-]\d+)?)".join(parts)


def _is_close(shown: str, printed: str) -> bool:
    tolerance = 1.0 if "e" in shown else 0.01
    smaller, larger = sorted((float(shown), float(printed)))
    return larger <= smaller * (1 + tolerance)
