"""Multi-head attention; the reference is ``torch.nn.MultiheadAttention``."""
