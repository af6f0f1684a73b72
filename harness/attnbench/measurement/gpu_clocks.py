"""What a device's driver says of its clocks: how fast they run, and why no faster. Importing this imports no torch.

Source: NVML, https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html, read through nvidia-ml-py.
"""

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["MISSING", "Clocks", "Reading"]

# What a record says where the package is not there.
MISSING = "none: nvidia-ml-py is not installed; pip install nvidia-ml-py"


class Reading(NamedTuple):
    """One look at a device: the clock of its multiprocessors, and a bit for each reason that holds it down."""

    # 0 where it could not be read.
    sm_mhz: int
    reasons: int


class Clocks:
    """Reads one device, named by its UUID, for as long as that works.

    ``source`` is "NVML", or says why there are no readings, with the remedy where there is one.
    """

    def __init__(self, uuid: str) -> None:
        self._read: Callable[[], Reading] | None = None
        try:
            self._read = _reader(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
            self._read()
            self.source = "NVML"
        except ImportError:
            self.source = MISSING
        except Exception as error:  # noqa: BLE001  # the driver may lack any of it, and time is taken all the same
            self._read = None
            self.source = f"none: NVML says {str(error) or type(error).__name__}"

    def read(self) -> Reading | None:
        """The clock now, or None where there are no readings at all."""
        if self._read is None:
            return None
        try:
            return self._read()
        except Exception:  # noqa: BLE001  # it worked before: this one is lost, and with it the cycle
            return Reading(0, 0)


def _reader(uuid: str) -> Callable[[], Reading]:
    """What reads a device.

    Raises: ImportError without nvidia-ml-py; whatever it raises without a driver or without that device.
    """
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read() -> Reading:
        # Under this name since driver and package 535, of June 2023.
        reasons = int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(device))
        return Reading(int(pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM)), reasons)

    return read
