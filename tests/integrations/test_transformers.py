"""Tests of implementations as attention functions of transformers, against the library's own functions."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.integrations import transformers as integration
from attnbench.interface import Refusal
from attnbench.oracle.error_budget import FACTOR
from attnbench.plugins.registry import PluginError

needs_transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
# Implementations of four kinds: kernels with an additive mask, a kernel that torch selects, kernels that remove hidden
# keys, and modules.
NAMES = ["reshaped", "sdpa", "varlen", "varlen_packed", "online_softmax", "per_head", "torch_mha"]


# Two sequences of 7 tokens; the first two tokens of the second sequence are padding.
TOKENS = torch.arange(14).reshape(2, 7)
NOT_PADDING = torch.tensor([[True] * 7, [False] * 2 + [True] * 5])


def run_model(attention: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Compute hidden states and gradients of a small causal decoder that uses an attention function.

    The states are those of the real tokens, and of one token that follows five cached tokens. The gradients are those
    of every parameter. The model has grouped-query heads, and norms that compute in the model's dtype. Its parameters
    are drawn from one seed.
    """
    from transformers import Starcoder2Config, Starcoder2Model

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = Starcoder2Config(
        vocab_size=50,
        num_key_value_heads=2,
        use_bias=False,
        sliding_window=None,
        attn_implementation=attention,
        **sizes,
    )
    model = Starcoder2Model(settings).eval().to(dtype)
    states = model(input_ids=TOKENS, attention_mask=NOT_PADDING.long()).last_hidden_state
    # The cotangent is random. The sum of squares of the states would not do as a loss, because after the model's last
    # norm this sum does not depend on the attention.
    cotangent = torch.randn(states.shape, generator=torch.Generator().manual_seed(1)).to(dtype) * NOT_PADDING[..., None]
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(states, parameters, cotangent)
    first = model(input_ids=TOKENS[:1, :5], use_cache=True)
    then = model(input_ids=TOKENS[:1, 5:6], past_key_values=first.past_key_values).last_hidden_state
    found = {"states": states[NOT_PADDING], "next": then} | dict(zip(names, gradients, strict=True))
    return {name: value.detach() for name, value in found.items()}


def compute_error(found: dict[str, Tensor], oracle: dict[str, Tensor]) -> float:
    """Return the largest relative error of all quantities; an error is relative to the quantity's largest element."""
    assert found.keys() == oracle.keys()
    return max(
        float((value.double() - oracle[name]).abs().max() / oracle[name].abs().max()) for name, value in found.items()
    )


@pytest.fixture(scope="module")
def oracle_and_budget() -> tuple[dict[str, Tensor], float]:
    """The model's results in float64, and the error budget: 4 times the error of the library's own functions."""
    oracle = run_model("sdpa", torch.float64)
    return oracle, FACTOR * max(compute_error(run_model(own), oracle) for own in ("sdpa", "eager"))


@needs_transformers
@pytest.mark.parametrize("name", NAMES)
def test_a_model_gives_the_same_as_with_sdpa(name: str, oracle_and_budget: tuple[dict[str, Tensor], float]) -> None:
    """States and gradients of a causal decoder with grouped heads and left padding are within the error budget."""
    oracle, allowed = oracle_and_budget
    assert compute_error(run_model(integration.register(name)), oracle) <= allowed


@needs_transformers
def test_a_wrong_attention_exceeds_the_budget(
    tmp_path: Path, oracle_and_budget: tuple[dict[str, Tensor], float]
) -> None:
    """The budget allows for rounding only: a scale that is 0.1 % too large exceeds it more than tenfold."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import torch\ndef attention(q, k, v, *, mask, scale):\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=1.001 * scale)\n"
    )
    oracle, allowed = oracle_and_budget
    assert compute_error(run_model(integration.register(f"{wrong}:attention")), oracle) > 10 * allowed


def call(name: str, *, scaling: float | None = None, **others: Any) -> Tensor:
    """Register an implementation, and call it on random q, k and v, without a mask."""
    from transformers import AttentionInterface

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, generator=generator) for _ in range(3))
    function = AttentionInterface()[integration.register(name)]
    layer = nn.Module().eval()
    return function(layer, q, k, v, None, scaling=scaling, is_causal=False, **others)


@needs_transformers
@pytest.mark.parametrize("name", ["reshaped", "per_head"])
def test_the_scale_of_a_layer_is_used(name: str) -> None:
    """The argument ``scaling`` is used as the scale; ``output_attentions`` makes the call return attention weights."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, generator=generator) for _ in range(3))
    output, weights = call(name, scaling=0.2, output_attentions=True)
    expected = torch.softmax(0.2 * q @ k.transpose(2, 3), dim=-1)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(output, (expected @ v).transpose(1, 2))


@needs_transformers
@pytest.mark.parametrize("foreign", ["softcap", "position_bias", "s_aux"])
def test_arguments_without_meaning_for_multi_head_attention_are_refused(foreign: str) -> None:
    """``softcap``, ``position_bias`` and ``s_aux`` change the result, so a call with one of them raises Refusal."""
    with pytest.raises(Refusal, match=f"^{foreign} must be None for multi-head attention, got a "):
        call("sdpa", **{foreign: torch.ones(3)})


@needs_transformers
def test_a_kernel_without_masks_refuses_a_padded_batch() -> None:
    """A call that the implementation refuses raises Refusal with the implementation's reason."""
    from transformers import AttentionInterface

    function = AttentionInterface()[integration.register("flash_attn")]
    heads = torch.randn(2, 3, 5, 4)
    keep = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    with pytest.raises(Refusal, match="the kernel takes no mask"):
        function(nn.Module().eval(), heads, heads, heads, keep, is_causal=False)


# A kernel that works in any dtype, but declares that it supports float32 only. CASES has the ids of the cases for which
# this declaration was called.
DECLARED = """
from torch.nn.functional import scaled_dot_product_attention

from attnbench.kernel import from_kernel

CASES = []


def refusal(case):
    CASES.append(case.id)
    return None if case.dtype == "float32" else "float32 alone"


def attention(q, k, v, *, mask, is_causal, scale):
    return scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=scale)


KERNEL = from_kernel(attention, unsupported=refusal)
"""


@needs_transformers
def test_calls_that_an_implementation_declares_unsupported_are_refused(tmp_path: Path) -> None:
    """A bfloat16 model raises Refusal if an implementation declares float32 only.

    The declaration is read once for each kind of call.
    """
    from transformers import AttentionInterface

    file = tmp_path / "declared.py"
    file.write_text(DECLARED)
    public = integration.register(f"{file}:KERNEL")
    run_model(public)
    cases = AttentionInterface()[public].implementation._unsupported.__globals__["CASES"]
    sizes = ("B2.L7.S7.E32.H4", "B1.L5.S5.E32.H4", "B1.L1.S6.E32.H4")
    flags = ("batch_first/mask=bool3d", "batch_first+is_causal/mask=causal", "batch_first/mask=none")
    assert cases == [
        f"multihead/{size}/{flag}/regime=plain/seed=0/float32/cpu/eval" for size, flag in zip(sizes, flags, strict=True)
    ]
    with pytest.raises(
        Refusal, match=r"declared\.py:KERNEL' refuses a layer's call: float32 alone \(multi.*/eval\); reg"
    ):
        run_model(public, torch.bfloat16)


@needs_transformers
def test_a_kernel_of_another_device_refuses_a_cpu() -> None:
    """A kernel for CUDA raises Refusal on a CPU before it is called."""
    with pytest.raises(Refusal, match=r"^'flash_attn' refuses a layer's call: needs a CUDA device"):
        call("flash_attn")


@needs_transformers
@pytest.mark.parametrize("training", [False, True])
def test_an_additive_mask_is_refused_only_where_its_gradient_is_needed(training: bool) -> None:
    """The flash kernel on a CPU computes no gradient of its mask, and refuses a mask that requires a gradient."""
    from transformers import AttentionInterface

    heads = torch.randn(2, 3, 5, 4, requires_grad=True)
    mask = torch.randn(2, 1, 5, 5)
    layer = nn.Module().train(training)
    function, oracle = (AttentionInterface()[integration.register(name)] for name in ("sdpa_flash", "reshaped"))
    found, expected = (one(layer, heads, heads, heads, mask, is_causal=False)[0] for one in (function, oracle))
    torch.testing.assert_close(found, expected)
    with pytest.raises(Refusal, match="computes no gradient of mask"):
        function(layer, heads, heads, heads, mask.requires_grad_(), is_causal=False)


@needs_transformers
@pytest.mark.parametrize("name", [None, 3])
def test_a_name_is_a_string(name: Any) -> None:
    """For a name that is not a string, the error gives the value and examples of names."""
    with pytest.raises(TypeError, match=rf"^name must be a string such as 'varlen' or .*, got {name}$"):
        integration.register(name)


@needs_transformers
def test_no_function_of_the_library_is_replaced() -> None:
    """Registered names begin with ``attnbench_``, and their punctuation is replaced by underscores."""
    from transformers import AttentionInterface

    before = AttentionInterface()["sdpa"]
    assert integration.register("varlen") == "attnbench_varlen"
    assert integration.register("attnzoo.varlen:VARLEN") == "attnbench_attnzoo_varlen_VARLEN"
    # If a name contains "flash" or "sdpa" in lower case, the library looks for a kernel to download, or for the model's
    # support.
    assert integration.register("sdpa_flash") == "attnbench_SDPA_FLASH"
    assert AttentionInterface()["sdpa"] is before
    with pytest.raises(
        ValueError, match=r"^'attnzoo_varlen:VARLEN' and 'attnzoo.varlen:VARLEN' would both be registered as"
    ):
        integration.register("attnzoo_varlen:VARLEN")
    with pytest.raises(PluginError, match="unknown implementation 'spda'; did you mean 'sdpa'"):
        integration.register("spda")


@needs_transformers
def test_a_file_may_be_named_in_two_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``./mine.py`` and ``mine.py`` are registered by one name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def attention(q, k, v, *, mask, scale): return v\n")
    assert integration.register("./mine.py:attention") == integration.register("mine.py:attention")


@needs_transformers
def test_no_random_number_is_drawn() -> None:
    """A call draws no random number, so that the model's dropout does not depend on the attention function."""
    state = torch.get_rng_state()
    call("reshaped")
    call("torch_mha")
    assert torch.equal(torch.get_rng_state(), state)


def test_without_transformers_the_error_is_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without transformers, the error is one line with the install command."""

    def absent() -> SimpleNamespace:
        raise ImportError("no module")

    monkeypatch.setattr(integration, "_import_interfaces", absent)
    with pytest.raises(RuntimeError, match=r"pip install 'transformers>=\S+'$"):
        integration.register("sdpa")
