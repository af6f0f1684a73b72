"""The table of deviations: what is measured in which model, and what the authors of transformers say about it."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from research.models import deviations
from research.models.deviations import Measured

__all__ = ["DEVIATIONS", "Deviation", "format_row", "format_table", "measure"]

_PULLS = "https://github.com/huggingface/transformers/pull"
_ISSUES = "https://github.com/huggingface/transformers/issues"
_PAGES = "https://huggingface.co/docs/transformers/model_doc"
_PADDED = f"documented: pad on the right ({_PAGES}"
_LIKE_BART = f"nothing found for this model; known for BART ({_ISSUES}/19581)"
# Why a number deviates: the model does, attnbench accused it wrongly, or nothing does.
Cause = Literal["the model", "attnbench", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A situation in which the numbers of a model deviate, or do not, and what is published about it."""

    situation: str
    model: str
    measure: Callable[[str], Measured]
    upstream: str
    cause: Cause = "the model"


def _same(
    situation: str, function: Callable[[str], Measured], upstream: dict[str, str], cause: Cause = "the model"
) -> Iterator[Deviation]:
    for model, words in upstream.items():
        yield Deviation(situation=situation, model=model, measure=function, upstream=words, cause=cause)


DEVIATIONS: tuple[Deviation, ...] = (
    *_same(
        "two packed sequences",
        deviations.packed,
        {
            "GptOss": f"known: {_PULLS}/39997 (open) gives the position ids to the masks of `GptOssModel.forward`",
            "OPT": f"nothing found; {_PULLS}/33121 added the position ids, for embeddings",
            "BioGpt": "nothing found; `BioGptModel.forward` makes a mask of ones, with which masks ignore position ids "
            "(`_preprocess_mask_arguments` in masking_utils.py)",
            "CLIPText": "nothing found",
            "Afmoe": "nothing found",
            "XGLM": "nothing found",
            "Falcon": "nothing found",
            "ImageGPT": "nothing found",
            "MegatronBert": "nothing found",
            "GraniteMoeHybrid": f"{_PULLS}/39677 (merged) packs by arguments of FlashAttention and `seq_idx`",
            "Qwen3Next": "by design, documented: linear attention ignores position ids, and needs "
            f"`DataCollatorWithFlattening` (https://huggingface.co/docs/transformers/padding_free, {_ISSUES}/46093)",
        },
    ),
    *_same("the same, in a model that is right", deviations.packed, {"Llama": f"added by {_PULLS}/39194"}, "none"),
    *_same(
        "padding on the left of an encoder",
        deviations.left_padding,
        {
            "Bart": f"{_PADDED}/bart), {_ISSUES}/19581",
            "MBart": _LIKE_BART,
            "PLBart": _LIKE_BART,
            "Pegasus": _LIKE_BART,
            "PegasusX": _LIKE_BART,
            "Marian": _LIKE_BART,
            "BigBirdPegasus": f"{_PADDED}/bigbird_pegasus)",
            "BlenderbotSmall": f"{_PADDED}/blenderbot-small)",
            "Blenderbot": f"{_PADDED}/blenderbot)",
            "DPR": "documented: pad on the right (`DPRQuestionEncoder.forward` in modeling_dpr.py)",
        },
    ),
    *_same(
        "padding on the right, trigrams of embeddings",
        deviations.right_padding,
        {"MobileBert": f"known: {_ISSUES}/7070 (wontfix), {_ISSUES}/9860 (closed)"},
    ),
    *_same(
        "padding on the right, boolean masks",
        deviations.boolean_masks,
        {
            "BigBirdPegasus": "the class leaves `_supports_attention_backend` and `_supports_sdpa` False; "
            "`BigBirdPegasusSelfAttention.forward` adds the mask, which must be one of numbers"
        },
        "attnbench",
    ),
    *_same(
        "padding on the right in float16",
        deviations.float16,
        {
            "LongT5": f"known in part: {_ISSUES}/17978 (closed) reports NaN in training in float16, and {_PULLS}/19229 "
            "(merged) clamps hidden states; `LongT5LocalAttention.forward` adds -1e10, which float16 rounds to -inf"
        },
    ),
    *_same(
        "text without token types: a change of the last token",
        deviations.text_alone,
        {
            "PaliGemma": f"known as a need for token types: {_PULLS}/40917 (merged) has the processor return them; "
            f"the same fault of Gemma 4, layers not causal but masks causal, is fixed ({_PULLS}/46079)"
        },
    ),
    *_same(
        "the same with token types",
        deviations.text_alone_with_types,
        {"PaliGemma": "as `PaliGemmaProcessor` gives them"},
        "none",
    ),
    *_same(
        "one token at a time, longer than the window",
        deviations.one_token_at_a_time,
        {
            "Moshi": "nothing found; `MoshiModel.forward` calls `create_causal_mask` only, and `DynamicCache` keeps "
            "the window"
        },
    ),
    *_same(
        "the encoder's window, as FlashAttention gets it",
        deviations.two_sided_window,
        {
            "T5Gemma": "`_process_flash_attention_kwargs` in modeling_flash_attention_utils.py asks encoders for a "
            "window that fits; `ModernBertAttention` adds 1 for it and `T5GemmaSelfAttention` does not; "
            "nothing found on T5Gemma"
        },
    ),
)


def measure(chosen: Iterable[Deviation] = DEVIATIONS) -> Iterator[tuple[Deviation, Measured]]:
    """Measure one deviation after the other."""
    for one in chosen:
        yield one, one.measure(one.model)


def format_row(one: Deviation, measured: Measured) -> str:
    """Return a row of the table: NaN in words, other differences with two digits."""
    difference, rounding = ("NaN" if math.isnan(number) else f"{number:.2g}" for number in measured)
    return f"| {one.situation} | {one.model} | {difference} | {rounding} | {one.cause} | {one.upstream} |\n"


def format_table(measured: Iterable[tuple[Deviation, Measured]]) -> str:
    """Return the table in Markdown."""
    head = "| situation | model | difference | in the control | deviates | upstream |\n"
    return head + "| --- | --- | ---: | ---: | --- | --- |\n" + "".join(format_row(*one) for one in measured)
