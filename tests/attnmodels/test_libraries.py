"""Tests of models of diffusers, of the encoder, and of any module: calls are seen, and faults are found."""

import importlib.util
from functools import cache
from pathlib import Path

import pytest

if any(importlib.util.find_spec(name) is None for name in ("transformers", "diffusers")):
    pytest.skip("pip install transformers diffusers", allow_module_level=True)

from attnbench.plugins.registry import PluginError
from attnmodels.checking import CheckedModel
from attnmodels.facts import Cause, Cell, Situation, Visibility
from attnmodels.features import find_features
from attnmodels.libraries import Transformers
from attnmodels.shrinking import make_diffusion_small
from attnmodels.sources import build_model

FUNCTIONS = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa


def right(module, query, key, value, attention_mask, *, scaling=None, is_causal=False, **kwargs):
    if is_causal:
        attention_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
    output = sdpa(query, key, value, attn_mask=attention_mask, scale=scaling)
    return output.transpose(1, 2), None


def without_masks(module, query, key, value, attention_mask, *, scaling=None, **kwargs):
    return sdpa(query, key, value, scale=scaling).transpose(1, 2), None


class Layer(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.projection = nn.Linear(16, 48)
        self.causal = causal

    def forward(self, states):
        query, key, value = self.projection(states).chunk(3, dim=-1)
        return states + sdpa(query, key, value, is_causal=self.causal)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(False), Layer(True)
        self.last = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, states, hidden):
        states = self.second(self.first(states))
        return self.last(states, states, states, key_padding_mask=hidden, need_weights=False)[0]


def make_module():
    torch.manual_seed(1)
    return Model(), {"states": torch.randn(2, 6, 16), "hidden": torch.arange(6) > torch.tensor([[5], [3]])}


def make_nothing():
    return nn.Linear(16, 16), {"input": torch.randn(2, 16)}
"""


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    """Return a file of attention functions and models."""
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    return file


@cache
def make(source: str) -> CheckedModel:
    """Return a checked model."""
    return CheckedModel(source)


def check(model: CheckedModel, name: str, *situations: Situation) -> list[Cell]:
    """Return what was found of a function in a model."""
    return [one for one in model.check(name, situations or tuple(model.calls)) if one.status != "held"]


VIDEO = "diffusers:LTXVideoTransformer3DModel"


@pytest.mark.parametrize("name", ["native", "_native_math", "right"])
def test_right_backends_and_functions_of_diffusers_are_not_accused(functions: Path, name: str) -> None:
    """The backends of the dispatcher, and a function of a file, deviate in no situation."""
    place = f"{functions}:{name}" if name == "right" else name
    assert make(VIDEO).calls.keys() == {"no-padding", "right-padding", "training", "bfloat16", "float16"}
    assert check(make(VIDEO), place) == []


def test_a_mask_that_the_dispatcher_drops_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that takes no mask gets none, and says nothing: the first layer with a mask deviates."""
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    name = AttentionBackendName._NATIVE_MATH
    taken = _AttentionBackendRegistry._supported_arg_names[name] - {"attn_mask"}
    monkeypatch.setitem(_AttentionBackendRegistry._supported_arg_names, name, taken)
    assert check(make(VIDEO), "_native_math", "no-padding") == []
    (cell,) = check(make(VIDEO), "_native_math", "right-padding")
    assert cell.layers == ("transformer_blocks.0.attn2", "transformer_blocks.1.attn2")
    (fact,) = cell.facts
    assert isinstance(fact, Visibility)
    assert (fact.cause, fact.hidden) == (Cause(argument="attention_mask"), 0)


def test_processors_that_call_torch_are_seen(functions: Path) -> None:
    """A processor of diffusers that calls torch itself gets the function too."""
    model = make("diffusers:PixArtTransformer2DModel")
    assert check(model, "native", "right-padding") == []
    (cell,) = check(model, f"{functions}:without_masks", "right-padding")
    assert cell.layers[0] == "transformer_blocks.0.attn2"


@pytest.mark.parametrize(
    ("name", "words"),
    [("natve", "did you mean 'native'"), ("flash", "cannot run here"), ("_flash_3_hub", "_flash_3_hub")],
)
def test_backends_that_cannot_be_used_are_one_line(name: str, words: str) -> None:
    """A backend that does not exist, that lacks its package, or that would be downloaded is refused."""
    with pytest.raises(PluginError, match=words) as error:
        make(VIDEO).check(name)
    assert "\n" not in str(error.value)


def test_layers_of_any_module_are_named(functions: Path) -> None:
    """The layer is the innermost module that runs, also where torch itself calls attention."""
    model = CheckedModel(f"{functions}:make_module")
    assert model.inspect().layers == ("first", "second", "last")
    for name in ("eager", "sdpa", f"{functions}:right"):
        assert check(model, name) == []
    (cell,) = check(model, f"{functions}:without_masks", "no-padding")
    assert cell.layers == ("second", "last")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("diffusers:FluxTransformer2DModl", "did you mean 'FluxTransformer2DModel'"),
        ("diffusers:PriorTransformer", "no rule gives its proj_embedding"),
        ("make_nothing", "calls no scaled_dot_product_attention"),
    ],
)
def test_sources_that_cannot_be_checked_are_one_line(functions: Path, source: str, words: str) -> None:
    """A name that does not exist, inputs that are not known and a model without attention are refused in one line."""
    with pytest.raises(PluginError, match=words) as error:
        CheckedModel(source if ":" in source else f"{functions}:{source}")
    assert "\n" not in str(error.value)


def test_the_encoder_has_its_trained_weights() -> None:
    """The sentence encoder is BERT with six layers; its weights are those of the package."""
    built = build_model("encoder")
    assert built.model.config.num_hidden_layers == 6
    assert not built.changed


def test_paged_forms_are_refused() -> None:
    """They need what continuous batching prepares; the message names the function that computes the same."""
    with pytest.raises(PluginError, match=r"needs the cache .*'eager'"):
        Transformers().find("paged|eager")


def test_a_model_of_diffusers_keeps_its_heads_and_loses_its_layers() -> None:
    """A width that is heads times their width follows them."""
    found = make_diffusion_small({"num_layers": 9, "num_attention_heads": 8, "attention_head_dim": 16, "inner": 128})
    assert found == {"num_layers": 2, "num_attention_heads": 2, "inner": 32}


def test_a_mask_of_padding_is_given_where_a_model_takes_one() -> None:
    """Without padding no mask is given, unless it is needed."""
    features = find_features(build_model("diffusers:PixArtTransformer2DModel").model)
    assert "encoder_attention_mask" not in features.arguments
    assert features.padded is not None
    assert features.padded["encoder_attention_mask"].sum(1).tolist() == [8, 5]
