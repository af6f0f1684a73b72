"""What half precision is too coarse for: a loop that adds up in the dtype of its tokens."""

from attnbench.cases import Case

__all__ = ["too_coarse"]


def too_coarse(case: Case) -> str | None:
    """Why a loop over single numbers refuses a case, or None: every sum of it is rounded after each term."""
    if case.dtype in ("float32", "float64"):
        return None
    return f"the loop adds up in the dtype of its tokens, for which {case.dtype} is too coarse"
