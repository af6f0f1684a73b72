"""Studies of the mechanisms: what is computed, and the figure that shows it."""
