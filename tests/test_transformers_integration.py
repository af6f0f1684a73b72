"""Implementations as attention functions of transformers: the same states, masks and scales as the library's own."""

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.integrations import transformers as integration
from attnbench.interface import Refusal
from attnbench.registry import PluginError

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="pip install 'attnbench[transformers]'"
)
# One of each kind: a kernel with a mask of numbers, one that torch chooses, one that removes keys, a module of its own.
NAMES = ["reshaped", "sdpa", "varlen", "varlen_packed", "online_softmax", "per_head", "torch_mha"]


def model(attention: str, **config: Any) -> nn.Module:
    """A small decoder with grouped heads, its weights drawn from one seed."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = LlamaConfig(vocab_size=50, num_key_value_heads=2, attn_implementation=attention, **sizes, **config)
    return LlamaModel(settings).eval()


@needs_transformers
@pytest.mark.parametrize("name", NAMES)
def test_a_model_gives_what_it_gives_with_sdpa(name: str) -> None:
    """A causal decoder with grouped heads and padding in front, forward and backward, and one token after others."""
    tokens = torch.arange(14).reshape(2, 7)
    seen = torch.ones(2, 7, dtype=torch.long)
    seen[1, :2] = 0
    found = {}
    for attention in ("sdpa", integration.register(name)):
        one = model(attention)
        states = one(input_ids=tokens, attention_mask=seen).last_hidden_state
        loss = (states[0] ** 2).sum() + (states[1, 2:] ** 2).sum()
        gradients = torch.autograd.grad(loss, list(one.parameters()))
        first = one(input_ids=tokens[:1, :5], use_cache=True)
        then = one(input_ids=tokens[:1, 5:6], past_key_values=first.past_key_values).last_hidden_state
        found[attention] = [states[0], states[1, 2:], then, *gradients]
    expected, own = found.values()
    for value, wanted in zip(own, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-5)


def call(name: str, *, scaling: float | None = None, **others: Any) -> Tensor:
    """What the registered function gives for drawn heads."""
    from transformers import AttentionInterface

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, generator=generator) for _ in range(3))
    function = AttentionInterface()[integration.register(name)]
    layer = nn.Module().eval()
    return function(layer, q, k, v, None, scaling=scaling, is_causal=False, **others)


@needs_transformers
@pytest.mark.parametrize("name", ["reshaped", "per_head"])
def test_a_layers_own_scale_is_kept(name: str) -> None:
    """A scale other than 1/√head_dim is the one that is used; weights come where they are asked for."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, generator=generator) for _ in range(3))
    output, weights = call(name, scaling=0.2, output_attentions=True)
    expected = torch.softmax(0.2 * q @ k.transpose(2, 3), dim=-1)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(output, (expected @ v).transpose(1, 2))


@needs_transformers
@pytest.mark.parametrize("foreign", ["softcap", "position_bias", "s_aux"])
def test_what_multi_head_attention_has_not_is_refused(foreign: str) -> None:
    """An argument that would change the result is named, never dropped."""
    with pytest.raises(Refusal, match=f"^{foreign} must be None, for multi-head attention has none, got one"):
        call("sdpa", **{foreign: torch.ones(3)})


@needs_transformers
def test_a_kernel_without_masks_refuses_a_padded_batch() -> None:
    """What an implementation does not compute is an error in its own words, as everywhere."""
    from transformers import AttentionInterface

    function = AttentionInterface()[integration.register("flash_attn")]
    heads = torch.randn(2, 3, 5, 4)
    keep = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    with pytest.raises(Refusal, match="the kernel takes no mask"):
        function(nn.Module().eval(), heads, heads, heads, keep, is_causal=False)


@needs_transformers
def test_nothing_of_the_librarys_own_is_replaced() -> None:
    """Names are put apart by a prefix, and those of files become words."""
    from transformers import AttentionInterface

    before = AttentionInterface()["sdpa"]
    assert integration.register("sdpa") == "attnbench_sdpa"
    assert integration.register("attnzoo.sdpa:SDPA") == "attnbench_attnzoo_sdpa_SDPA"
    assert AttentionInterface()["sdpa"] is before
    with pytest.raises(PluginError, match="unknown implementation 'spda'; did you mean 'sdpa'"):
        integration.register("spda")


@needs_transformers
def test_no_random_number_is_drawn() -> None:
    """A model's dropout does not depend on which attention it has."""
    state = torch.get_rng_state()
    call("reshaped")
    call("torch_mha")
    assert torch.equal(torch.get_rng_state(), state)


def test_without_transformers_the_error_is_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, whatever the name."""

    def absent() -> SimpleNamespace:
        raise ImportError("no module")

    monkeypatch.setattr(integration, "_interfaces", absent)
    with pytest.raises(RuntimeError, match=r"pip install 'attnbench\[transformers\]'$"):
        integration.register("sdpa")
