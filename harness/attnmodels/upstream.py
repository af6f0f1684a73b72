"""What upstream says of a model's deviation: by design, known, or a documented limit."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["find_upstream"]


def find_upstream(model: str, attention: str, situation: str) -> str:
    """Return what upstream says of a deviation, with the place where it says so; empty if nothing is known."""
    for one in _read_known():
        if model in one["models"] and attention in one["attentions"] and situation in one["situations"]:
            return str(one["says"])
    return ""


@cache
def _read_known() -> list[dict[str, Any]]:
    text = (resources.files("attnmodels") / "upstream.toml").read_text(encoding="utf-8")
    return list(tomllib.loads(text).get("deviation", []))
