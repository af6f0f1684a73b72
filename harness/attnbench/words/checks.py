"""What the built-in checks compare, and what violates their conditions."""

from attnbench.records.value_facts import AN_OUTPUT, Compared, Phrase, Rows
from attnbench.words.say import say

__all__ = ["COMPARISONS", "VIOLATIONS", "describe_violation", "fill_phrase", "name_compared"]

_COPIES = {"deep_copy": "a deep copy", "unpickled_module": "an unpickled module"}
# What is made of a module that was called before in the mode ``mode``.
_LATER = {
    **_COPIES, "changed_deep_copy": "a deep copy whose parameters were changed",
    "loaded_state": "a module that loads the state dict", "module_converted_twice": "to(float64) and back",
}  # fmt: skip
_WAYS = {
    "by_position": "with {names} by position",
    "by_default": "without {names}, which have their defaults",
    "with_none": "with {names}",
}
# Templates of how calls differ whose quantities are compared; the name of the quantity stands before.
COMPARISONS = {
    "accumulated": "accumulated over two backward passes, halved (compared with one pass)",
    "after_fewer_keys": "of a call after a call with fewer keys",
    "after_evaluation": "of a call after a call in eval() without gradients",
    "after_inference_mode": "of a call after a call in inference mode",
    "after_longer_call": "of a call after a longer call",
    "after_other_dtype": "of a call after a call of another module in another dtype",
    "after_other_values": "of a call after a call with other values and masks",
    "after_training": "of a call after a call in train() with a backward pass",
    "backward_in_turns": "of two calls before their backward passes (compared with one call after the other)",
    "beside_another_thread": "of a call beside a call in another thread (compared with the call alone)",
    "after_call": "after the call",
    "after_eval": "in train() after a call in eval() (compared with the output before that call)",
    "after_further_calls": "of the first call after two further calls",
    "after_other_options": "of a call after a call with other options (compared with a newly built module)",
    "after_other_shapes": "of a call after calls with other shapes (compared with a newly built module)",
    "after_refused_calls": "after refused calls",
    "alibi_as_bias": "with a bias of minus slope times distance (compared with ALiBi)",
    "averaged": "averaged by the call (compared with the mean over heads)",
    "causal_hint": "with is_causal=True (compared with is_causal=False)",
    "compiled_at_another_length": "of the compiled module at another length (compared with the eager module)",
    "constants_added_to_bias": "with constants added to the rows of the bias (compared with the bias alone)",
    "constants_added_to_mask": "with constants added to the rows of the mask (compared with the mask alone)",
    "converted_module": "of the converted module (compared with a module built in this dtype)",
    "duplicated_keys": "with every key duplicated (compared with single keys)",
    "equal_copies": "for equal copies (compared with one tensor passed as several arguments)",
    "expanded_cotangent": "if the gradient of the output is a single 1, expanded with stride 0 "
    "(compared with a contiguous copy)",
    "expanded_inputs": "for expanded inputs (compared with copies)",
    "first_axis_last": "for inputs stored with the first axis last (compared with contiguous inputs)",
    "float32_mask": "under a float32 mask (compared with the same mask in half precision)",
    "float_masks": "under float masks (compared with boolean masks)",
    "forward_derivative": "in one direction by forward mode (compared with the backward pass)",
    "func_grad": "by torch.func.grad (compared with the backward pass)",
    "functional_call": "with functional_call (compared with a module that has these parameters)",
    "further_padded_keys": "with {count} additional padded keys (compared with none)",
    "gradient_alone": "when no other tensor requires a gradient (compared with all gradients at once)",
    "heads_not_shared": "with a key and value head for each query head (compared with shared heads)",
    "hidden_keys": "of hidden keys",
    "hidden_keys_changed": "of query {query} (after hidden keys changed)",
    "hidden_tokens": "of hidden tokens",
    "hint_without_causal_mask_with_weights": "for is_causal=True with an attn_mask that is not causal, "
    "with need_weights=True (compared with need_weights=False)",
    "hint_without_mask": "with is_causal=True and no attn_mask (compared with the causal mask)",
    "larger_after_smaller": "of a larger call after a smaller call (compared with a newly built module)",
    "later_pass": "of a later pass (compared with the first pass)",
    "later_tokens_changed": "of tokens 0 to {last} (after later tokens changed)",
    "loaded_module": "of the loaded module (compared with the saved module)",
    "nan_in_padded_tokens": "of real tokens with NaN in padded tokens (compared with finite padded tokens)",
    "new_masks": "of a call with new masks (compared with a newly built module)",
    "one_query_changed": "of the other queries (after query {query} changed)",
    "other_options": "of a call with other options (compared with a newly built module)",
    "overwritten": "after inputs and parameters were overwritten (compared with a newly built module)",
    "packed_inputs": "for slices of one tensor (compared with separate tensors)",
    "padded_tokens_changed": "of real tokens (after padded tokens changed)",
    "permuted_heads": "with permuted heads (compared with the original order)",
    "permuted_keys": "with permuted keys (compared with the original order)",
    "queries_alone": "of queries {first} to {last} alone (compared with all queries)",
    "reversed_batch": "of the reversed batch (compared with the original order)",
    "same_seed": "of a second call under the same seed (compared with the first call)",
    "second_backward_pass": "of the second backward pass (compared with the first)",
    "second_call": "of a second call (compared with the first call)",
    "second_derivative": "as a second derivative",
    "second_seed": "under a second seed (compared with the first seed)",
    "sequence_alone": "of sequence {sequence} alone (compared with the batch)",
    "sequence_cut": "of sequence {sequence} cut to its length (compared with the batch)",
    "sliced_inputs": "for inputs sliced from wider rows (compared with contiguous inputs)",
    "smaller_after_larger": "of a smaller call after a larger call (compared with a newly built module)",
    "spread_inputs": "for inputs with a stride of 2 between elements (compared with contiguous inputs)",
    "summed_over_equal_copies": "summed over equal copies (compared with one tensor passed as several arguments)",
    "summed_over_head_copies": "summed over the copies of each head (compared with the shared heads)",
    "transposed_cotangent": "if the gradient of the output is transposed (compared with a contiguous copy)",
    "transposed_inputs": "for inputs stored transposed (compared with contiguous inputs)",
    "unequal_strides": "for keys and values with different strides (compared with contiguous inputs)",
    "unbatched": "without a batch dimension (compared with a batch of one)",
    "unseen_keys_changed": "of query {query} (after unseen keys changed)",
    "valid_call_after_refused_calls": "of a valid call after refused calls",
    "vmap": "under vmap over examples (compared with a loop)",
    "vmap_of_common_masks": "under vmap over examples with common masks (compared with a loop)",
    "vmap_of_masks": "under vmap over examples with masks of their own (compared with a loop)",
    "wide_mask_with_weights": "for a float32 mask with half-precision tokens, with need_weights=True "
    "(compared with need_weights=False)",
    "without_weights": "without weights (compared with the output with weights)",
    **{key: f"of {copy}" for key, copy in _COPIES.items()},
    **{f"{key}_later": f"after a call in the mode {{mode}} and {made}" for key, made in _LATER.items()},
    **{f"after_change_of_{key}": f"of the module (after {copy} was changed)" for key, copy in _COPIES.items()},
    **{
        f"{key}_in_training": f"of {copy} in training under the same seed (compared with the original)"
        for key, copy in _COPIES.items()
    },
    **{key: f"{way} (compared with keywords)" for key, way in _WAYS.items()},
}
# Templates of violated conditions, without the full stop.
VIOLATIONS = {
    "batch_of_keys_alone": "a call with a query without a batch dimension, but key and value with one, "
    "raised no exception",
    "batch_of_queries_alone": "a call with a query with a batch dimension, but key and value without one, "
    "raised no exception",
    "constructed_not_finite": "the module as constructed has NaN or infinite numbers in {names}",
    "constructed_otherwise": "the parameters of the module as constructed and of the reference differ in {names}",
    "constructed_without_memory": "the module as constructed has no memory for {names}",
    "converted_dtype": "after to({dtype}) {quantity} has dtype {came}, must be {wanted}",
    "converted_raised": "after to({dtype}) the call raised {raised}",
    "dropped_share": "{count} of {total} weights were dropped at dropout={rate:g}",
    "dropped_together": "weights at a distance of {distance} along the axis {axis} are dropped or kept together too "
    "often or too rarely: the fraction of such pairs is {off:.3f} away from the fraction under independent dropout",
    "flat_query": "a call with a query of one dimension raised no exception",
    "forward_derivative_raised": "torch.func.jvp raised {raised}",
    "four_dimensions": "a call with query, key and value of four dimensions raised no exception",
    "func_grad_raised": "torch.func.grad raised {raised}",
    "hint_without_causal_mask_unlike": "is_causal=True with an attn_mask that is not causal gave {without} with "
    "need_weights=False, but {requested} with need_weights=True",
    "key_without_effect": "key {key} of sequence {sequence} does not contribute to the output of query {query}",
    "keys_of_one_sequence": "a call with key and value of one sequence, but a query with a larger batch, "
    "raised no exception",
    "load_raised": "load_state_dict raised {raised}",
    "longer_value": "a call with a value one token longer than key raised no exception",
    "malformed_result": "a call with is_causal=True without attn_mask returned a malformed result in place of an "
    "exception",
    "mask_of_dtype": "a call with {name} of {dtype} raised no exception",
    "mask_of_shape": "a call with {name} of shape {shape} raised no exception",
    "memory_shared": "the output shares memory with an input",
    "negative_weight": "the smallest weight is {smallest:g}",
    "not_finite": "{quantities} contained NaN or infinity",
    "parameters_differ": "modules built for two dtypes have different parameters; only one of the modules has {names}",
    "query_of_dtype": "a call with query of {dtype}, but key and value of {own}, raised no exception",
    "random_state_advanced": "a call without dropout advanced the random number generator",
    "random_state_advanced_in_eval": "a call in eval mode advanced the random number generator",
    "seeds_alike": "two seeds gave the same output",
    "sequence_too_many": "a call with one sequence too many in key and value raised no exception",
    "settings_changed": "the implementation changed {changes}",
    "state_names_changed": "a call changed the names in the state dict",
    "tensor_too_wide": "a call with one feature too many in {name} raised no exception",
    "threads_raised": "beside a call in another thread, a call raised {raised}",
    "threads_returned": "beside a call in another thread, a call returned {returned}, must return {wanted}",
    "threads_wait": "two calls in two threads did not end within {seconds:g} s",
    "tokens_of_dtype": "a call with query, key and value of {dtype}, but parameters of {own}, raised no exception",
    "tokens_too_wide": "a call with one feature too many in query, key and value raised no exception",
    "training_mode_changed": "refused calls changed the training mode of the module or of a submodule",
    "valid_call_raised": "a valid call after refused calls raised {raised}",
    "value_of_dtype": "a call with value of {dtype}, but query and key of {own}, raised no exception",
    "value_sequence_too_many": "a call with one sequence too many in value raised no exception",
    "vmap_of_common_masks_raised": "vmap over examples with common masks raised {raised}",
    "vmap_of_masks_raised": "vmap over examples with masks of their own raised {raised}",
    "vmap_raised": "vmap over examples raised {raised}",
    "weights_are_zero": "{count} of {total} returned weights are zero",
    "weights_detached": "the weights have requires_grad=False",
    "weights_missing": "need_weights=True returned None as weights",
    "weights_show_no_dropout": "0 of {total} returned weights are zero, although two seeds give two outputs",
    "weights_tracked": "the weights have requires_grad=True",
    "weights_unrequested": "need_weights=False returned a tensor as weights",
    "wide_mask_unlike": "a float32 mask with half-precision tokens gave {without} with need_weights=False, but "
    "{requested} with need_weights=True",
    "wrong_mask_unlike": "a mask of a wrong shape gave {one} with one tensor as query, key and value, but {copies} "
    "with three copies of the tensor",
    **{f"{key}_raised": f"making {copy} raised {{raised}}" for key, copy in _COPIES.items()},
    **{
        f"{key}_raised_later": f"after a call in the mode {{mode}}, {made} raised {{raised}}"
        for key, made in _LATER.items()
    },
    **{f"{key}_raised": f"the call {way} raised {{raised}}" for key, way in _WAYS.items()},
    **{
        f"{key}_returned": f"the call {way} returned {{returned}}, must return {{wanted}}" for key, way in _WAYS.items()
    },
}
_ROWS: dict[Rows, str] = {
    "": "{what}",
    "masked": "{what} in fully masked rows",
    "masked_or_beside": "{what} in fully masked rows or beside them",
    "masked_or_other": "{what}, in fully masked rows or elsewhere",
}
_OUTPUT = "an output"


def name_compared(compared: Compared) -> str:
    """Return the quantity, the calls and the rows that were compared, as the subject of a sentence."""
    how = "" if compared.how is None else fill_phrase(COMPARISONS, compared.how)
    return say(_ROWS[compared.rows], what=f"{compared.quantity} {how}".strip())


def describe_violation(violation: Phrase, rows: Rows = "") -> str:
    """Return what violates a condition, without a full stop."""
    return say(_ROWS[rows], what=fill_phrase(VIOLATIONS, violation))


def fill_phrase(templates: dict[str, str], phrase: Phrase) -> str:
    """Return the text of a phrase; the key of a plug-in's phrase is its text."""
    template = templates.get(phrase.key)
    if template is None:
        return phrase.key
    values = {name: say(_OUTPUT) if value == AN_OUTPUT else value for name, value in phrase.values.items()}
    try:
        return say(template, **values)
    except (LookupError, ValueError, TypeError):  # the phrase of another version, or a run file that was changed
        return phrase.key
