"""The processes that the runner starts, one module each: ``python -m attnbench.workers.NAME``."""
