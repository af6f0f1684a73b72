"""Measurements of calls (time in interleaved samples, memory, device kernels), and of the peak rates of the machine."""
