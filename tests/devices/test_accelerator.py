"""Tests of what every accelerator does, on a fake of torch's module for a type of device."""

from typing import Any

import pytest

from attnbench.devices.device import Accelerator


class Backend:
    """Fake of a module such as ``torch.cuda``, with 80 GiB of memory; it records the calls in their order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.initialized = False

    def __getattr__(self, name: str) -> Any:
        """Return a function that records its call, and returns a fixed number."""
        numbers = {
            "memory_allocated": 10,
            "memory_reserved": 100,
            "max_memory_allocated": 17,
            "max_memory_reserved": 128,
        }

        def call(*given: Any) -> Any:
            self.calls.append((name, *given))
            return numbers.get(name, 0)

        return call

    def is_initialized(self) -> bool:
        """Return whether torch has initialized the type of device."""
        return self.initialized

    def get_device_properties(self, device: int) -> Any:
        """Return properties with the total memory of the device."""
        return type("Properties", (), {"total_memory": 80 * 2**30})


@pytest.fixture
def backend() -> Backend:
    """Return the fake."""
    return Backend()


@pytest.fixture
def accelerator(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """Return an accelerator with the fake."""
    made = type("Faked", (Accelerator,), {"torch_type": "faked"})()
    monkeypatch.setattr("torch.faked", backend, raising=False)
    return made


def test_a_peak_is_counted_from_an_empty_cache(accelerator: Accelerator, backend: Backend) -> None:
    """The device is idle before and after the call; both peaks are above the levels before it."""
    assert accelerator.measure_peak(lambda: backend.calls.append(("call",))) == (7, 28)
    assert [call[0] for call in backend.calls] == [
        "synchronize", "empty_cache", "reset_peak_memory_stats", "memory_allocated", "memory_reserved", "call",
        "synchronize", "max_memory_allocated", "max_memory_reserved",
    ]  # fmt: skip


def test_only_an_initialized_type_of_device_is_seeded(accelerator: Accelerator, backend: Backend) -> None:
    """To seed it would initialize it in processes that do not use it."""
    accelerator.seed(3)
    assert backend.calls == []
    backend.initialized = True
    accelerator.seed(3)
    assert backend.calls == [("manual_seed_all", 3)]


def test_a_limit_is_set_as_a_fraction(accelerator: Accelerator, backend: Backend) -> None:
    """The limit holds for the allocator of the current device."""
    accelerator.limit_memory(20 * 2**30)
    assert backend.calls == [("current_device",), ("set_per_process_memory_fraction", 0.25)]


def test_a_torch_without_the_module_has_no_such_device() -> None:
    """The device is not available, and seeding it does nothing."""
    absent = type("Absent", (Accelerator,), {"torch_type": "absent"})()
    assert not absent.is_available()
    absent.seed(0)
