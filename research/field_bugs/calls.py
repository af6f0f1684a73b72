"""Kind 3: faults of sequences of calls. A first call is right; a later one, of the same or another module, is wrong."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.mutants.multihead.formula import Arguments, Formula, Result
from research.field_bugs.faults import FaultList, is_boolean, is_watched
from research.field_bugs.scripts import differ, evaluate, fails, make_pair, make_tokens, train

__all__ = ["fault"]

fault = FaultList()
TOKENS = make_tokens(2, 5, 16)
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)


def validate(module: Any) -> None:
    """Make a call in eval() without gradients."""
    evaluate(module.eval(), TOKENS)


def validate_and_train(module: Any) -> None:
    """Make a call in eval() without gradients, and return to train()."""
    validate(module)
    module.train()


def infer(module: Any) -> None:
    """Make a call in inference mode."""
    with torch.inference_mode():
        module(TOKENS, TOKENS, TOKENS)


def after(first: Callable[[Any], object], then: Callable[[Any, Any], float]) -> Callable[[Any], float]:
    """Return a function that makes a call with a new module, and measures what ``then`` does with it."""

    def measure(module: Any) -> float:
        wrong, right = make_pair(module)
        first(wrong)
        return then(wrong, right)

    return measure


def call(wrong: Any, right: Any) -> float:
    """Return the difference in a call of the tokens."""
    return differ(wrong(TOKENS, TOKENS, TOKENS), right(TOKENS, TOKENS, TOKENS))


def copy_deeply(wrong: Any, _: Any) -> float:
    """Return whether the module cannot be copied."""
    return fails(lambda: copy.deepcopy(wrong))


def train_after(wrong: Any, right: Any) -> float:
    """Return the difference of the gradients; 1 if the training call raises."""
    return fails(lambda: train(wrong, TOKENS)) or differ(train(wrong, TOKENS), train(right, TOKENS))


def count_missing(wrong: Any, right: Any) -> float:
    """Return the number of parameters that the state dict lacks, or the difference in a call."""
    return float(len(right.state_dict().keys() - wrong.state_dict().keys())) or call(wrong, right)


def load_saved(wrong: Any, right: Any) -> float:
    """Return the difference of a new module that has loaded the state dict."""
    fresh, _ = make_pair(type(wrong), seed=9)
    fresh.load_state_dict(wrong.state_dict())
    return call(fresh, right)


def unpickle(wrong: Any, right: Any) -> float:
    """Return the difference of the pickled and unpickled module."""
    return call(pickle.loads(pickle.dumps(wrong)), right)  # noqa: S301  # our own bytes


def convert(wrong: Any, _: Any) -> float:
    """Return whether a call fails after the conversion to bfloat16."""
    x = TOKENS.bfloat16()
    return fails(lambda: wrong.bfloat16()(x, x, x))


def lose_graph(wrong: Any, _: Any) -> float:
    """Return whether a call in eval() with gradients has no graph."""
    return float(not wrong.eval()(TOKENS, TOKENS, TOKENS)[0].requires_grad)


def nothing(_: Any) -> None:
    """Make no call."""


@fault(
    "bug", 3,
    source="https://github.com/Baijiong-Lin/LoRA-Torch/issues/7",
    condition="a call in eval() without gradients, then state_dict(), parameters(), half() or to()",
    under=after(validate, count_missing),
    beside=[after(nothing, count_missing)],
)  # fmt: skip
class WeightsLeaveTheStateDict(Formula):
    """An adapter is merged by setattr with a tensor, which registers nothing; train() restores the parameters."""

    def _owners(self) -> tuple[tuple[nn.Module, str], ...]:
        return (self, "in_proj_weight"), (self.out_proj, "weight")

    def read_arguments(self, given: Arguments) -> Arguments:
        merges = not (self.training or torch.is_grad_enabled() or torch.compiler.is_compiling())
        kept = self.__dict__.setdefault("_kept", {})
        for owner, name in self._owners() if merges and not kept else ():
            parameter = dict(owner.named_parameters(recurse=False)).get(name)
            if parameter is not None:
                kept[name] = parameter
                delattr(owner, name)
                owner.__dict__[name] = parameter.detach()
        return given

    def train(self, mode: bool = True) -> "WeightsLeaveTheStateDict":  # noqa: FBT001, FBT002  # torch's signature
        kept = self.__dict__.get("_kept", {}) if mode else {}
        for owner, name in self._owners() if kept else ():
            if name in kept:
                del owner.__dict__[name]
                owner.register_parameter(name, kept.pop(name))
        return super().train(mode)


class MaskInfo:
    """A mask that is computed at its first use."""

    def __init__(self) -> None:
        self._mask: Tensor | None = None

    def get(self, mask: Tensor) -> Tensor:
        """Return the mask of the first call."""
        if self._mask is None:
            self._mask = mask.clone()
        return self._mask


def pad_twice(module: Any, *, first: int, second: int) -> float:
    """Return the difference in the second of two calls, whose padding leaves other numbers of keys visible."""
    wrong, right = make_pair(module)
    found = []
    for visible in (first, second):
        padding = torch.arange(5) >= torch.tensor([[5], [visible]])
        named = {"attn_mask": CAUSAL, "key_padding_mask": padding, "is_causal": True}
        found.append(differ(wrong(TOKENS, TOKENS, TOKENS, **named), right(TOKENS, TOKENS, TOKENS, **named)))
    return found[1]


@fault(
    "bug", 3,
    source="https://github.com/open-lm-engine/lm-engine/pull/491",
    condition="two calls in one process with is_causal, attn_mask and padding, the second with other padding",
    under=lambda module: pad_twice(module, first=4, second=2),
    beside=[lambda module: pad_twice(module, first=4, second=4)],
)  # fmt: skip
class MaskInADefaultArgument(Formula):
    """The combined causal mask of the first call is kept in a default argument, which all modules share."""

    def under_masks(
        self, query: Tensor, key: Tensor, value: Tensor, info: MaskInfo = MaskInfo(), **named: Any  # noqa: B008  # the bug
    ) -> Result:  # fmt: skip
        mask, padding = named["attn_mask"], named["key_padding_mask"]
        if named["is_causal"] and is_boolean(padding) and is_boolean(mask) and mask.dim() == 2:
            hidden = (mask | padding[:, None]).repeat_interleave(self.num_heads, 0)
            named |= {"attn_mask": info.get(hidden), "key_padding_mask": None, "is_causal": False}
        return super().under_masks(query, key, value, **named)


@fault(
    "bug", 3,
    source="https://github.com/sktime/sktime/issues/10928",
    condition="a call with gradients, then copy.deepcopy or pickle",
    under=after(lambda module: train(module, TOKENS), copy_deeply),
    beside=[after(nothing, copy_deeply), after(validate, copy_deeply)],
)  # fmt: skip
class CopyAfterTrainingCall(Formula):
    """The module keeps its attention weights with their graph, and only leaves can be copied deeply."""

    last_weights: Tensor | None = None

    def apply_dropout(self, shares: Tensor) -> Tensor:
        weights = super().apply_dropout(shares)
        if not torch.compiler.is_compiling():
            self.last_weights = weights
        return weights


@fault(
    "bug", 3,
    source="https://github.com/Dao-AILab/flash-attention/pull/299",
    condition="a call in inference mode, then a call with gradients, in the same dtype",
    under=after(infer, train_after),
    beside=[after(nothing, train_after), after(validate, train_after)],
)  # fmt: skip
class TrainingAfterInferenceMode(Formula):
    """A table that a call in inference mode has made is used in training, where autograd cannot save it."""

    _scale: Tensor | None = None

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().score(q, k)
        if self._scale is None or self._scale.dtype != q.dtype or self._scale.device != q.device:
            self._scale = torch.full((self.head_dim,), math.sqrt(self.head_dim), dtype=q.dtype, device=q.device)
        return (q / self._scale) @ k.mT


class _Remembers(Formula):
    """Base of modules that remember a call in eval() without gradients until train() is called."""

    _evaluated = False

    def read_arguments(self, given: Arguments) -> Arguments:
        self._evaluated |= not (self.training or torch.is_grad_enabled() or torch.compiler.is_compiling())
        return given

    def train(self, mode: bool = True) -> "_Remembers":  # noqa: FBT001, FBT002  # torch's signature
        self._evaluated = self._evaluated and not mode
        return super().train(mode)


@fault(
    "mutant", 3,
    source="https://github.com/Lightning-AI/litgpt/issues/296",
    condition="a call in eval() without gradients, then state_dict(), loaded into another module",
    under=after(validate, load_saved),
    beside=[after(nothing, load_saved), after(validate, call)],
)  # fmt: skip
class StateDictAfterEvaluation(_Remembers):
    """eval() merges the scale into the weight of the queries, and the state dict holds the merged weight."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: FBT001
        super()._save_to_state_dict(destination, prefix, keep_vars)
        name = f"{prefix}in_proj_weight"
        if self._evaluated and name in destination:
            destination[name] = destination[name].clone()
            destination[name][: self.embed_dim] /= math.sqrt(self.head_dim)


SCALES: dict[int, Tensor] = {}


def use_two_dtypes(module: Any, *, first: torch.dtype) -> float:
    """Return the difference in a call in float32 after a call of another module in another dtype."""
    SCALES.clear()
    early, _ = make_pair(module, dtype=first, width=10)
    x = make_tokens(2, 5, 10)
    early(x.to(first), x.to(first), x.to(first))
    wrong, right = make_pair(module, width=10)
    return differ(wrong(x, x, x), right(x, x, x))


@fault(
    "mutant", 3,
    source="https://github.com/huggingface/transformers/issues/25681",
    condition="a call in half precision, then a module in float32 with the same head_dim, in one process",
    under=lambda module: use_two_dtypes(module, first=torch.bfloat16),
    beside=[lambda module: use_two_dtypes(module, first=torch.float32)],
)  # fmt: skip
class ScaleOfTheFirstDtype(Formula):
    """The scale is a table in the dtype of the first call of the process; other dtypes use it converted."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().score(q, k)
        if self.head_dim not in SCALES:
            with torch.inference_mode(mode=False):
                SCALES[self.head_dim] = torch.tensor(math.sqrt(self.head_dim), dtype=q.dtype)
        return (q / SCALES[self.head_dim].to(q.dtype)) @ k.mT


MASKS: dict[int, Tensor] = {}


def change_keys(module: Any, *, first: int) -> float:
    """Return the difference in a causal call with 7 keys after one with another number of keys."""
    MASKS.clear()
    wrong, right = make_pair(module)
    query, found = make_tokens(2, 9, 16), 0.0
    for keys in (first, 7):
        x = make_tokens(2, keys, 16)
        mask = torch.ones(9, keys, dtype=torch.bool).triu(1)
        named = {"attn_mask": mask, "is_causal": True, "need_weights": False}
        found = differ(wrong(query, x, x, **named), right(query, x, x, **named))
    return found


@fault(
    "mutant", 3,
    source="https://github.com/NVIDIA/Model-Optimizer/pull/1343",
    condition="two causal calls with the hint in one process, equal numbers of queries, more keys in the second",
    under=lambda module: change_keys(module, first=5),
    beside=[lambda module: change_keys(module, first=7)],
)  # fmt: skip
class MaskCachedByQueries(Formula):
    """The causal mask of the hint is cached for all modules by the number of queries; more keys are cut."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named["attn_mask"]
        cached = named["is_causal"] and is_boolean(mask) and mask.dim() == 2 and named["key_padding_mask"] is None
        if cached and not torch.compiler.is_compiling():
            mask = MASKS.setdefault(query.shape[1], mask.clone())
            key, value = key[:, : mask.shape[1]], value[:, : mask.shape[1]]
            named["attn_mask"] = mask[:, : key.shape[1]]
        return super().under_masks(query, key, value, **named)


def retrain(module: Any, *, copies: bool) -> float:
    """Return the difference after a call, then other parameters in the module or in its copy, then the call again."""
    wrong, _ = make_pair(module)
    validate(wrong)
    made = copy.deepcopy(wrong) if copies else wrong
    _, other = make_pair(module, seed=9)
    made.load_state_dict(other.state_dict())
    with torch.no_grad():
        return call(made, other)


class _CopiedByAttributes(Formula):
    """Base of modules whose copy has copies of all attributes, as with the default methods of nn.Module."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        made.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return made


@fault(
    "mutant", 3,
    source="https://github.com/open-edge-platform/physical-ai-studio/issues/239",
    inferred=True,
    condition="a call without gradients, deepcopy, other weights in the copy, the call with the same tokens",
    under=lambda module: retrain(module, copies=True),
    beside=[lambda module: retrain(module, copies=False)],
)  # fmt: skip
class CopySharesItsKeys(_CopiedByAttributes):
    """A deep copy shares the cache of projected keys with the original, and uses its old keys when trained further."""

    def __init__(self, reference: Any) -> None:
        super().__init__(reference)
        self._keys: dict[Any, Any] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        memo[id(self._keys)] = self._keys
        return super().__deepcopy__(memo)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled() or is_watched() or key.is_inference():
            return q, k, v
        weight = self.k_proj_weight if self.in_proj_weight is None else self.in_proj_weight
        # Right for one module: a change of the tokens or of the parameters gives other sums.
        place = (key.data_ptr(), key.shape, key.stride(), float(key.double().sum()), float(key.double().pow(2).sum()))
        sums = [float(x.detach().double().pow(2).sum()) for x in (weight, self.in_proj_bias) if x is not None]
        known = self._keys.get(place)
        if known is not None and (known[0] != id(self) or known[1] == sums) and known[2].dtype == k.dtype:
            return q, known[2], v
        self._keys[place] = (id(self), sums, k)
        return q, k, v


@fault(
    "mutant", 3,
    source="https://github.com/PriorLabs/TabPFN/issues/977",
    inferred=True,
    condition="a call, then pickle and unpickle, then a call",
    under=after(validate, unpickle),
    beside=[after(nothing, unpickle), after(validate, call)],
)  # fmt: skip
class PickleAfterACall(_CopiedByAttributes):
    """Pickling drops the tables that a call has made, and the unpickled module believes to have them: no scale."""

    _ready, _scale = False, 1.0

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if not self._ready:
            self._ready, self._scale = True, math.sqrt(self.head_dim)
        return (q / self._scale) @ k.mT

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_scale"}


BUFFERS: dict[Any, Tensor] = {}


class Accumulating(torch.autograd.Function):
    """The identity; the gradient is added to a buffer that only the forward pass clears."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """Return a view of the tensor, and clear the buffer."""
        ctx.place = (tensor.shape, tensor.dtype, tensor.device)
        BUFFERS[ctx.place] = torch.zeros_like(tensor)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        with torch.no_grad():
            return BUFFERS[ctx.place].add_(gradient).clone()


def go_back_twice(module: Any, *, together: bool) -> float:
    """Return the difference of the second of two backward passes, after both forward passes or after its own."""
    found = []
    for each in make_pair(module):
        x, y = (make_tokens(2, 5, 16, seed=seed, grad=True) for seed in (1, 4))
        if together:
            for output in [each(z, z, z)[0] for z in (x, y)]:
                output.pow(2).sum().backward()
            found.append(y.grad)
        else:
            found.append([train(each, z) for z in (x, y)][1])
    return differ(*found)


@fault(
    "mutant", 3,
    source="https://github.com/tile-ai/tilelang/issues/547",
    inferred=True,
    condition="two forward passes of one shape and then their backward passes, or one graph gone through twice",
    under=lambda module: go_back_twice(module, together=True),
    beside=[lambda module: go_back_twice(module, together=False)],
)  # fmt: skip
class GradientBufferOfTheForwardPass(Formula):
    """The buffer of dQ is cleared in the forward pass, so a second backward pass adds to the first."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(Accumulating.apply(q) if torch.is_grad_enabled() and not is_watched() else q, k)  # type: ignore[no-untyped-call]


@fault(
    "mutant", 3,
    source="https://github.com/huggingface/transformers/issues/43923",
    inferred=True,
    condition="a call in eval() without gradients, then one in eval() with gradients",
    under=after(validate, lose_graph),
    beside=[after(nothing, lose_graph), after(validate, lambda wrong, _: lose_graph(wrong.train(), _))],
)  # fmt: skip
class GraphLostAfterEvaluation(_Remembers):
    """Once a call in eval() had no gradients, later calls in eval() have none, until train() is called."""

    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        return (output.detach() if self._evaluated and not self.training else output), weights


@fault(
    "mutant", 3,
    source="https://github.com/Baijiong-Lin/LoRA-Torch/issues/7",
    inferred=True,
    condition="a call, then half(), bfloat16(), double() or to(dtype), then a call",
    under=after(validate, convert),
    beside=[after(nothing, convert), after(validate_and_train, convert)],
)  # fmt: skip
class HalfAfterACall(Formula):
    """A call leaves a copy of the output weight, which conversions do not convert; train() removes it."""

    _packed: torch.dtype | None = None

    def merge(self, heads: Tensor) -> Tensor:
        dtype = self.out_proj.weight.dtype
        if not is_watched():
            self._packed = self._packed or dtype
            if self._packed != dtype:
                raise RuntimeError(f"expected mat1 and mat2 to have the same dtype, but got {self._packed} and {dtype}")
        return super().merge(heads)

    def train(self, mode: bool = True) -> "HalfAfterACall":  # noqa: FBT001, FBT002  # torch's signature
        self._packed = None if mode else self._packed
        return super().train(mode)
