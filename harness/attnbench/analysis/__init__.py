"""Analysis of stored samples: confidence intervals, speed verdicts, differences between runs.

Importing this package does not import torch.
"""
