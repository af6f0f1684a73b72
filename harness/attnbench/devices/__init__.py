"""The kinds of device on which cases run: what differs between them, one object for each kind.

``get_device`` returns the device that a case id names. The names, and what words and the runner need of a device, are
read without torch; a method that needs torch imports it. Code for one kind of device stands in this package only: the
rest of the harness asks the device. To add a device, write one module with one object, and name it in ``BUILT_IN``; a
device of another distribution is an entry point of the group ``attnbench.devices``.

The code for CUDA last ran on the machine of ``results/h100``. It was moved into this package later, and was not run on
a CUDA device since. The devices ``mps`` and ``xpu`` were never run: they are registered with what torch offers.
"""

from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnbench.devices.device import Device

__all__ = ["HOST", "find_device", "get_device", "list_device_names", "list_devices"]

GROUP = "attnbench.devices"
# Name of the device whose memory and processors this process uses anyway.
HOST = "cpu"
# Modules of this package with a device each, whose name in capitals is the object's. They are imported when needed.
BUILT_IN = ("cpu", "cuda", "mps", "xpu")


@cache
def _find_entries() -> dict[str, EntryPoint]:
    own = (EntryPoint(name, f"{__name__}.{name}:{name.upper()}", GROUP) for name in BUILT_IN)
    return {entry.name: entry for entry in (*entry_points(group=GROUP), *own)}


def list_device_names() -> tuple[str, ...]:
    """Return the names of all registered devices, without importing them."""
    return tuple(sorted(_find_entries()))


# Cached, because the device of a case is asked for at every check.
@lru_cache
def get_device(name: str) -> "Device":
    """Return the device of this name.

    Raises: ValueError if no device of this name is registered, or if its module cannot be imported.
    """
    if name not in _find_entries():
        raise ValueError(f"unknown device {name!r}; available: {', '.join(list_device_names())}")
    try:
        device: Device = _find_entries()[name].load()
    except Exception as error:  # a plug-in may raise any exception on import
        raise ValueError(f"cannot import the device {name!r}: {type(error).__name__}: {error}") from error
    return device


def find_device(name: str) -> "Device | None":
    """Return the device of this name; None if it is not registered here or cannot be imported."""
    try:
        return get_device(name)
    except ValueError:
        return None


@cache
def list_devices() -> tuple["Device", ...]:
    """Return all registered devices that can be imported: one that cannot affects only the runs that name it."""
    return tuple(device for name in list_device_names() if (device := find_device(name)) is not None)
