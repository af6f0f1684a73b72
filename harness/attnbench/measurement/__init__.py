"""Measurements of calls (time in interleaved samples, memory, kernels), and of the peak rates of the machine."""
