"""The candidate (one implementation built for one case), its compilation, and torch's global state."""
