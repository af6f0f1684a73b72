"""Benchmarks of this repository for asv; see docs/tracking.md."""
