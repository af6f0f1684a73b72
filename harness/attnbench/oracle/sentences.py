"""The shipped sentences. Reading them needs no torch."""

from importlib import resources

__all__ = ["load_sentences"]


def load_sentences() -> list[str]:
    """Load the shipped sentences, each of 7 to 67 tokens of the sentence encoder."""
    text = resources.files("attnbench.oracle").joinpath("sentences.txt").read_text(encoding="utf-8")
    return text.splitlines()
