"""The implementations that a worker's process has loaded, and the settings and limits of the process."""

import resource
from dataclasses import asdict
from functools import cache
from typing import Any

import msgspec
import torch

from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.devices import HOST, get_device, list_devices
from attnbench.interface import Implementation, Inputs, Policies
from attnbench.measurement.instrument import Instrument
from attnbench.measurement.libraries import use_libraries
from attnbench.measurement.processor_time import adopt_orphans, limit_cores
from attnbench.oracle.inputs import load_inputs
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.judged_sources import read_sources
from attnbench.plugins.registry import OPERATORS, PluginError, list_names, load_operator, load_problem_types
from attnbench.processes.candidate_requests import Declared, LoadImplementation, StartCandidate
from attnbench.processes.request import Fault, Handler
from attnbench.records import environment

__all__ = ["LoadedImplementations"]

# Number of elements of a tensor that torch's threads add together: 16 times at::internal::GRAIN_SIZE, 32768 elements.
SHARED_ELEMENTS = 1 << 19


class LoadedImplementations:
    """Loads implementations, and builds candidates from them.

    Several worker objects in one process can share one ``LoadedImplementations``.
    """

    def __init__(self) -> None:
        self._problems = load_problem_types()
        # Cached, because each look-up of an entry point reads the metadata of all installed packages, which takes 8 ms.
        self.load_operator = cache(load_operator)
        self._implementations: dict[str, Implementation] = {}
        # torch's settings after the last implementation was loaded.
        self._settings: dict[str, Any] = {}
        # Requested number of torch's threads. An implementation may change torch's number while it is loaded.
        self._threads = torch.get_num_threads()
        # What measurements rely on, as it was before implementations were loaded; None in a process that times nothing.
        self._instrument: Instrument | None = None
        # Bytes of device memory that an implementation may use while it is the only one that runs; None for no limit.
        self._device_memory_bytes: int | None = None

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that start the process and load implementations."""
        return [StartCandidate.answered_by(self.start), LoadImplementation.answered_by(self.load)]

    def start(self, request: StartCandidate) -> int:
        """Set torch's number of threads and limit the address space; return the number of threads.

        The memory of a device is limited later, before the first inputs are loaded onto the device.
        """
        self._device_memory_bytes = request.device_memory_bytes
        if request.threads:
            torch.set_num_threads(request.threads)
        self._threads = torch.get_num_threads()
        if request.timed_without is not None:
            if "processor" not in request.timed_without:
                limit_cores(self._threads)
                adopt_orphans()
            if self._threads > 1:
                # Starts OpenMP's threads. If OMP_PROC_BIND binds them to cores, they are bound before the cores of the
                # process are read.
                torch.zeros(SHARED_ELEMENTS).add_(1)
            if "libraries" not in request.timed_without:
                use_libraries()
            self._instrument = Instrument()
        accelerators = [device for device in list_devices() if device.name != HOST and device.is_available()]
        if request.memory_limit_bytes and not accelerators:
            # On machines with an accelerator the address space is not limited, because a context of CUDA reserves far
            # more address space than it uses.
            limit = environment.read_address_space_bytes() + request.memory_limit_bytes
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            # A process cannot raise its own limit, which an earlier request may have set.
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return torch.get_num_threads()

    def load(self, request: LoadImplementation) -> Declared | Fault:
        """Load an implementation and return what it declares."""
        name = request.implementation
        try:
            loaded = load_implementation(name)
            self._check_operator(name, loaded.operator)
        except PluginError as error:
            return Fault(reason=str(error))
        try:
            policies = msgspec.convert(asdict(loaded.policies), Policies)
            self._check_row_policies(loaded.operator, policies)
        except (msgspec.ValidationError, ValueError) as error:
            return Fault(reason=f"{name!r} declares policies that attnbench.Policies does not allow: {error}")
        self._implementations[name] = loaded
        if self._instrument is not None:
            self._instrument.accept_signal_handlers()
        self._settings = global_state.read_settings()
        return Declared(
            operator=loaded.operator,
            source=str(loaded.source),
            policies=policies,
            compiles=bool(loaded.compiles),
            environment={str(key): str(value) for key, value in loaded.environment().items()},
            sources=read_sources(name),
        )

    def _check_operator(self, name: str, operator: str) -> None:
        """Check that the operator of an implementation is known.

        Raises: PluginError if the operator is unknown, or if it is registered but cannot be loaded.
        """
        if operator in self._problems:
            return
        if operator in list_names(OPERATORS):
            load_operator(operator)
        available = ", ".join(sorted(self._problems))
        raise PluginError(f"{name!r} computes an unknown operator {operator!r}; available: {available}")

    def _check_row_policies(self, operator: str, policies: Policies) -> None:
        """Check that an operator has expected values for the declared policies on fully masked rows.

        Raises: ValueError if it has none.
        """
        declared = (policies.hidden_rows, policies.hidden_row_gradients)
        if declared != ("zero", "exact") and declared not in self.load_operator(operator).row_policies:
            raise ValueError(
                f"the operator {operator} has no expected values for hidden_rows={declared[0]!r} with "
                f"hidden_row_gradients={declared[1]!r}; leave them out, and list the deviation as expected failure"
            )

    def get(self, name: str) -> Implementation:
        """Return the loaded implementation to which the user gave this name."""
        return self._implementations[name]

    def get_instrument(self) -> Instrument:
        """Return what measurements rely on, as it was before implementations were loaded; they must be timed here."""
        assert self._instrument is not None
        return self._instrument

    def parse_case(self, case: str) -> Case:
        """Parse a case id."""
        return Case.parse(case, self._problems)

    def restore_settings(self) -> None:
        """Restore torch's settings as they were after the last implementation was loaded."""
        global_state.restore_settings(self._settings)

    def restore_threads(self) -> None:
        """Set torch's number of threads to the requested number."""
        torch.set_num_threads(self._threads)

    def load_inputs(self, file: str, device: str) -> Inputs:
        """Load the inputs of a case; set the limit of the memory of a device first.

        Interleaved timing loads its inputs without the limit: its process has a copy of the inputs for each
        implementation, and each implementation has already run alone under the limit.
        """
        if self._device_memory_bytes:
            get_device(device).limit_memory(self._device_memory_bytes)
        return load_inputs(file, device)

    def build_candidate(self, name: str, case: Case, inputs: Inputs) -> Candidate:
        """Build the candidate of an implementation and a case."""
        return Candidate(self.get(name), self.load_operator(case.operator), case, inputs)
