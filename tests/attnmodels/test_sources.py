"""Tests of the sources of models, and of configurations that are made small."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("pip install 'attnbench[transformers]'", allow_module_level=True)

import transformers

from attnbench.plugins.registry import PluginError
from attnmodels import sources
from attnmodels.checking import CheckedModel
from attnmodels.shrinking import make_small
from attnmodels.sources import build_model

TINY = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def write(folder: Path, values: object, name: str = "config.json") -> Path:
    """Write a configuration file."""
    file = folder / name
    file.write_text(json.dumps(values))
    return file


def test_a_small_configuration_keeps_every_feature_of_attention() -> None:
    """One layer of each type, the ratio of key heads, a window, a soft cap and a scale of its own stay."""
    model = build_model("transformers:Gemma2Config").model
    config, default = model.config, transformers.Gemma2Config()
    assert config.layer_types == ["sliding_attention", "full_attention"]
    ratio = default.num_attention_heads // default.num_key_value_heads
    assert (config.num_attention_heads, config.num_key_value_heads) == (2 * ratio, 2)
    assert 0 < config.sliding_window < 12
    assert config.attn_logit_softcapping > 0
    assert config.query_pre_attn_scalar == default.query_pre_attn_scalar
    assert sum(one.numel() for one in model.parameters()) < 1e5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"num_attention_heads": 32, "num_key_value_heads": 8}, {"num_attention_heads": 8, "num_key_value_heads": 2}),
        ({"num_attention_heads": 71, "num_kv_heads": 1}, {"num_attention_heads": 71, "num_kv_heads": 1}),
        ({"n_head": 12, "n_embd": 768}, {"n_head": 4, "n_embd": 64}),
        ({"num_hidden_layers": 48, "layer_types": ["a"] * 47 + ["b"], "per_layer": list(range(48))},
         {"num_hidden_layers": 2, "layer_types": ["a", "b"], "per_layer": [0, 47]}),
        ({"sliding_window": None, "vocab_size": 5, "eos_token_id": 70}, {"vocab_size": 64, "eos_token_id": 0}),
    ],
)  # fmt: skip
def test_sizes_become_small(values: dict[str, Any], expected: dict[str, Any]) -> None:
    """Sizes change by the rules of the module, and what is absent stays absent."""
    assert make_small(values) == expected


def test_a_nested_configuration_is_made_small_too() -> None:
    """The configuration of a part is replaced as a whole."""
    found = make_small({"text_config": {"model_type": "llama", "num_attention_heads": 8, "rope": 3}})
    assert found == {"text_config": {"model_type": "llama", "num_attention_heads": 4, "rope": 3}}


def test_files_keep_their_sizes_unless_asked(tmp_path: Path) -> None:
    """A folder or a JSON file is built as it is; ``small`` makes it small."""
    file = write(tmp_path, TINY | {"num_hidden_layers": 3})
    assert build_model(str(tmp_path)).model.config.num_hidden_layers == 3
    assert build_model(str(file), small=True).model.config.num_hidden_layers == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (TINY | {"auto_map": {"AutoModel": "modeling.Own"}}, "auto_map"),
        ({"hidden_size": 3}, "model_type"),
        (TINY | {"model_type": "no_such_model"}, "no_such_model"),
        (TINY | {"hidden_size": 2**16, "intermediate_size": 2**18, "num_hidden_layers": 99}, "GiB of free memory"),
    ],
)
def test_configurations_that_cannot_be_built_are_one_line(tmp_path: Path, values: object, words: str) -> None:
    """Remote code, an unknown model, and weights beyond the memory are refused before anything is built."""
    write(tmp_path, values)
    with pytest.raises(PluginError, match=words) as error:
        build_model(str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("transformers:LamaConfig", "did you mean 'LlamaConfig'"),
        ("transformers:LlamaModel", "no class of configurations"),
        ("some-hub/some-model", "nothing is downloaded"),
        ("missing.json", "cannot read the configuration"),
    ],
)
def test_sources_that_are_none_are_one_line(source: str, words: str) -> None:
    """A wrong class, the name of a model on a hub and a missing file are refused in one line."""
    with pytest.raises(PluginError, match=words) as error:
        build_model(source)
    assert "\n" not in str(error.value)


MAKERS = """
import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel, PreTrainedModel

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4)


def with_parameters(size):
    return None


def no_model():
    return nn.Linear(2, 2)


class Without(PreTrainedModel):
    config_class = LlamaConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(64, 4)
        self.post_init()

    def forward(self, input_ids, attention_mask=None):
        return self.embedding(input_ids)


def no_attention():
    return Without(LlamaConfig(**SIZES))


class Random(LlamaModel):
    def forward(self, input_ids=None, **given):
        return super().forward(inputs_embeds=self.embed_tokens(input_ids) * torch.rand(()), **given)


def random():
    return Random(LlamaConfig(**SIZES))
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("with_parameters", "without parameters"),
        ("no_model", "must return a model of transformers or diffusers, .* got a Linear"),
        ("no_attention", "calls no attention function"),
        ("random", "not deterministic"),
    ],
)
def test_models_that_cannot_be_checked_are_one_line(tmp_path: Path, name: str, words: str) -> None:
    """A function that makes no model, a model without attention, and one that is random are refused in one line."""
    file = tmp_path / "makers.py"
    file.write_text(MAKERS)
    with pytest.raises(PluginError, match=words) as error:
        CheckedModel(f"{file}:{name}")
    assert "\n" not in str(error.value)


def test_without_transformers_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library is missing, the install line is the message."""
    monkeypatch.setattr(sources, "describe_missing", lambda: "pip install 'attnbench[transformers]'")
    with pytest.raises(PluginError, match="pip install"):
        build_model("transformers:LlamaConfig")
