"""Attention of transformers' models under ``attn_implementation="sdpa"``: a function of split heads.

Needs: pip install transformers
Check: attnbench conform examples/hugging_face_sdpa.py:HUGGING_FACE_SDPA
Source: https://github.com/huggingface/transformers/blob/main/src/transformers/integrations/sdpa_attention.py
"""

from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from attnbench.cases import Case
from attnbench.interface import Policies
from attnbench.kernel import from_kernel

__all__ = ["HUGGING_FACE_SDPA", "hugging_face_sdpa"]

# The function asks the layer that it belongs to for grouped heads and for a causal flag, unless it is given one.
LAYER = nn.Module()


def hugging_face_sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, scale: float, dropout_p: float
) -> Tensor:
    """Attention as every model of the library calls it; it returns no weights.

    Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim), mask broadcastable to
    (batch, heads, queries, keys).
    """
    output, _ = sdpa_attention_forward(LAYER, q, k, v, mask, dropout=dropout_p, scaling=scale, is_causal=is_causal)
    return output.transpose(1, 2)  # from (batch, queries, heads, head_dim)


def refusal(case: Case) -> str | None:
    """What the function cannot do."""
    return (
        "it reshapes its output by -1, which has no meaning for nothing"
        if 0 in (case.problem.batch, case.problem.queries)
        else None
    )


HUGGING_FACE_SDPA = from_kernel(
    hugging_face_sdpa,
    unsupported=refusal,
    source="https://github.com/huggingface/transformers",
    # A single query counts as the newest token, from which no key is hidden; more of them are aligned at the top left.
    policies=Policies(causal="bottom_right"),
)
