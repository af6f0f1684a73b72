"""Implementations inside other people's models: Hugging Face's, and the real sentence encoder."""
