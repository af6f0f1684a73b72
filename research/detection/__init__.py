"""How well a slowdown is found: ``python -m research.detection --help``."""
