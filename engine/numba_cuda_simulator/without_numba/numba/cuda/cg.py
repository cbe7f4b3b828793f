"""The name of CUDA's cooperative groups."""
