"""The inputs of models that have no tokens of their own: latent images or videos of diffusers.

Sizes come from the configuration, and the names of the arguments from the forward. Which of the layouts of a latent is
meant is known by running the model.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from attnmodels.inputs import Features

__all__ = ["find_features"]

# Rows and columns of a latent, frames of a video, and tokens of a text, of which the second sequence has the fewer.
SIDE, FRAMES, TEXT, SHORTER = 8, 2, 8, 5
# Two noise levels that every dtype holds exactly; some models multiply them by 1000.
LEVELS = (0.25, 0.5)
TEXT_WIDTHS = (
    "joint_attention_dim", "caption_channels", "text_embed_dim", "text_embed_2_dim", "text_dim", "text_hidden_dim",
    "in_channels_text", "in_text_dim", "text_in_dim", "context_in_dim", "cap_feat_dim", "condition_dim",
    "cross_attention_dim", "embedding_dim", "encoder_hidden_size",
)  # fmt: skip
POOLED_WIDTHS = ("pooled_projection_dim", "pooled_embed_dim", "in_text_dim2", "embedding_dim")
AXES = ("axes_dims_rope", "axes_dim_rope", "rope_axes_dim", "axes_dims", "axes_dim")
# A second noise level, which few configurations take.
RARE = {"r_timestep", "timestep_r"}
MASKS = ("encoder_attention_mask", "encoder_hidden_states_mask")


def find_features(model: Any) -> Features:
    """Return the first inputs with which a model of diffusers runs.

    Raises: ValueError in one line where an input is not known, or the model runs with none.
    """
    parameters = inspect.signature(model.forward).parameters
    needed = {name for name, one in parameters.items() if one.default is one.empty}
    errors: list[str] = []
    for latent in _draw_latents(model.config):
        known = _draw_known(model.config, latent)
        if unknown := sorted(needed - set(known)):
            raise ValueError(f"no rule gives its {' and '.join(unknown)}")
        masks = {name: known[name] for name in MASKS if name in parameters}
        given = {name: known[name] for name in parameters if name in known and name not in (set(MASKS) | RARE) - needed}
        whole = given | {name: torch.ones_like(mask) for name, mask in masks.items() if name in needed}
        if error := _run(model, whole):
            errors.append(f"{tuple(latent.shape)}: {error}")
            continue
        widths = (TEXT, TEXT + latent.shape[1]) if "attention_mask" in parameters and not masks else ()
        choices = [masks] if masks else [{"attention_mask": _draw_mask(width)} for width in widths]
        return Features(whole, next((given | one for one in choices if not _run(model, given | one)), None))
    raise ValueError(f"it runs with no latent: {'; '.join(errors)}")


def _run(model: Any, given: Mapping[str, Any]) -> str:
    """Return why a model does not run."""
    try:
        with torch.no_grad():
            model(**given)
    except Exception as error:  # noqa: BLE001  # which inputs a model takes is known by running it
        return " ".join(str(error).split())[:100] or type(error).__name__
    return ""


def _draw_mask(width: int) -> Tensor:
    """Return a mask in which the last tokens of the second text are padding, before other tokens. Shape: (2, width)."""
    column = torch.arange(width)
    return (column < SHORTER) | (column >= TEXT) | torch.tensor([[True], [False]])


def _draw_latents(config: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield an image, a video with its channels first and last, and a sequence of patches."""
    channels = config.get("in_channels") or config.get("in_visual_dim") or config.get("audio_acoustic_hidden_dim", 4)
    for shape in (
        (channels, SIDE, SIDE), (channels, FRAMES, SIDE, SIDE), (FRAMES, channels, SIDE, SIDE),
        (SIDE * SIDE, channels), (FRAMES, SIDE, SIDE, channels),
    ):  # fmt: skip
        yield torch.randn(2, *shape, generator=torch.Generator().manual_seed(7))


def _draw_known(config: Mapping[str, Any], latent: Tensor) -> dict[str, Any]:
    """Return every argument that is known for a latent, by name."""
    generator = torch.Generator().manual_seed(8)
    text, pooled = (_find(config, names) for names in (TEXT_WIDTHS, POOLED_WIDTHS))
    axes = len(_find(config, AXES) or (1, 1, 1))
    column = torch.arange(SIDE * SIDE)
    places = torch.stack([column * 0, column // SIDE, column % SIDE, column * 0][:axes], dim=1)
    levels = torch.tensor(LEVELS)
    sizes = torch.full((2, 2), float(SIDE))
    known: dict[str, Any] = dict.fromkeys(("timestep", "timesteps", "t", *RARE), levels)
    known |= dict.fromkeys(("original_size", "target_size"), sizes) | dict.fromkeys(MASKS, _draw_mask(TEXT))
    known |= {
        "hidden_states": latent, "sample": latent, "x": [one[:, None] for one in latent], "img_ids": places,
        "txt_ids": torch.zeros(TEXT, axes, dtype=torch.long),
        "crop_coords": 0 * sizes, "img_shapes": [[(1, SIDE, SIDE)]] * 2, "num_frames": 1, "height": SIDE, "width": SIDE,
        "visual_rope_pos": [torch.arange(size) for size in (FRAMES, SIDE // 2, SIDE // 2)],
        "text_rope_pos": torch.arange(TEXT),
    }  # fmt: skip
    if config.get("num_embeds_ada_norm"):
        known["class_labels"] = torch.tensor([1, 2])
    if config.get("guidance_embeds"):
        known["guidance"] = levels
    if isinstance(text, int):
        known["encoder_hidden_states"] = texts = torch.randn(2, TEXT, text, generator=generator)
        known["cap_feats"] = [texts[0], texts[1, :SHORTER]]
    if isinstance(pooled, int):
        known["pooled_projections"] = torch.randn(2, pooled, generator=generator)
    if latent.dim() != 3:
        # These describe a sequence of patches alone.
        known = {name: value for name, value in known.items() if name not in ("num_frames", "height", "width")}
    return known


def _find(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name)), None)
