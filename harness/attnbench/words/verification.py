"""What ``attnbench verify`` says."""

__all__ = ["RIGHT", "WRONG"]

RIGHT = "{file}: right"
WRONG = "{file}: wrong. {facts}"
