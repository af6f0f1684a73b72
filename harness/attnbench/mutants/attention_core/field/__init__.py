"""Mutants of kernels that public trackers report: sizes and branches (``kernels``), and strides (``strides``)."""
