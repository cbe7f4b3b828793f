"""Names of CUDA C++ and of Triton, and what Numba has for them."""

import re

ATOMIC = re.compile(r"atomic(add|sub|max|min|exch|cas|and|or|xor|inc|dec)")
MEANT = {  # in small letters, without underscores
    "arange": "cuda.threadIdx.x: each thread works on one element",
    "barrier": "cuda.syncthreads()",
    "cdiv": "(x + y - 1) // y",
    "debugbarrier": "cuda.syncthreads()",
    "dot": "a loop over the products",
    "fdividef": "x / y",
    "fmaf": "cuda.fma(x, y, z)",
    "fmaxf": "max(x, y)",
    "fminf": "min(x, y)",
    "ldg": "x[i]",
    "localarray": "cuda.local.array(shape, dtype)",
    "max": "max(x, y)",
    "min": "min(x, y)",
    "numprograms": "cuda.gridDim.x",
    "programid": "cuda.blockIdx.x",
    "rsqrt": "1 / math.sqrt(x)",
    "sharedarray": "cuda.shared.array(shape, dtype)",
    "shared": "cuda.shared.array(shape, dtype)",
}
MEANT |= {f"{name}f": f"math.{name}(x)" for name in "cos exp exp2 log log2 sin sqrt tanh".split()}
TRITON = (
    "Triton works on blocks of elements, a kernel here on one element for each thread: "
    "cuda.blockIdx.x for tl.program_id(0), x[i] for tl.load, a loop over the products for tl.dot."
)

# Types, functions and modules of numba-cuda-mlir that only a GPU runs.
OF_MLIR = {
    "StructTypeWrapper": "A GPU would run it. Keep the fields in variables, or in records.",
    "UnionTypeWrapper": "A GPU would run it. cuda.libdevice.float_as_int(x) returns x's bits.",
    "inline_ptx": "It is PTX, which a GPU runs. Write it in Python.",
    "current_target_options": "It returns the options of a GPU's compiler. Give it as a constant.",
    "intrin": "It has single instructions of some GPUs.",
    "tcgen05_descriptors": "It describes tiles to the tensor cores of some GPUs.",
}


def meant(name):
    """What a name stands for elsewhere, as Numba writes it; None for a name of nobody's."""
    plain = name.replace("_", "").lower()
    if atomic := ATOMIC.fullmatch(plain):
        return f"cuda.atomic.{atomic[1]}(array, index, value)"
    return MEANT.get(plain)
