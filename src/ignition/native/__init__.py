"""The native CPU backend: C kernels, their compilation for one geometry, and weight packing."""
