"""Names from run files, as they stand in a sentence or a command on a page or a terminal."""

import shlex
import unicodedata
from collections.abc import Collection, Iterable

__all__ = ["clean_name", "format_command", "join_words"]

# Longest name in a sentence, in characters. The longest name of a built-in implementation has 25.
LONGEST = 60
# Most names in a command; a command without names is for all built-in implementations.
NAMED = 12


def clean_name(name: str, longest: int = LONGEST) -> str:
    """Return a name in one line of at most ``longest`` characters, without control characters or marks of direction.

    A run file may contain anything: a terminal would obey an escape sequence, and a mark of direction would turn the
    rest of the sentence around. Each such character is replaced by U+FFFD.
    """
    start = " ".join(name[: 2 * longest].split())
    shown = "".join("\ufffd" if unicodedata.category(mark).startswith("C") else mark for mark in start)
    if len(shown) > longest or len(name) > 2 * longest:
        shown = shown[: longest - 1] + "…"
    return shown or "(no name)"


def format_command(command: str, names: Collection[str]) -> str:
    """Return a command with these implementations, quoted for a POSIX shell.

    The names are left out if there are many, or if one is too long or has characters that are not shown.
    """
    if len(names) > NAMED or any(clean_name(name) != name or name.startswith("-") for name in names):
        return command
    return f"{command} {shlex.join(names)}"


def join_words(parts: Iterable[str]) -> str:
    """Join words with commas, and the last two with "and"."""
    *first, last = [str(part) for part in parts]
    return f"{', '.join(first)} and {last}" if first else last
