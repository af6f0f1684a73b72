"""Clock rate of a GPU and the reasons for throttling, read from NVML. Importing this module does not import torch.

Source: NVML, https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html, read through nvidia-ml-py.
"""

from collections.abc import Callable

from attnbench.devices.timer import ClockReading

__all__ = ["MISSING", "Clocks"]

# Value of ``Clocks.source`` if nvidia-ml-py is not installed.
MISSING = "none: nvidia-ml-py is not installed; pip install nvidia-ml-py"


class Clocks:
    """Reads the clock rate of the device with this UUID.

    ``source`` is "NVML", or says why the clock cannot be read, with the remedy if there is one.
    """

    def __init__(self, uuid: str) -> None:
        self._read: Callable[[], ClockReading] | None = None
        try:
            self._read = _make_reader(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
            self._read()
            self.source = "NVML"
        except ImportError:
            self.source = MISSING
        except Exception as error:  # noqa: BLE001  # the driver may lack these functions; timing goes on without readings
            self._read = None
            self.source = f"none: NVML says {str(error) or type(error).__name__}"

    def read(self) -> ClockReading | None:
        """Read the clock rate and the throttling reasons.

        Return None if NVML cannot read this device at all, and a reading of zeros if only this reading failed.
        """
        if self._read is None:
            return None
        try:
            return self._read()
        except Exception:  # noqa: BLE001  # a single failed reading only invalidates its cycle
            return ClockReading(0, 0)


def _make_reader(uuid: str) -> Callable[[], ClockReading]:
    """Return a function that reads the clock rate of the device with this UUID.

    Raises: ImportError without nvidia-ml-py; an NVML error if there is no driver or no such device.
    """
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read() -> ClockReading:
        # The NVML function has had this name since version 535 of the driver and of nvidia-ml-py (June 2023).
        reasons = int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(device))
        return ClockReading(int(pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM)), reasons)

    return read
