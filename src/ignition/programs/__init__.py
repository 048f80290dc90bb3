"""One module per way to prepare a program: eager PyTorch, captured CUDA graphs, native code."""
