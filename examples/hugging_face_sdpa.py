"""The attention function that models of the package transformers call if ``attn_implementation="sdpa"``.

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

# Layer without attributes, which ``sdpa_attention_forward`` takes as its first argument. In a model, attributes of the
# layer say whether query heads share key heads, and whether attention is causal if ``is_causal`` is not given.
LAYER = nn.Module()


def hugging_face_sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, scale: float, dropout_p: float
) -> Tensor:
    """Compute attention by ``sdpa_attention_forward``, which returns no attention weights.

    Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim), mask broadcastable to
    (batch, heads, queries, keys).
    """
    output, _ = sdpa_attention_forward(LAYER, q, k, v, mask, dropout=dropout_p, scaling=scale, is_causal=is_causal)
    return output.transpose(1, 2)  # from (batch, queries, heads, head_dim)


def explain_refusal(case: Case) -> str | None:
    """Return why ``sdpa_attention_forward`` cannot compute a case, or None if it can."""
    empty = 0 in (case.problem.batch, case.problem.queries)
    return "the function reshapes its output with a size of -1, which fails for an empty tensor" if empty else None


HUGGING_FACE_SDPA = from_kernel(
    hugging_face_sdpa,
    unsupported=explain_refusal,
    source="https://github.com/huggingface/transformers",
    # With is_causal, the function aligns the causal mask of several queries at the top left, but it lets a single query
    # see every key. With the policy "bottom_right", ``from_kernel`` passes a mask instead of is_causal unless there are
    # as many queries as keys.
    policies=Policies(causal="bottom_right"),
)
