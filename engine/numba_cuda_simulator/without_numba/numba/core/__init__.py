"""The parts of Numba's core that are asked for by name."""
