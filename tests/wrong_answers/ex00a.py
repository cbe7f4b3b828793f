"""Wrong and right answers of ex00a: see tests/wrong_answers/__init__.py."""

IMPORT = "from numba import cuda\n"
INDEX = "    i = cuda.threadIdx.x\n"
BODY = "    out[i] = factor * x[i]"

WRONG = [
    ("the thread block's number", INDEX, INDEX.replace("threadIdx", "blockIdx")),
    ("the other axis", INDEX, INDEX.replace(".x\n", ".y\n")),
    ("off by one", INDEX, INDEX.replace(".x\n", ".x + 1\n")),
    ("the factor of the example", BODY, "    out[i] = x[i] + x[i] + x[i]"),
    ("factor added", BODY, "    out[i] = factor + x[i]"),
    ("in place", BODY, "    x[i] = factor * x[i]\n    out[i] = x[i]"),
    ("into x", BODY, "    x[i] = factor * x[i]"),
    ("one thread does all", INDEX + BODY, "    if cuda.threadIdx.x == 0:\n        for i in range(out.shape[0]):\n        " + BODY.lstrip() .replace("out", "    out")),
    ("every thread does all", INDEX + BODY, "    for i in range(out.shape[0]):\n    " + BODY),
    ("half of the threads", BODY, "    if i % 2 == 0:\n    " + BODY),
    ("through shared memory", [(IMPORT, "from numba import cuda, float32\n"), (BODY, "    tile = cuda.shared.array(1024, float32)\n    tile[i] = x[i]\n    out[i] = factor * tile[i]")]),
    ("through a local array", [(IMPORT, "from numba import cuda, float32\n"), (BODY, "    own = cuda.local.array(1, float32)\n    own[0] = x[i]\n    out[i] = factor * own[0]")]),
    ("scattered", INDEX, "    i = cuda.threadIdx.x * 33 % out.shape[0]\n"),
    ("512 elements at most", BODY, "    if i < 512:\n    " + BODY),
]  # fmt: skip

RIGHT = [
    ("counted from the end", INDEX, "    i = cuda.blockDim.x - 1 - cuda.threadIdx.x\n"),
    ("with a guard", BODY, "    if i < out.shape[0]:\n    " + BODY),
    ("cuda.grid and other names", """
from numba import cuda


@cuda.jit
def scale_vector(source, target, weight):
    place = cuda.grid(1)
    target[place] = source[place] * weight
"""),
    ("in one line", INDEX + BODY, "    out[cuda.threadIdx.x] = x[cuda.threadIdx.x] * factor"),
]  # fmt: skip

EQUIVALENT = []
