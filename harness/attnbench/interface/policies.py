"""Policies: what an implementation chooses where the contract leaves a choice, and its deviations by design."""

from dataclasses import dataclass
from typing import Literal, get_args

from attnbench.cases import Dtype, Precision

__all__ = [
    "DEFAULT_CHOICES",
    "Alignment",
    "Choices",
    "EmptyBatches",
    "HiddenNan",
    "HiddenRowGradients",
    "HiddenRows",
    "Invariance",
    "PaddedQueries",
    "Policies",
    "ReturnedWeights",
    "Transforms",
]

# Output of attention in a fully masked row (a query from which every key is hidden): zero, NaN, or the mean of all
# values, as where a large negative number stands for minus infinity.
HiddenRows = Literal["zero", "nan", "mean"]
# Gradients that flow through a fully masked row: those of its declared value ("exact"); those of a softmax whose
# weights are equal ("softmax"), where the large negative number is added to the logits in place of overwriting them; or
# NaN ("nan").
HiddenRowGradients = Literal["exact", "softmax", "nan"]
# Whether returned attention weights are those that multiplied the values, or those before dropout.
ReturnedWeights = Literal["after_dropout", "before_dropout"]
# Whether a batch without sequences is computed, or refused by an exception.
EmptyBatches = Literal["computed", "refused"]
# Whether a call under a transform of torch.func, such as vmap, is computed, or may be refused by an exception.
Transforms = Literal["supported", "refused"]
# Alignment of the causal mask if queries and keys differ in number, and a call has the causal flag but no mask.
Alignment = Literal["top_left", "bottom_right"]
# Whether a NaN in a hidden key or value reaches the output. It reaches the output as 0 · NaN, unless the kernel never
# reads hidden keys and values.
HiddenNan = Literal["propagates", "blocked"]
# A padded query is a query whose token is hidden by key_padding_mask. The output row of a padded query is computed like
# all other rows ("answered"), or has unspecified values ("own").
PaddedQueries = Literal["answered", "own"]
# Changes of a call that leave what belongs to a sequence bitwise equal: its outputs, and the gradients of its tokens.
# They are changes of the other sequences of the batch, of the number of sequences, of the sequence's place among them,
# from no padding to padding, from padding at the end to padding at the start, from all queries to a part of them or to
# the last one, of the number of keys that are summed at a time, and of the number of threads.
Invariance = Literal[
    "neighbours", "batch_size", "position", "padding", "padding_side", "prefill", "decode", "key_split", "threads"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The policies on which the expected values of a case depend; ``Policies`` explains each policy."""

    padded_queries: PaddedQueries = "answered"
    hidden_rows: HiddenRows = "zero"
    hidden_row_gradients: HiddenRowGradients = "exact"
    detached_weights: bool = False


DEFAULT_CHOICES = Choices()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What an implementation chooses where the contract leaves a choice, and its deviations by design."""

    hidden_rows: HiddenRows = "zero"
    # Gradients that flow through fully masked rows. With "nan", a gradient may be NaN wherever a fully masked row
    # reaches it, and nowhere else.
    hidden_row_gradients: HiddenRowGradients = "exact"
    # With "before_dropout", the returned weights are compared with the weights without dropout.
    returned_weights: ReturnedWeights = "after_dropout"
    # Returned weights carry no gradient. The loss whose gradients are compared then leaves them out.
    detached_weights: bool = False
    # With "refused", a call without sequences must raise an exception, and its cases count as unsupported.
    empty_batches: EmptyBatches = "computed"
    # With "refused", a call under a transform of torch.func (vmap, grad, jvp) may raise an exception. What a call
    # returns under a transform must be right all the same.
    transforms: Transforms = "supported"
    # Alignment of the causal mask that the causal flag of the implementation stands for. If the contract requires the
    # other alignment, ``from_kernel`` passes a mask instead of the flag.
    causal: Alignment = "top_left"
    hidden_nan: HiddenNan = "propagates"
    # If query and key are the same tensor, a token that key_padding_mask hides is also a query. With "own", the output
    # row of this query is not compared, and the loss whose gradients are compared leaves out this row.
    padded_queries: PaddedQueries = "answered"
    # The implementation supports second derivatives.
    twice_differentiable: bool = False
    # Repeated calls return bitwise equal results.
    deterministic: bool = True
    # Devices on which the backward pass sums in no fixed order: gradients of repeated passes differ by rounding.
    unordered_gradients: tuple[str, ...] = ()
    # The implementation has no backward pass: cases in a mode with gradients are refused.
    forward_only: bool = False
    # A call without gradients can be captured in a CUDA graph and replayed: the call reads no tensor values
    # on the host.
    capturable: bool = False
    # ``prepare`` depends on the values of the inputs. The inputs then keep their values while calls are timed.
    fixed_values: bool = False
    # Precision of the implementation's arithmetic, if it is coarser than the case's dtype. The error budget is then
    # derived from this precision. None: the arithmetic has the precision of the case's dtype.
    computes_in: Precision | None = None
    # What leaves the bits of a sequence's results as they are; ``attnbench invariance`` measures it.
    invariant: tuple[Invariance, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if hidden_row_gradients is "softmax" although hidden_rows is not "mean"."""
        if self.hidden_row_gradients == "softmax" and self.hidden_rows != "mean":
            raise ValueError(
                f"hidden_row_gradients='softmax' needs hidden_rows='mean', got hidden_rows={self.hidden_rows!r}"
            )

    @property
    def choices(self) -> Choices:
        """The policies on which expected values depend."""
        return Choices(
            padded_queries=self.padded_queries,
            hidden_rows=self.hidden_rows,
            hidden_row_gradients=self.hidden_row_gradients,
            detached_weights=self.detached_weights,
        )

    def repeats_bitwise(self, quantity: str, device: str) -> bool:
        """Return whether a quantity, such as ``output`` or ``grad.query``, is bitwise equal in repeated passes."""
        return self.deterministic and not (quantity.startswith("grad.") and device in self.unordered_gradients)

    def precision(self, dtype: Dtype) -> Precision:
        """Return the precision of results in a dtype: the coarser of the dtype and ``computes_in``."""
        return max(self.computes_in or dtype, dtype, key=get_args(Precision).index)
