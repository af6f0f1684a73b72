"""Plug-ins: found by entry point, module, file or source tree, loaded, and adapted to implementations."""
