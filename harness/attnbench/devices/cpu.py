"""The CPU, with the memory of the host."""

from attnbench.devices.device import Device

__all__ = ["CPU"]


class _Cpu(Device):
    name = torch_type = "cpu"
    noun = "CPU"
    product_rows = (512, 1024, 2048)
    copied_bytes = 2**28
    memory_errors = ("can't allocate memory", "Cannot allocate memory", "bad_alloc")

    def seed(self, number: int) -> None:
        """Seed torch's default generator.

        torch.manual_seed seeds the generators of all types of device and takes 0.3 ms; this takes 1 µs.
        """
        import torch

        torch.default_generator.manual_seed(number)


CPU = _Cpu()
