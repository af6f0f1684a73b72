"""Implementations as attention functions of transformers: the same states, masks and scales as the library's own."""

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

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="pip install 'attnbench[transformers]'"
)
# One of each kind: a kernel with a mask of numbers, one that torch chooses, one that removes keys, a module of its own.
NAMES = ["reshaped", "sdpa", "varlen", "varlen_packed", "online_softmax", "per_head", "torch_mha"]


# Two sequences; the second has padding in front.
TOKENS = torch.arange(14).reshape(2, 7)
SEEN = torch.tensor([[True] * 7, [False] * 2 + [True] * 5])


def passed(attention: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Of a small causal decoder: states of real tokens, of a token after others, and gradients of every parameter.

    It has grouped heads, and norms that compute in its own precision; its weights are drawn from one seed.
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
    states = model(input_ids=TOKENS, attention_mask=SEEN.long()).last_hidden_state
    # Random, as a sum of squares after a norm would be the same whatever attention gives.
    cotangent = torch.randn(states.shape, generator=torch.Generator().manual_seed(1)).to(dtype) * SEEN[..., None]
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(states, parameters, cotangent)
    first = model(input_ids=TOKENS[:1, :5], use_cache=True)
    then = model(input_ids=TOKENS[:1, 5:6], past_key_values=first.past_key_values).last_hidden_state
    found = {"states": states[SEEN], "next": then} | dict(zip(names, gradients, strict=True))
    return {name: value.detach() for name, value in found.items()}


def off(found: dict[str, Tensor], oracle: dict[str, Tensor]) -> float:
    """Largest error of all, each as a share of the largest element of its own quantity."""
    assert found.keys() == oracle.keys()
    return max(
        float((value.double() - oracle[name]).abs().max() / oracle[name].abs().max()) for name, value in found.items()
    )


@pytest.fixture(scope="module")
def truth() -> tuple[dict[str, Tensor], float]:
    """What the model gives in float64, and how far others may be off: 4 times what the library's own paths are."""
    oracle = passed("sdpa", torch.float64)
    return oracle, FACTOR * max(off(passed(own), oracle) for own in ("sdpa", "eager"))


@needs_transformers
@pytest.mark.parametrize("name", NAMES)
def test_a_model_gives_what_it_gives_with_sdpa(name: str, truth: tuple[dict[str, Tensor], float]) -> None:
    """A causal decoder with grouped heads and padding in front, forward and backward, and one token after others."""
    oracle, allowed = truth
    assert off(passed(integration.register(name)), oracle) <= allowed


@needs_transformers
def test_a_wrong_attention_shows_in_a_model(tmp_path: Path, truth: tuple[dict[str, Tensor], float]) -> None:
    """The budget is that of rounding: a scale that is a thousandth too large is beyond it."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import torch\ndef attention(q, k, v, *, mask, scale):\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=1.001 * scale)\n"
    )
    oracle, allowed = truth
    assert off(passed(integration.register(f"{wrong}:attention")), oracle) > 10 * allowed


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
    with pytest.raises(Refusal, match=f"^{foreign} must be None for multi-head attention, got a "):
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


# A kernel that would compute in any precision, and says that it does not; what it was asked is kept in a list.
DECLARED = """
from torch.nn.functional import scaled_dot_product_attention

from attnbench.kernel import from_kernel

ASKED = []


def refusal(case):
    ASKED.append(case.id)
    return None if case.dtype == "float32" else "float32 alone"


def attention(q, k, v, *, mask, is_causal, scale):
    return scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=scale)


KERNEL = from_kernel(attention, unsupported=refusal)
"""


@needs_transformers
def test_what_an_implementation_declares_unsupported_is_refused(tmp_path: Path) -> None:
    """A model in another precision is told in one line; each kind of call is asked for once, whatever the layer."""
    from transformers import AttentionInterface

    file = tmp_path / "declared.py"
    file.write_text(DECLARED)
    public = integration.register(f"{file}:KERNEL")
    passed(public)
    asked = AttentionInterface()[public].implementation._unsupported.__globals__["ASKED"]
    sizes = ("B2.L7.S7.E32.H4", "B1.L5.S5.E32.H4", "B1.L1.S6.E32.H4")
    flags = ("batch_first/mask=bool3d", "batch_first+is_causal/mask=causal", "batch_first/mask=none")
    assert asked == [
        f"multihead/{size}/{flag}/regime=plain/seed=0/float32/cpu/eval" for size, flag in zip(sizes, flags, strict=True)
    ]
    with pytest.raises(
        Refusal, match=r"declared\.py:KERNEL' refuses a layer's call: float32 alone \(multi.*/eval\); reg"
    ):
        passed(public, torch.bfloat16)


@needs_transformers
def test_a_kernel_of_another_device_refuses_a_cpu() -> None:
    """It is not called, whatever it would do."""
    with pytest.raises(Refusal, match=r"^'flash_attn' refuses a layer's call: needs a CUDA device"):
        call("flash_attn")


@needs_transformers
@pytest.mark.parametrize("training", [False, True])
def test_a_mask_of_numbers_without_a_gradient_is_not_taken_for_one_with(training: bool) -> None:
    """The flash kernel of a CPU adds a mask, and has no gradient of it: it serves where none is asked for."""
    from transformers import AttentionInterface

    heads = torch.randn(2, 3, 5, 4, requires_grad=True)
    mask = torch.randn(2, 1, 5, 5)
    layer = nn.Module().train(training)
    function, oracle = (AttentionInterface()[integration.register(name)] for name in ("sdpa_flash", "reshaped"))
    found, expected = (one(layer, heads, heads, heads, mask, is_causal=False)[0] for one in (function, oracle))
    torch.testing.assert_close(found, expected)
    with pytest.raises(Refusal, match="no gradient of a float mask"):
        function(layer, heads, heads, heads, mask.requires_grad_(), is_causal=False)


@needs_transformers
@pytest.mark.parametrize("name", [None, 3])
def test_a_name_is_a_string(name: Any) -> None:
    """Anything else is named, with what it should have been."""
    with pytest.raises(TypeError, match=rf"^name must be a string such as 'varlen' or .*, got {name}$"):
        integration.register(name)


@needs_transformers
def test_nothing_of_the_librarys_own_is_replaced() -> None:
    """Names are put apart by a prefix, and those of files become words."""
    from transformers import AttentionInterface

    before = AttentionInterface()["sdpa"]
    assert integration.register("varlen") == "attnbench_varlen"
    assert integration.register("attnzoo.varlen:VARLEN") == "attnbench_attnzoo_varlen_VARLEN"
    # By these words the library would look for a kernel to download, or ask what the model says of its own function.
    assert integration.register("sdpa_flash") == "attnbench_SDPA_FLASH"
    assert AttentionInterface()["sdpa"] is before
    with pytest.raises(ValueError, match=r"^'attnzoo_varlen:VARLEN' would take the place of 'attnzoo.varlen:VARLEN'"):
        integration.register("attnzoo_varlen:VARLEN")
    with pytest.raises(PluginError, match="unknown implementation 'spda'; did you mean 'sdpa'"):
        integration.register("spda")


@needs_transformers
def test_a_file_may_be_named_in_two_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lead to the same file, and neither takes the other's place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def attention(q, k, v, *, mask, scale): return v\n")
    assert integration.register("./mine.py:attention") == integration.register("mine.py:attention")


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

    monkeypatch.setattr(integration, "_import_interfaces", absent)
    with pytest.raises(RuntimeError, match=r"pip install 'attnbench\[transformers\]'$"):
        integration.register("sdpa")
