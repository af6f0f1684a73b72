"""Studies of the instrument itself; README.md says which claim each one supports."""
