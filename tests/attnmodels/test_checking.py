"""Tests of attention functions inside models: which layer deviates, and by which argument."""

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("pip install 'attnbench[transformers]'", allow_module_level=True)

from attnbench.plugins.registry import PluginError
from attnmodels.checking import CheckedModel
from attnmodels.facts import (
    ORDER,
    CallsDiffer,
    Cause,
    Cell,
    NotDropped,
    NumbersDiffer,
    PathsDiffer,
    Raised,
    Situation,
    Unrepeatable,
    Visibility,
    WrongResult,
)

FILE = Path(__file__).with_name("attention_functions.py")
MODELS = ["llama", "gemma", "gpt_oss", "qwen", "gpt2", "bert"]
RIGHT = ["eager", "attend", "additive", "permuted", "blockwise"]
CORE: tuple[Situation, ...] = ("left-padding", "packed", "window", "training", "cached-prefix", "bfloat16")


@cache
def make(model: str) -> CheckedModel:
    """Return a checked model of ``attention_functions.py``."""
    return CheckedModel(f"{FILE}:make_{model}")


def check(model: str, name: str, *situations: Situation) -> list[Cell]:
    """Return what was found of a function in a model."""
    place = name if name in ("eager", "sdpa") or ":" in name else f"{FILE}:{name}"
    return [one for one in make(model).check(place, situations or ORDER) if one.status != "held"]


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("model", MODELS)
def test_right_functions_are_not_accused(model: str, name: str) -> None:
    """Eager attention and right functions with unusual insides deviate in no situation."""
    assert check(model, name, *CORE) == []


def test_dropout_that_is_ignored_in_training_is_found() -> None:
    """Only the situation with dropout shows it: in training without dropout, outputs and gradients are right."""
    (cell,) = check("bert", "dropout_ignored")
    assert (cell.situation, cell.facts) == ("dropout", (NotDropped(dropout=0.1),))
    assert [cell.status for cell in check("bert", "blockwise", "dropout")] == ["refused"]


@pytest.mark.extended
@pytest.mark.parametrize("name", ["sdpa", "blockwise"])
@pytest.mark.parametrize("model", MODELS)
def test_no_situation_accuses_a_right_function(model: str, name: str) -> None:
    """Right functions deviate in none of the situations; a function that a model refuses is no deviation."""
    assert all(cell.status == "refused" for cell in check(model, name))


CAUSES = [
    ("bert", "mask_dropped", "left-padding", 0, Cause(argument="attention_mask")),
    ("gpt2", "mask_inverted", "packed", 0, Cause(argument="attention_mask", change="inverted")),
    ("llama", "left_padding_shifted", "left-padding", 0, Cause(argument="attention_mask", change="shifted", by=1)),
    ("gemma", "window_off_by_one", "window", 0, Cause(argument="sliding_window", change="shifted", by=1)),
    ("gemma", "scale_ignored", "no-padding", 0, Cause(argument="scaling")),
    ("gemma", "soft_cap_ignored", "soft-cap", 0, Cause(argument="softcap")),
    ("gpt_oss", "sinks_ignored", "sinks", 0, Cause(argument="s_aux")),
    ("qwen", "packed_joined", "packed", 0, Cause(argument="position_ids")),
    ("llama", "cache_position_off", "cached-prefix", 0, Cause(argument="past_key_values", change="shifted", by=-1)),
    ("qwen", "heads_reordered", "grouped-heads", 0, Cause(argument="num_key_value_groups", change="reordered")),
    ("llama_with_a_layer_that_is_not_causal", "sdpa", "no-padding", 1, Cause(argument="is_causal")),
    ("llama", "undeclared", "left-padding", 0, Cause(argument="attention_mask")),
]  # fmt: skip


@pytest.mark.parametrize(("model", "name", "situation", "layer", "cause"), CAUSES, ids=[one[1] for one in CAUSES])
def test_a_fault_is_found_with_layer_and_argument(
    model: str, name: str, situation: Situation, layer: int, cause: Cause
) -> None:
    """The first layer that deviates is the one with the fault, and the argument is the one that is ignored."""
    (cell,) = check(model, name, situation)
    (fact,) = cell.facts
    assert cell.status == "deviates"
    assert f".{layer}." in cell.layers[0]
    assert isinstance(fact, Visibility | WrongResult)
    assert fact.cause == cause


def test_dropout_in_evaluation_is_found() -> None:
    """A function that drops in evaluation gives other outputs in equal calls."""
    (cell,) = check("llama", "dropout_in_evaluation", "no-padding")
    assert cell.layers[0] == "layers.0.self_attn"
    assert isinstance(cell.facts[0], Unrepeatable)


def test_keys_that_are_wrongly_seen_are_counted() -> None:
    """Five keys of padding are seen by each of seven real queries; the other twelve queries have no padding."""
    (cell,) = check("bert", "mask_dropped", "left-padding")
    (fact,) = cell.facts
    assert isinstance(fact, Visibility)
    assert (fact.seen, fact.hidden, fact.pairs, fact.masked) == (5 * 7, 0, (12 + 7) * 12, True)


def test_a_name_without_masks_is_told() -> None:
    """No mask reaches a function that declares no mask function."""
    (cell,) = check("llama", "undeclared", "left-padding")
    (fact,) = cell.facts
    assert isinstance(fact, Visibility)
    assert not fact.masked


def test_positions_of_cached_tokens_are_compared_with_the_whole_sequence() -> None:
    """A model that gives cached tokens wrong positions deviates by itself, in its first layer."""
    inspection = make("llama_whose_cached_positions_are_off").inspect()
    found = {cell.situation: cell for cell in inspection.cells if cell.status != "held"}
    assert set(found) == {"cached-prefix", "chunks", "decoding", "padded-cache"}
    cell = found["decoding"]
    assert cell.layers[0] == "layers.0.self_attn"
    assert isinstance(cell.facts[0], PathsDiffer)
    assert cell.facts[0].tensor == "query"


def test_numbers_that_depend_on_the_path_are_found() -> None:
    """A model that prepares queries of one layer in another way for SDPA deviates there, not in the function."""
    (cell,) = check("llama_with_other_queries_for_sdpa", "sdpa", "no-padding")
    assert cell.layers[0] == "layers.1.self_attn"
    assert isinstance(cell.facts[0], NumbersDiffer)
    assert cell.facts[0].tensor == "query"
    assert check("llama_with_other_queries_for_sdpa", "eager", "no-padding") == []


def test_calls_that_depend_on_the_path_are_found() -> None:
    """A model that leaves out a token for SDPA calls attention with other shapes."""
    (cell,) = check("llama_with_fewer_tokens_for_sdpa", "sdpa", "no-padding")
    assert isinstance(cell.facts[0], CallsDiffer)


def test_a_pattern_that_is_not_known_is_named() -> None:
    """Layers that see blocks of tokens are named; what functions do with their masks is checked all the same."""
    found = make("llama_in_blocks")
    assert found.inspect().unknown_patterns == ("layers.0.self_attn", "layers.1.self_attn")
    assert check("llama_in_blocks", "sdpa", "no-padding") == []
    (cell,) = check("llama_in_blocks", "mask_dropped", "no-padding")
    assert cell.status == "deviates"


def test_a_situation_that_is_random_is_left_out() -> None:
    """A model that draws numbers in training is not checked in training."""
    left_out = {one.situation: one.reason for one in make("llama_that_is_random_in_training").left_out}
    assert left_out["training"] == "random"
    assert "no-padding" not in left_out


def test_a_model_tells_its_features() -> None:
    """Situations that a model does not have are left out with a reason; casts to float32 have a floor."""
    gpt2, gemma = make("gpt2").inspect(), make("gemma").inspect()
    assert {one.situation for one in gpt2.left_out} == {"window", "grouped-heads", "soft-cap", "sinks"}
    assert {one.situation for one in gemma.left_out} == {"sinks"}
    assert 1e-9 < gemma.cast_floor < 1e-5
    assert gpt2.cast_floor == 0
    assert not gemma.unknown_patterns


def test_packed_sequences_of_gpt_oss_see_each_other() -> None:
    """In transformers 5.23, GPT-OSS makes its masks without position ids: packed sequences are not divided."""
    found = [cell for cell in make("gpt_oss").inspect().cells if cell.status != "held"]
    assert [cell.situation for cell in found] == ["packed"]
    assert isinstance(found[0].facts[0], Visibility)
    assert found[0].facts[0].cause == Cause(argument="position_ids")


def test_an_implementation_that_refuses_is_no_deviation() -> None:
    """An implementation of multi-head attention refuses soft caps and sinks aloud."""
    cells = check("gemma", "attnzoo.reshaped:RESHAPED", "no-padding")
    assert [cell.status for cell in cells] == ["refused"]
    assert all(isinstance(fact, Raised) for fact in cells[0].facts)
    assert check("llama", "attnzoo.reshaped:RESHAPED", "left-padding", "training") == []


def test_what_a_function_raises_is_a_failure(tmp_path: Path) -> None:
    """An exception that is no refusal fails the situation, with its message in one line."""
    file = tmp_path / "raising.py"
    file.write_text(
        "def raising(module, query, key, value, attention_mask, **kwargs):\n    raise RuntimeError('two\\nlines')\n"
    )
    (cell,) = make("bert").check(f"{file}:raising", ["no-padding"])
    assert cell.status == "failed"
    assert cell.facts == (Raised(kind="RuntimeError", message="two lines"),)


def test_padding_that_is_not_finite_is_found(tmp_path: Path) -> None:
    """NaN at padding is told, although no token sees it in the same call."""
    file = tmp_path / "blank.py"
    file.write_text(
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "def blank(module, query, key, value, attention_mask, **kwargs):\n"
        "    output = sdpa(query, key, value, attn_mask=attention_mask)\n"
        "    if attention_mask is not None:\n"
        "        output = output.masked_fill(~attention_mask[:, :, -1:].mT, float('nan'))\n"
        "    return output.transpose(1, 2).contiguous(), None\n"
        "blank.mask_function = 'sdpa'\n"
    )
    (cell,) = make("bert").check(f"{file}:blank", ["right-padding"])
    assert [type(fact).__name__ for fact in cell.facts] == ["NotFiniteAtPadding"]


def _write(text: str) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        (folder / "attention.py").write_text(text)
        return f"{folder / 'attention.py'}:attention"

    return write


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (lambda _: "flsh", "unknown attention 'flsh'"),
        (_write("def attention(module, query, key, value, attention_mask, scaling=None): ...\n"), "must take **kwargs"),
        (_write("def attention(module, query, key, value, attention_mask, **kwargs): ...\n"
                "attention.mask_function = 'spda'\n"), "mask_function must be a name out of"),
    ],
)  # fmt: skip
def test_names_that_cannot_be_attention_functions_are_one_line(
    name: Callable[[Path], str], words: str, tmp_path: Path
) -> None:
    """An unknown name, a function without **kwargs and a wrong declaration are refused in one line."""
    with pytest.raises(PluginError, match=words.replace("*", r"\*")) as error:
        make("bert").check(name(tmp_path))
    assert "\n" not in str(error.value)
