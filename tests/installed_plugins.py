"""Distributions with entry points that are installed for one test."""

from pathlib import Path

from attnbench.plugins.registry import IMPLEMENTATIONS

__all__ = ["Installer"]


class Installer:
    """Creates distributions with entry points in a folder at the front of ``sys.path``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, distribution: str, *entries: str, group: str = IMPLEMENTATIONS) -> None:
        """Install a distribution with entry points like ``name = module:attribute``."""
        info = self.folder / f"{distribution}-1.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *entries, ""]))
