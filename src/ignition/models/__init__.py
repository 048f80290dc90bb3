"""Plain PyTorch model families over static buffers."""
