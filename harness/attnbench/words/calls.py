"""What is wrong with an answer, what a timed call changed, and why a check cannot judge an implementation."""

__all__ = ["CHANGES", "JUDGING", "MALFORMED"]

# Templates of ``MalformedAnswer``.
MALFORMED = {
    "not_a_tensor": "{name} must be a Tensor, got {got}",
    "not_a_tensor_or_none": "{name} must be a Tensor or None, got {got}",
    "not_a_tensor_result": "the call must return a Tensor, the {name}, got {got}",
    "not_a_tuple": "the call must return a tuple ({names}), got {got}",
    "not_a_tuple_of_length": "the call must return a tuple ({names}), got a tuple of {count}",
    "tuple_result": "the call must return a Tensor, the {name}, got a tuple of {count}",
    "other_parameters": "the module's parameters and the names that weights() returns differ in {names}; define "
    "weights(parameters) if the module names or lays out its parameters in another way",
    "no_text": "{method}(case) must return None, a text or a typed refusal, got {got}",
    "no_number": "{method}(case) must return float or None, got {got}",
    "wrong_shape": "{name} has shape {shape}, must be {expected}",
    "not_finite": "{name} is not finite",
    "no_weights": "the call must return (output, weights), got None for the weights",
}
# Templates of ``ProcessChanged``.
CHANGES = {
    "replaced": "{name} was replaced",
    "added": "{name} was added",
    "changed": "{name} changed from {before} to {now}",
    "changed_of_baseline": "{name} of a {kind} of the baseline changed",
    "setting_changed": "a call changed {name} from {before} to {now}",
    "wrote_input": "a timed call wrote into its input {name}; write into a copy",
    "lazy_tuple": "a timed call returned a tuple whose elements may be computed when they are read; return a plain "
    "tuple",
    "other_class": "a timed call returned a {kind}; return plain tensors",
    "no_memory": "a timed call returned a tensor without memory of its own; return plain tensors",
    "own_method": "a timed call returned a tensor with a method of its own; return plain tensors",
    "family_busy": "the process and those that it started kept {cores:.2f} cores busy while calls were timed, given "
    "{threads} threads",
    "calls_busy": "the calls of {name} kept {cores:.2f} cores busy, given {threads} threads",
    "threads_busy": "after the call returned, threads kept {cores:.1f} cores busy",
    "work_before": "before timed calls of {name} began, {outside:.0f} µs of work were done for each; {allowed:.0f} µs "
    "are allowed",
    "work_while_freed": "when the results of timed calls of {name} were freed, {outside:.0f} µs of work were done for "
    "each; {allowed:.0f} µs are allowed",
    "garbage_collection": "a timed call left the garbage collection on or off; restore what gc.isenabled() returned "
    "before",
    "work_after": "after timed calls of {name} had returned, {outside:.0f} µs of work were done for each; "
    "{allowed:.0f} µs are allowed",
}
# Templates of ``CannotJudge``.
JUDGING = {
    "copies_have_no_padded_queries": "padded_queries='own' demands that outputs of padded queries are not compared; "
    "this is impossible for copies, since key_padding_mask marks padded queries only if query and key are one tensor",
    "single_dtype": "the implementation supports no dtype but {dtype}",
    "no_lines": "the call runs no line of Python outside torch",
    "no_module": "the implementation's module is not a torch.nn.Module",
    "prepared_for_one_length": "prepare() does not return the module itself, but a function for one length only",
    "prepared_for_values": "the policies declare that prepare() uses the values of the inputs",
    "reference_not_transformed": "the reference raises under this transform, too: {raised}",
    "transform_not_implemented": "this transform is not implemented: {raised}",
    "transforms_refused": "the policies declare that calls under transforms of torch.func are refused",
    "fixed_length": "the length of this case cannot be changed",
    "nan_declared": "the policies declare NaN in fully masked rows or in their gradients",
    "not_twice_differentiable": "not declared twice differentiable",
    "no_constructor": "the implementation has no constructor that makes a module with parameters of its own",
    "no_initial_parameters": "the operator names no initial parameters",
    "reference_by_keyword": "the operator's reference takes its arguments by keyword only",
    "call_by_keyword": "the implementation's call takes arguments by keyword only",
    "weights_before_dropout": "the policies declare returned weights before dropout, which show no dropout mask",
    "no_weights_for_mask": "need_weights=True returned None as weights, so no weights show the dropout mask",
    "nothing_dropped": "{draws} calls dropped none of the returned weights, so there is no mask to judge",
}
