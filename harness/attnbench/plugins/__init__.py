"""Plug-ins: find an object by entry point, module, file or source tree, load it, and adapt it to ``Implementation``."""
