"""How often slowdowns are found, and false ones reported: ``python -m research.detection --help``."""
