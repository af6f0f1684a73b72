"""Built-in implementations of multi-head attention, one idea per file."""
