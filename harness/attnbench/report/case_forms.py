"""Forms of cases in words: what distinguishes series of the same place, such as "batch 1, 4 heads, width 256"."""

import re
from collections.abc import Collection, Iterator

from attnbench.report.numbers import format_count

__all__ = [
    "describe_form",
    "describe_length",
    "describe_pass",
    "describe_size",
    "name_size",
    "split_numbers",
]

MULTIHEAD = "multihead"
# Flags that most timed cases of multi-head attention have, with words for a case without the flag. A form names only
# the flags that it lacks.
USUAL = {"bias": "projections without bias", "batch_first": "sequence first", "self_attention": "cross-attention"}
# Words for other flags.
FLAGS = {
    "need_weights": "returns weights",
    "average_attn_weights": "averaged over heads",
    "add_bias_kv": "bias_k and bias_v",
    "key_is_value": "key and value one tensor",
    "query_is_key": "query and key one tensor",
}
# Matches a number; more digits than 15 are divided, because a stored form may have any number of them.
NUMBER = re.compile(r"([0-9]{1,15})")
# Sizes that are named first.
ORDER = ("B", "H", "E", "D")
# Modes that need no words, because the name of the pass implies them.
PLAIN_MODES = ("inference", "train")


def describe_form(form: str, *, varying: Collection[str] = ()) -> str:
    """Return a form in words; different forms have different words. A form of another layout is returned unchanged.

    ``varying`` are letters of sizes that the form lacks because they vary.
    """
    parts = form.split("/")
    if len(parts) != 6:
        return form
    operator, sizes, flags, mask, regime, seed = parts
    words = [] if operator == MULTIHEAD else [operator]
    words += _describe_sizes(operator, sizes, varying)
    words += _describe_flags(operator, flags)
    for text, usual in ((mask, "mask=none"), (regime, "regime=plain"), (seed, "seed=0")):
        words += [text.replace("=", " ", 1)] * (text != usual)
    return ", ".join(words)


def split_numbers(form: str) -> list[str | int]:
    """Divide a form into texts and numbers, which alternate; forms sort by them with batch 4 before batch 16."""
    return [int(part) if place % 2 else part for place, part in enumerate(NUMBER.split(form))]


def describe_pass(name: str, mode: str) -> str:
    """Return the name of a pass, with the call mode where the pass does not imply the mode."""
    return name if mode in PLAIN_MODES else f"{name} ({mode})"


def describe_length(queries: int, keys: int) -> str:
    """Return a length in words: "128", or "1 query, 128 keys" if the two numbers differ."""
    if queries == keys or not queries or not keys:
        return str(max(queries, keys))
    return f"{queries} {'query' if queries == 1 else 'queries'}, {format_count(keys, 'key')}"


def describe_size(operator: str, letter: str, number: str) -> str:
    """Return a size in words, such as "12 heads"; ``letter`` is that of the size in ids of cases."""
    text = _label_size(operator, letter).format(number)
    return text.removesuffix("s") if number == "1" and text.startswith("1 ") else text


def name_size(operator: str, letter: str) -> str:
    """Return the name of a size without its number, such as "heads"."""
    return _label_size(operator, letter).format("").strip()


def _label_size(operator: str, letter: str) -> str:
    labels = {"B": "batch {}", "H": "{} heads", "E": "width {}", "D": "head width {}", "W": "window {}"}
    labels |= (
        {"K": "kdim {}", "V": "vdim {}"} if operator == MULTIHEAD else {"K": "{} key heads", "V": "value width {}"}
    )
    return labels.get(letter, letter + " {}")


def _describe_sizes(operator: str, sizes: str, varying: Collection[str]) -> Iterator[str]:
    found = re.findall(r"([A-Za-z]+)(\d+)", sizes)
    if operator == MULTIHEAD and "B" not in (*dict(found), *varying):
        yield "unbatched"
    # Heads come before the width, as people say it. The sort is stable, so the other sizes keep the order of the id.
    for label, number in sorted(found, key=lambda pair: ORDER.index(pair[0]) if pair[0] in ORDER else len(ORDER)):
        yield describe_size(operator, label, number)


def _describe_flags(operator: str, flags: str) -> Iterator[str]:
    have = [flag for flag in flags.split("+") if flag != "-"]
    if operator == MULTIHEAD:
        shared = {"key_is_value", "query_is_key"} & set(have)
        yield from (words for flag, words in USUAL.items() if flag not in have and not (shared and flag[0] == "s"))
        have = [flag for flag in have if flag not in USUAL]
    yield from (FLAGS.get(flag, flag.replace("=", " ")) for flag in have)
