"""Models of a class or a name of a library, of a configuration file, or of a function that makes a model."""

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import torch

from attnbench.integrations.transformers import describe_missing
from attnbench.oracle import sentence_encoder
from attnbench.plugins.registry import PluginError, join_lines, load
from attnbench.records.environment import read_available_memory_bytes
from attnmodels.features import find_features
from attnmodels.inputs import Features
from attnmodels.libraries import Diffusers, Torch, Transformers
from attnmodels.shrinking import make_diffusion_small, make_small

__all__ = ["BuiltModel", "build_model"]

PREFIX, DIFFUSERS, ENCODER = "transformers:", "diffusers:", "encoder"
# A model is in memory in float64, and in two other dtypes of at most 4 bytes.
BYTES_PER_PARAMETER = 8 + 2 * 4
# Standard deviation of a weight of attention, times the root of the number of its inputs; 1 for others. Logits get
# a standard deviation near 2, so that a function that ignores a scale or a mask changes much more than rounding does.
GAIN = 1.5
# Standard deviation of what is added to biases, sinks and weights of norms.
BIAS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A model in evaluation, and the values of its configuration that were changed to make it small."""

    model: Any
    changed: dict[str, str] = field(default_factory=dict)
    library: Transformers = field(default_factory=Transformers)
    # Inputs of a model without tokens of its own.
    features: Features | None = None


def build_model(source: str, *, small: bool | None = None) -> BuiltModel:
    """Build the model of a source; nothing is downloaded, and no code of a configuration runs.

    Raises: PluginError in one line, which says what is wrong with the source, and the remedy.
    """
    if reason := describe_missing():
        raise PluginError(reason)
    if source.startswith(PREFIX):
        return _build_from_class(source.removeprefix(PREFIX), small=small is not False)
    if source.startswith(DIFFUSERS):
        return _build_diffusers(source.removeprefix(DIFFUSERS), small=small is not False)
    if source == ENCODER:
        return _load_encoder()
    if Path(source).is_dir() or source.endswith(".json"):
        return _build_from_file(Path(source), small=bool(small))
    if ":" in source:
        return _make_with_function(source)
    raise PluginError(
        f"source {source!r} must be transformers:CLASS such as transformers:LlamaConfig, diffusers:CLASS, encoder, "
        " the folder or JSON file of a configuration, or path/to/file.py:make_model; nothing is downloaded"
    )


def _load_encoder() -> BuiltModel:
    """Load the sentence encoder, with its trained weights."""
    from transformers import BertModel

    if reason := sentence_encoder.describe_missing():
        raise PluginError(reason)
    return BuiltModel(model=BertModel.from_pretrained(sentence_encoder.find_model_folder(), add_pooling_layer=False))


def _build_diffusers(name: str, *, small: bool) -> BuiltModel:
    diffusers = _import("diffusers")
    kind = getattr(diffusers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin)):
        _refuse_name("diffusers has no class of models", name, [one for one in dir(diffusers) if "Transformer" in one])
    default = {one.name: one.default for one in inspect.signature(kind).parameters.values()}
    changes = make_diffusion_small(default) if small else {}
    model = _build_module(name, lambda: kind(**changes))
    return BuiltModel(
        model=model, changed=_show(default, changes), library=Diffusers(), features=_find(find_features, model, name)
    )


def _find(find: Callable[[Any], Features], model: Any, name: str) -> Features:
    try:
        return find(model)
    except Exception as error:  # what inputs a model takes is known by running it
        raise PluginError(f"the inputs of {name} are not known: {join_lines(error)[:400]}") from error


def _import(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except (ImportError, RuntimeError) as error:
        raise PluginError(f"{library} cannot be imported: {join_lines(error)[:200]}: pip install {library}") from error


def _refuse_name(text: str, name: str, known: list[str]) -> NoReturn:
    close = get_close_matches(name, known, n=1)
    raise PluginError(f"{text} {name!r}{f'; did you mean {close[0]!r}?' if close else ''}")


def _build_from_class(name: str, *, small: bool) -> BuiltModel:
    import transformers

    kind = getattr(transformers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedConfig)):
        known = [one for one in dir(transformers) if one.endswith("Config")]
        _refuse_name("transformers has no class of configurations", name, known)
    default = kind().to_dict()
    changes = make_small(default) if small else {}
    return _build(_configure(kind, changes), default, changes)


def _build_from_file(path: Path, *, small: bool) -> BuiltModel:
    from transformers import AutoConfig

    file = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise PluginError(f"cannot read the configuration {str(file)!r}: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise PluginError(f"configuration {str(file)!r} must be an object with a model_type")
    if "auto_map" in values:
        raise PluginError(f"configuration {str(file)!r} needs code that comes with a model (auto_map): refused")
    kept = {name: value for name, value in values.items() if name != "model_type"}
    changes = make_small(kept) if small else {}
    try:
        config = AutoConfig.for_model(values["model_type"], **(kept | changes))
    except Exception as error:  # as in _configure
        raise PluginError(f"configuration {str(file)!r}: {join_lines(error)}") from error
    return _build(config, kept, changes)


def _configure(kind: Any, changes: Mapping[str, Any]) -> Any:
    try:
        return kind(**changes)
    except Exception as error:  # the checks of configurations raise exceptions of many kinds
        raise PluginError(f"{kind.__name__} cannot be made small: {join_lines(error)}") from error


def _build(config: Any, before: Mapping[str, Any], changes: Mapping[str, Any]) -> BuiltModel:
    from transformers import AutoModel

    model = _build_module(type(config).__name__, lambda: AutoModel.from_config(config))
    return BuiltModel(model=model, changed=_show(before, changes))


def _build_module(name: str, make: Callable[[], Any]) -> Any:
    """Make a model with random weights, for which there is memory."""
    try:
        with torch.device("meta"):
            count = sum(one.numel() for one in make().parameters())
    except Exception as error:  # and so do the constructors of models
        raise PluginError(f"{name} makes no model: {join_lines(error)}") from error
    needed, free = count * BYTES_PER_PARAMETER, read_available_memory_bytes()
    if needed > free:
        raise PluginError(
            f"the model has {count / 1e9:.3g} billion parameters, and needs {needed / 2**30:.3g} GiB of "
            f"{free / 2**30:.3g} GiB of free memory: make it small with --small"
        )
    torch.manual_seed(7)
    model = make()
    _draw_parameters(model)
    if not hasattr(model, "set_attn_implementation"):
        _draw_convolutions(model)
    return model.eval()


def _show(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{_shorten(before.get(name))} → {_shorten(value)}" for name, value in changes.items()
            if before.get(name) != value}  # fmt: skip


def _draw_parameters(model: Any) -> None:
    """Draw weights with which attention depends on every argument; a library's own are so small that it is flat."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter.dtype)
            if parameter.dim() > 1:
                gain = GAIN if "att" in name.lower() else 1.0
                parameter.copy_(noise * gain / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(noise * BIAS)
        for embedding in (one for one in model.modules() if isinstance(one, torch.nn.Embedding)):
            noise = torch.randn(embedding.weight.shape, generator=generator, dtype=torch.float32)
            embedding.weight.copy_(noise)


def _draw_convolutions(model: Any) -> None:
    """Draw weights of convolutions that keep the size of numbers, which a residual network would else raise."""
    for one in (one for one in model.modules() if isinstance(one, torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d)):
        torch.nn.init.normal_(one.weight, std=one.weight[0].numel() ** -0.5)


def _make_with_function(source: str) -> BuiltModel:
    from transformers import PreTrainedModel

    function = load(source)
    if not callable(function):
        raise PluginError(f"{source!r} must be a function that returns a model, got a {type(function).__name__}")
    if inspect.signature(function).parameters:
        raise PluginError(f"{source!r} must be a function without parameters that returns a model")
    model: Any = function()
    if isinstance(model, PreTrainedModel):
        return BuiltModel(model=model.eval())
    given = None
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], torch.nn.Module):
        model, given = model[0], Features(dict(model[1]))
    library = Diffusers() if type(model).__module__.startswith("diffusers.") else Torch()
    if given is None and type(library) is Torch:
        raise PluginError(
            f"{source!r} must return a model of transformers or diffusers, or any module and the dictionary of its "
            f"inputs, got a {type(model).__name__}"
        )
    return BuiltModel(model=model.eval(), library=library, features=given or _find(find_features, model, source))


def _shorten(value: object) -> str:
    shown = str(value)
    return shown if len(shown) <= 24 else f"{shown[:20]} …"
