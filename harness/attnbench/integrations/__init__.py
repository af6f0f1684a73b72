"""Implementations inside real models: Hugging Face's transformers, and a sentence encoder."""
