"""How often attnbench finds real slowdowns and reports false ones: ``python -m research.detection --help``."""
