"""The inputs of the other tools' checks: their published problems, with batches and lengths that a CPU can compute."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case, Dtype, Mode
from attnbench.interface import Inputs
from attnbench.operators.attention_core.problem import AttentionCoreProblem
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.plugins.registry import load_operator

__all__ = [
    "Setting",
    "all_settings",
    "flash_settings",
    "flashinfer_settings",
    "gradcheck_settings",
    "kernelbench_settings",
    "usual",
]

# Number of correctness trials of KernelBench, as its script for a single sample sets it.
# Source: https://github.com/ScalingIntelligence/KernelBench/blob/02e3e913/scripts/generate_and_eval_single_sample.py
KERNELBENCH_TRIALS = 5
# Number of trials of flashinfer-bench. Source: ``num_trials`` of BenchmarkConfig,
# https://github.com/flashinfer-ai/flashinfer-bench/blob/7e6c575f/flashinfer_bench/bench/config.py
FLASHINFER_TRIALS = 3
# Largest number of keys by which a padded sequence is shorter than the longest: ``generate_random_padding_mask`` of
# https://github.com/Dao-AILab/flash-attention/blob/765fbd92/tests/test_flash_attn.py in its mode "random". The other
# rules publish no padding; they get the same.
PADDED_KEYS = 20
# Softcap of flash-attention's tests, and the factor of the queries that makes it matter: a fourth of the softcap.
# Source: https://github.com/Dao-AILab/flash-attention/blob/e7f8a55c/hopper/test_flash_attn.py
SOFTCAP = 50.0
QUERY_FACTOR = SOFTCAP / 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A case with the values that a tool draws: parameters as the module's constructor makes them, random tokens.

    One module is called ``trials`` times, each time with other tokens.
    """

    case: Case
    trials: int = 1
    # Tokens are uniform between 0 and 1 if set, else standard normal.
    uniform: bool = False

    def draw(self, trial: int) -> Inputs:
        """Return the inputs of one trial; the parameters are those of every trial."""
        drawn = _draw_once(self.case)
        generator = torch.Generator().manual_seed(trial)
        draw = torch.rand if self.uniform else torch.randn
        factor = QUERY_FACTOR if getattr(self.case.problem, "softcap", 0) else 1.0
        made: dict[int, Tensor] = {}
        tensors: dict[str, Tensor] = {}
        for name, tensor in drawn.tensors.items():
            if name in ("query", "key", "value"):
                if id(tensor) not in made:  # one tensor may be several arguments
                    made[id(tensor)] = draw(tensor.shape, generator=generator).to(tensor.dtype)
                tensors[name] = made[id(tensor)] * factor if name == "query" and factor != 1 else made[id(tensor)]
            else:
                tensors[name] = _redraw_padding(name, tensor.clone(), self.case.problem.keys, generator)
        parameters = {name: parameter.clone() for name, parameter in drawn.parameters.items()}
        return replace(drawn, parameters=parameters, tensors=tensors)


@cache
def _draw_once(case: Case) -> Inputs:
    """Return the case's masks, options and cotangents, and the parameters that the module's constructor makes."""
    operator = load_operator(case.operator)
    drawn = operator.inputs(case)
    return replace(drawn, parameters=dict(operator.initial_parameters(case, drawn) or {}))


def _redraw_padding(name: str, tensor: Tensor, keys: int, generator: torch.Generator) -> Tensor:
    """Return key_lengths or a key_padding_mask with lengths as flash-attention's tests draw them; masks are kept."""
    if name not in ("key_lengths", "key_padding_mask"):
        return tensor
    lengths = torch.randint(max(1, keys - PADDED_KEYS), keys + 1, tensor.shape[:1], generator=generator)
    return lengths.to(tensor.dtype) if name == "key_lengths" else torch.arange(keys) >= lengths[:, None]


def _set(problem: Any, dtype: Dtype = "float32", mode: Mode = "train", trials: int = 1, **options: Any) -> Setting:
    operator = "multihead" if isinstance(problem, MultiheadProblem) else "attention_core"
    return Setting(case=Case(operator=operator, problem=problem, dtype=dtype, mode=mode), trials=trials, **options)


def _choose(operator: str, **by_operator: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    if operator not in by_operator:
        raise ValueError(f"operator must be one of {', '.join(by_operator)}, got {operator!r}")
    return by_operator[operator]()


def kernelbench_settings(operator: str, *, uniform: bool = True) -> list[Setting]:
    """Return the attention problems of KernelBench in float32, without gradients, in train() mode, as it calls them.

    Multi-head: level 3, 31_VisionAttention (E 128, 4 heads, 16,384 tokens: 128 here) and 43_MinGPTCausalAttention
    (E 768, 8 heads, batch 128 and 512 tokens: 2 and 64 here). Split heads: level 1, 97_ScaledDotProductAttention
    (batch 32, 32 heads, 512 tokens, width 1,024: 2, 2 and 128 here), and the causal problem. Its inputs are uniform.
    Source: https://github.com/ScalingIntelligence/KernelBench/tree/main/KernelBench
    """
    problems = _choose(
        operator,
        multihead=lambda: (
            MultiheadProblem(
                batch=2, queries=128, keys=128, embed_dim=128, num_heads=4, bias=True, self_attention=True,
                need_weights=True, average_attn_weights=True,
            ),
            MultiheadProblem(
                batch=2, queries=64, keys=64, embed_dim=768, num_heads=8, bias=True, batch_first=True,
                self_attention=True, mask="causal",
            ),
        ),
        attention_core=lambda: (
            AttentionCoreProblem(sequences=2, num_heads=2, queries=128, keys=128, head_dim=1024),
            AttentionCoreProblem(sequences=2, num_heads=8, queries=64, keys=64, head_dim=96, mask="causal_tl"),
        ),
    )  # fmt: skip
    return [_set(one, mode="sampling", trials=KERNELBENCH_TRIALS, uniform=uniform) for one in problems]


def flashinfer_settings(operator: str) -> list[Setting]:
    """Return the attention problems of flashinfer-bench in bfloat16, without gradients.

    Split heads: gqa_ragged_prefill_causal and gqa_paged_decode, both h32_kv8_d128 (8 and 2 heads of the same width
    here), short. It has no problem with projections; multi-head attention gets the same masks with 4 heads of 128.
    Source: https://huggingface.co/datasets/flashinfer-ai/flashinfer-trace
    """
    problems = _choose(
        operator,
        multihead=lambda: (
            MultiheadProblem(
                batch=2, queries=64, keys=64, embed_dim=512, num_heads=4, bias=True, batch_first=True,
                self_attention=True, mask="causal+pad",
            ),
            MultiheadProblem(
                batch=2, queries=1, keys=128, embed_dim=512, num_heads=4, bias=True, batch_first=True, mask="pad"
            ),
        ),
        attention_core=lambda: (
            AttentionCoreProblem(
                sequences=2, num_heads=8, kv_heads=2, queries=64, keys=96, head_dim=128, mask="causal_br+ragged"
            ),
            AttentionCoreProblem(
                sequences=2, num_heads=8, kv_heads=2, queries=1, keys=128, head_dim=128, mask="ragged"
            ),
        ),
    )  # fmt: skip
    return [_set(one, "bfloat16", "inference", FLASHINFER_TRIALS) for one in problems]


def usual(operator: str, *, dtypes: Sequence[Dtype]) -> list[Setting]:
    """Return a small test as people write it: no mask, causal, padded; forward and backward, each dtype.

    torch.testing publishes no problems, so these are ours. Attention weights are returned beside the padding.
    """
    problems = _choose(
        operator,
        multihead=lambda: _mask_multihead(
            MultiheadProblem(batch=2, queries=48, keys=48, embed_dim=64, num_heads=4, bias=True, batch_first=True)
        ),
        attention_core=lambda: _mask_core(
            AttentionCoreProblem(sequences=2, num_heads=4, queries=32, keys=48, head_dim=16)
        ),
    )
    return [_set(problem, dtype) for dtype in dtypes for problem in problems]


def gradcheck_settings(operator: str) -> list[Setting]:
    """Return tiny problems in float64, because gradcheck calls the module twice for each element of each input."""
    problems = _choose(
        operator,
        multihead=lambda: _mask_multihead(
            MultiheadProblem(batch=2, queries=2, keys=3, embed_dim=4, num_heads=2, bias=True, batch_first=True)
        ),
        attention_core=lambda: _mask_core(
            AttentionCoreProblem(sequences=2, num_heads=2, queries=2, keys=3, head_dim=2)
        ),
    )
    return [_set(problem, "float64") for problem in problems]


def flash_settings(operator: str) -> list[Setting]:
    """Return problems of flash-attention's tests in float16 and bfloat16, with gradients of query, key and value.

    The first pair of lengths, 113 and 203, the smallest width, 32, and 6 heads; batch 2 for 4. Split heads: also
    shared key heads (2), windows, ALiBi and softcap, as in test_flash_attn_output; padding as in the varlen tests.
    Dropout is left out: its mask cannot be read from an implementation.
    Source: https://github.com/Dao-AILab/flash-attention/blob/main/tests/test_flash_attn.py
    """
    core = AttentionCoreProblem(sequences=2, num_heads=6, queries=113, keys=203, head_dim=32)
    problems = _choose(
        operator,
        multihead=lambda: _mask_multihead(
            MultiheadProblem(batch=2, queries=113, keys=203, embed_dim=192, num_heads=6, bias=True, batch_first=True),
            need_weights=False,
        ),
        attention_core=lambda: (
            *_mask_core(core), replace(core, kv_heads=2, mask="causal_br"), replace(core, mask="window", window=40),
            replace(core, mask="alibi"), replace(core, softcap=SOFTCAP),
        ),
    )  # fmt: skip
    return [_set(problem, dtype, "frozen") for dtype in ("float16", "bfloat16") for problem in problems]


def all_settings(operator: str) -> list[Setting]:
    """Return the settings of all checks, KernelBench's with normal inputs: those of one call come first."""
    return [
        *usual(operator, dtypes=("float32", "bfloat16", "float16")), *gradcheck_settings(operator),
        *flash_settings(operator), *flashinfer_settings(operator), *kernelbench_settings(operator, uniform=False),
    ]  # fmt: skip


def _mask_multihead(problem: MultiheadProblem, *, need_weights: bool = True) -> tuple[MultiheadProblem, ...]:
    """Return the problem without a mask, with a causal mask and with padding."""
    padded = replace(problem, mask="pad", need_weights=need_weights, average_attn_weights=need_weights)
    return problem, replace(problem, mask="causal"), padded


def _mask_core(problem: AttentionCoreProblem) -> tuple[AttentionCoreProblem, ...]:
    """Return the problem without a mask, with a causal mask aligned at the last query, and with padding."""
    return problem, replace(problem, mask="causal_br"), replace(problem, mask="ragged")
