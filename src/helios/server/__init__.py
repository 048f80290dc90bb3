"""The OpenAI-compatible HTTP service."""
