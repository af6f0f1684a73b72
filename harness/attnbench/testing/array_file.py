"""Files with the arrays of one call of attention: what another program, of any language, computed.

A file is in the format ``npz`` of numpy or ``safetensors``. It has the arrays ``q``, ``k``, ``v`` and ``output``; it
may have ``mask``, ``sinks``, ``lse``, ``cotangent``, and gradients such as ``grad.q``. Its header is a JSON object with
the other arguments of ``assert_attention_close``: in ``safetensors`` under the key ``attention`` of the metadata, in
``npz`` the text of the array ``header``. Arrays of bits, as numpy stores a dtype that it lacks, have the header's
``dtype``.
"""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["read_call_file"]

# What the header may have, besides ``dtype``.
OPTIONS = ("layout", "is_causal", "scale", "enable_gqa", "cu_seqlens")
NEEDED = ("q", "k", "v", "output")
OPTIONAL = ("mask", "sinks", "lse", "cotangent")
GRADIENT = "grad."
# Dtypes of arrays that numpy stores as bits, by their names in a header.
STORED_AS_BITS = {
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}


def read_call_file(path: Path) -> dict[str, Any]:
    """Read the arguments of ``assert_attention_close`` from a file.

    Raises: ValueError with one line that names the file or array, what it must be, and what came.
    """
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"{path} must be a file .npz or .safetensors")
    try:
        arrays, header = _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    given = _read_header(path, header)
    dtype = given.pop("dtype", None)
    known = (*NEEDED, *OPTIONAL)
    if lacks := [name for name in NEEDED if name not in arrays]:
        raise ValueError(f"{path} needs the arrays {', '.join(NEEDED)}; it lacks {', '.join(lacks)}")
    if odd := [name for name in arrays if name not in known and not name.startswith(GRADIENT)]:
        raise ValueError(
            f"{path} has an unknown array {odd[0]!r}; available: {', '.join(known)}, {GRADIENT}q and so on"
        )
    tensors = {name: _convert(name, array, dtype) for name, array in arrays.items()}
    gradients = {name.removeprefix(GRADIENT): one for name, one in tensors.items() if name.startswith(GRADIENT)}
    plain = {name: one for name, one in tensors.items() if not name.startswith(GRADIENT)}
    return plain | given | ({"gradients": gradients} if gradients else {})


def _read_npz(path: Path) -> tuple[dict[str, Any], str | None]:
    try:
        # Opened here: numpy leaves a file open that is no whole archive.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a whole npz file: {error}") from error
    header = arrays.pop("header", None)
    return arrays, None if header is None else str(header)


def _read_safetensors(path: Path) -> tuple[dict[str, Any], str | None]:
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        raise ValueError(f"{path} needs the package safetensors: pip install safetensors") from error
    try:
        with safe_open(path, framework="pt") as stored:
            names = list(stored.keys())
            return {name: stored.get_tensor(name) for name in names}, (stored.metadata() or {}).get("attention")
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error


def _read_header(path: Path, text: str | None) -> dict[str, Any]:
    if text is None:
        where = "array header" if path.suffix == ".npz" else "metadata key attention"
        raise ValueError(f'{path} needs a header, a JSON object such as {{"layout": "bhsd"}}, in the {where}')
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the header of {path} must be a JSON object: {error}") from error
    if not isinstance(header, dict):
        raise ValueError(f"the header of {path} must be a JSON object, got {text:.60}")  # noqa: TRY004  # bad content
    if odd := [name for name in header if name not in (*OPTIONS, "dtype")]:
        raise ValueError(f"the header of {path} has {odd[0]!r}; available: dtype, {', '.join(OPTIONS)}")
    if isinstance(header.get("cu_seqlens"), list) and any(isinstance(one, list) for one in header["cu_seqlens"]):
        header["cu_seqlens"] = tuple(header["cu_seqlens"])
    return header


def _convert(name: str, array: Any, dtype: str | None) -> Tensor:
    """Return an array as a tensor; bits get the dtype of the header."""
    if isinstance(array, Tensor):
        return array
    if array.dtype.kind not in "Vu":
        try:
            return torch.from_numpy(np.ascontiguousarray(array))
        except TypeError as error:
            raise ValueError(f"{name} has the unknown dtype {array.dtype}") from error
    as_bits = {1: np.uint8, 2: np.uint16}.get(array.dtype.itemsize)
    wanted = STORED_AS_BITS.get(dtype or "")
    if as_bits is None or wanted is None or wanted.itemsize != array.dtype.itemsize:
        raise ValueError(
            f"{name} is stored as bits ({array.dtype}), so the header needs a dtype of this size: "
            f"{', '.join(STORED_AS_BITS)}; got {dtype}"
        )
    return torch.from_numpy(np.ascontiguousarray(array).view(as_bits)).view(wanted)
