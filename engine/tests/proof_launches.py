"""The classic kernels for all sizes: grid, thread block and arguments of `simt.prove`."""

from classic_kernels import CLASSICS

LINE, SQUARE = ("-(-n // 64)", 64), ("-(-m // 16), -(-n // 16)", (16, 16))
PLANE = "float32[n, m]"
LAUNCHES = {
    "pi": (*LINE, "turns", "int64[64 * -(-n // 64)]", "float64[64 * -(-n // 64)]"),
    "mandelbrot": (*SQUARE, "uint8[n, m]", "most"), "quicksort": ("g", 64, "int64[64 * g, n]"),
    "edit_distance": ("g", 64, "int64[64 * g, n]", "int64[64 * g + 1, 100]", "int64[64 * g]"),
    "collatz": (*LINE, "int64[n]"), "primes": (*LINE, "bool[n]"),
    "insertion_sort": ("g", 64, "float32[64 * g, n]", "turns"),
    "black_scholes": (*LINE, "float32[n]", "float32[n]"),
    "ray_caster": (*SQUARE, "float32[k, 4]", "int32[n, m]"), "heat": (*SQUARE, PLANE, PLANE),
    "game_of_life": (*SQUARE, "int64[n, m]", "int64[n, m]"),
    "convolution": (*LINE, "float32[n + k - 1]", "float32[k]", "float32[n]"),
    "matrix_vector": (*LINE, PLANE, "float32[m]", "float32[n]"),
    "n_body": ("g", 64, "float32[64 * g, 4]", "float32[64 * g, 3]"),
    "matrix_product": (*SQUARE, "float32[n, k]", "float32[k, m]", PLANE),
    "transpose": (*SQUARE, PLANE, "float32[m, n]"),
    "tree_sum": ("g", 128, "float32[128 * g]", "float32[g]"),
    "prefix_sum": ("g", 128, "int64[128 * g]", "int64[128 * g]"),
    "bitonic_sort": ("g", 128, "int64[128 * g]"), "odd_even_sort": (1, 256, "int64[n]", "turns"),
    "histogram": ("g", 128, "int64[n]", "int32[64]"), "stencil": (*LINE, "int64[n]", "int64[n]"),
}  # fmt: skip
KERNELS = {classic.name: classic.kernel for classic in CLASSICS}
