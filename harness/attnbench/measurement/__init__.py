"""Measuring calls: time in interleaved samples, memory, kernels, and the limits of the machine."""
