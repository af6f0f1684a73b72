"""What fault models are called: "looks like" and a text of this module is a diagnosis."""

from attnbench.records.value_facts import Acts, Fault, LooksLike, Phrase, StridesMisread
from attnbench.words.say import say

__all__ = ["FAULTS", "describe_diagnosis", "name_diagnosis"]

_DROPPED = {
    "zero_key": "the add_zero_attn key",
    "zero_key_tile": "the add_zero_attn key (the last tile at tile size {tiles})",
    "bias_key": "the bias_k key",
    "bias_key_tile": "the bias_k key (the last tile at tile size {tiles})",
    "last_key": "the last key",
    "last_key_tile": "the last key (the last tile at tile size {tiles})",
    "extra_keys": "the bias_k key and the add_zero_attn key",
    "extra_keys_tile": "the bias_k key and the add_zero_attn key (the last tile at tile size {tiles})",
    "keys_tile": "keys {first} and beyond (the last tile at tile size {tiles})",
}
# Templates by the names of the fault models of the built-in operators.
FAULTS = {
    "alibi_ignored": "ALiBi ignored",
    "alibi_negated": "ALiBi of the wrong sign",
    "alibi_scaled": "ALiBi multiplied by the scale",
    "alibi_slopes_reversed": "the ALiBi slopes assigned to the heads in reverse order",
    "bias_added_twice": "the bias added twice",
    "bias_after_softmax": "the bias added after the softmax",
    "bias_ignored": "the bias ignored",
    "bias_scaled": "the bias multiplied by the scale",
    "both_masks_ignored": "both masks ignored",
    "causal_mask_at_bottom_right": "the causal mask aligned at the bottom right",
    "causal_mask_at_top_left": "the causal mask aligned at the top left",
    "causal_mask_ignored": "the causal mask ignored",
    "causal_mask_misses_own": "the causal mask off by one (a query misses its own key)",
    "causal_mask_sees_next": "the causal mask off by one (a query sees the next key)",
    "combined_masks_inverted": "the masks inverted after they were combined",
    "dropout_undivided": "the attention weights kept by dropout not divided by 1 − p",
    "dropped_weights_renormalised": "the weights kept by dropout divided by their sum, as if logits were dropped",
    "features_merged_interleaved": "features merged as (head_dim, heads) in place of (heads, head_dim)",
    "features_split_interleaved": "features split as (head_dim, heads) in place of (heads, head_dim)",
    "first_key_head_for_all": "the first key head used for all query heads",
    "given_scale_ignored": "the scale 1/√head_dim in place of the given scale",
    "gradient_strides_ignored": "the strides of the heads' gradient ignored in the backward pass",
    "heads_merged_before_batch": "(batch, heads) merged as (heads, batch)",
    "heads_merged_by_view": "heads merged by a view, without the transpose",
    "heads_merged_reversed": "heads merged in reverse order",
    "heads_split_by_view": "heads split by a view, without the transpose",
    "input_bias_missing": "the query, key and value bias missing",
    "key_and_value_swapped": "the arguments key and value swapped",
    "key_bias_missing": "the key bias missing",
    "key_heads_interleaved": "query head h with key head h mod K in place of ⌊h·K/H⌋",
    "key_lengths_ignored": "key_lengths ignored",
    "key_lengths_too_long": "key_lengths one key too long",
    "key_lengths_too_short": "key_lengths one key too short",
    "keys_and_values_swapped": "keys and values swapped",
    "late_rows_nan": "rows whose first {tile} keys are all hidden NaN",
    "late_rows_uniform": "rows whose first {tile} keys are all hidden with uniform weights",
    "late_rows_zero": "rows whose first {tile} keys are all hidden without any weight",
    "logits_divided_by_scale": "logits divided by the scale",
    "logits_multiplied_by_mask": "the logits multiplied by the mask, so hidden logits are 0",
    "logits_negated": "logits of the wrong sign",
    "mask_added_twice": "the {mask} added twice",
    "mask_after_softmax": "the {mask} applied after the softmax",
    "mask_heads_first": "the attn_mask read as (heads, batch) in place of (batch, heads)",
    "mask_ignored": "the {mask} ignored",
    "mask_inverted": "the {mask} inverted",
    "mask_of_first_head": "the attn_mask of the first head used for all heads",
    "mask_read_as_boolean": "the {mask} read as a boolean mask",
    "mask_scaled": "the {mask} multiplied by the scale",
    "masked_rows_nan": "fully masked rows NaN",
    "masked_rows_uniform": "fully masked rows with uniform weights",
    "masked_rows_unmasked": "fully masked rows left unmasked",
    "masks_intersected": "keys hidden only where both masks hide them",
    "masks_shifted": "masks shifted by the number of extra keys (bias_k, add_zero_attn)",
    "output_bias_missing": "the output bias missing",
    "output_normalised": "a LayerNorm of the output",
    "output_projection_missing": "the output projection missing",
    "padding_heads_first": "the key_padding_mask repeated as (heads, batch) in place of (batch, heads)",
    "padding_of_first_sequence": "the key_padding_mask of the first sequence used for all sequences",
    "projections_exchanged": "the projections of {first} and {second} exchanged",
    "queries_and_keys_swapped": "queries and keys swapped",
    "query_added": "the query added to the output (a residual connection)",
    "query_added_and_normalised": "the query added to the output, and a LayerNorm of the sum",
    "query_bias_missing": "the query bias missing",
    "scale_missing": "the scale missing",
    "scale_of_columns": "the scale 1/√(number of keys and extra keys) in place of 1/√head_dim",
    "scale_of_keys": "the scale 1/√(number of keys) in place of 1/√head_dim",
    "scale_of_queries": "the scale 1/√(number of queries) in place of 1/√head_dim",
    "scale_of_reciprocal": "the scale 1/head_dim in place of 1/√head_dim",
    "scale_of_root": "the scale √head_dim in place of 1/√head_dim",
    "scale_of_heads": "the scale 1/√(heads · head_dim) in place of 1/√head_dim",
    "scale_of_value_width": "the scale 1/√value_dim in place of 1/√head_dim",
    "scale_of_width": "the scale 1/√embed_dim in place of 1/√head_dim",
    "scale_squared": "the scale squared",
    "scaled_after_softmax": "the scale applied after the softmax",
    "score_mod_before_scale": "score_mod applied before the scale",
    "score_mod_ignored": "score_mod ignored",
    "sinks_ignored": "the sinks ignored",
    "softcap_after_bias": "the soft-cap applied after bias and ALiBi",
    "softcap_after_mask": "the soft-cap applied after the mask",
    "softcap_missing": "the soft-cap missing",
    "softmax_base_two": "softmax with powers of 2 in place of powers of e",
    "softmax_missing": "the softmax missing",
    "softmax_over_batch": "softmax over the batch in place of keys",
    "softmax_over_heads": "softmax over heads in place of keys",
    "softmax_over_queries": "softmax over queries in place of keys",
    "softmax_undivided": "the exponentials {exponentials} not divided by their sum",
    "value_bias_missing": "the value bias missing",
    "weights_averaged": "attention weights averaged over heads in place of those of each head",
    "weights_not_averaged": "attention weights of each head in place of their average",
    "window_ignored": "the window ignored",
    "window_too_narrow": "the window one key too narrow",
    "window_too_wide": "the window one key too wide",
    **{f"{key}_dropped": f"{words} dropped" for key, words in _DROPPED.items()},
    **{f"{key}_dropped_after_softmax": f"{words} dropped after the softmax" for key, words in _DROPPED.items()},
}
_ACTS: dict[Acts, str] = {
    "pass": "{fault}",
    "backward_alone": "{fault}, in the backward pass alone (the outputs are right)",
    "backward_at_least": "{fault} (in the backward pass at least: on this case it changes no output)",
}
_LOOKS_LIKE = "looks like {faults}"
_OR = " or "
_STRIDES = "strides or offsets misread"
_CONTIGUOUS = "the same call with contiguous tensors is right, so strides or offsets are misread"


def describe_diagnosis(diagnosis: LooksLike | StridesMisread) -> str:
    """Return what values look like, as the end of a sentence."""
    if isinstance(diagnosis, StridesMisread):
        return say(_CONTIGUOUS)
    return say(_LOOKS_LIKE, faults=name_diagnosis(diagnosis))


def name_diagnosis(diagnosis: LooksLike | StridesMisread) -> str:
    """Return the mistakes that a diagnosis found, in a few words."""
    if isinstance(diagnosis, StridesMisread):
        return say(_STRIDES)
    return say(_OR).join(map(_name_fault, diagnosis.faults))


def _name_fault(fault: Fault) -> str:
    """Return the name of a fault model, and where it acts if that is not the whole pass."""
    return say(_ACTS[fault.acts], fault=_name_model(fault.model))


def _name_model(model: Phrase) -> str:
    """Return the text of a fault model; the name of an operator's own is its text."""
    try:
        return say(FAULTS[model.key], **model.values)
    except (LookupError, ValueError, TypeError):
        return model.key
