"""How often real slowdowns are found and false ones are reported: ``python -m research.detection --help``."""
