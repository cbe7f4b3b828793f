"""Write docs/functions.md: every public function with the first sentence of its docstring.

python docs/make_functions.py [--check]
"""

import importlib
import inspect
import sys
from pathlib import Path

import fa_numba
from fa_numba import masks
from fa_numba.dispatch import JOBS
from fa_numba.workbook.tables import as_markdown

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "functions.md"

GROUPS = {
    "Jobs: by the fastest kernel that can": (
        "flash_attn flash_attn_grad flash_attn_varlen flash_attn_varlen_grad flash_decode "
        "paged_attn_decode mla_decode softmax softmax_topk which"
    ),
    "Softmax, one kernel each": (
        "naive_softmax safe_softmax online_softmax softmax_registers softmax_topk_warps"
    ),
    "Attention, one kernel each": (
        "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_v2_unsigned "
        "flash_attn_v2_4x4 flash_attn_registers flash_attn_bwd flash_attn_bwd_registers "
        "flash_attn_varlen_bwd linear_attn"
    ),
    "Parts of decoding, and pages": (
        "merge_states cascade_decode topk_decode paged_kv_lookup reshape_and_cache "
        "copy_pages swap_pages PagePool"
    ),
    "Where kernels run": "backend",
}

HEAD = """# All functions

`python docs/make_functions.py` writes this page from the docstrings, and a test fails where it is
out of date. Each name leads to its file; `help(fa_numba.flash_attn_v2)` says what each argument
must be. [Which function takes which option](features.md). [Every kernel](kernels.md): its GPUs,
dtypes and lesson.

## What all of them share

- Arrays of attention have the layout (batch, seqlen, num_heads, head_dim), packed ones
  (num_tokens, num_heads, head_dim): any lengths, head_dim from 1 to 256, in
  [some functions](features.md#what-all-of-them-share) to 512 and of v another one than of q and k,
  and a number of heads that is a multiple of the number of K/V heads. Their dtype is float32,
  float16 or bfloat16; everything is computed in float32, and results have the dtype of q.
- Strides are any, but neighbours along the last axis must be neighbours in memory.
- The array decides where a function runs: CuPy arrays and PyTorch's CUDA tensors on their GPU and
  stream. NumPy arrays run compiled for the CPU in a job, `fa_numba.cpu`, on as many threads as
  `numba.set_num_threads` allows; in `mla_decode`, and in a function that names its kernel, they
  run on the CPU engine. Tensors in CPU memory, and gradients by autograd, have
  [functions of their own](torch.md).
- `which(fa_numba.flash_decode, q, k_cache, v_cache, seq_lens)` says which kernel a job takes for
  these arrays, and why. `which(q, k, v)` is short for `flash_attn`.
- `causal` is bottom-right aligned. `window_size` (left, right; −1 is no limit), `softcap` and
  `alibi_slopes` combine with it in any way. `softmax_scale` is 1/√head_dim unless given.
- `dropout_p` and `seed`, where a function has them: dropout is drawn from the seed and the
  position of each entry, and never stored. dropout_p is rounded down to a multiple of 2⁻¹⁵. Every
  function drops the same entries for the same seed.
- `lse` is the natural log of the sum of each row's e^score, (batch, num_heads, seqlen_q),
  float32. A row that sees no key gives 0 and −inf.
- At most 65535 sequences in a batch, and as many heads: a CUDA grid has no more.
- A bad argument raises a TypeError or ValueError. The message names the argument, the rule and the
  value that it got.
- Options are given by name. An option by the name that another library has for it is an error,
  which says its name here.
- Compiled kernels are kept in `~/.cache/fa_numba`; `FA_NUMBA_CACHE` names another folder, or
  nothing for none. They are code that runs as you: nobody else may write to that folder, and a
  folder or a file of another user, root excepted, is refused. The very first call of a job on a CPU
  compiles it, which takes some seconds. To compile sooner, a few methods of Numba's are replaced
  where their text is known; `FA_NUMBA_QUICK_COMPILER=0` leaves them as they are.
- On a GPU, some options compile another kernel for each value:
  [the list](notes/launching.md#what-compiles-anew). On a CPU none does.
- A call can be captured in a CUDA graph, by `stream.begin_capture()` of CuPy or
  `torch.cuda.graph`, once it has been made before. Memory that a call allocates while CuPy
  captures it stays allocated, because the graph writes there.
"""

MODULES = """
## In modules of their own

16-bit and 8-bit kernels on tensor cores, and float32 by three TF32 products, are imported from
the module of their name: `from fa_numba.tensor_core.flash_attn_mma import flash_attn_mma`.
The jobs call them where they are the fastest. `flash_decode_wide` lies in
`fa_numba.on_cuda_cores.flash_decode_wide`. The lesson kernels that share their name with a job lie
in `fa_numba.kernels`: `fa_numba.kernels.flash_decode.flash_decode`.
"""

MASKS = """
## Masks: `fa_numba.masks`

`mask=masks.causal & masks.window(512)`: [masks](masks.md) has the pictures and the rules.
"""


def sentence(function):
    """The first sentence of a docstring, on one line."""
    return " ".join(inspect.getdoc(function).split("\n\n")[0].split())


def row(name, function):
    path = Path(inspect.getsourcefile(inspect.unwrap(function))).relative_to(ROOT)
    return f"[`{name}`](../{path})", sentence(function)


def table(functions):
    return as_markdown(["function", "purpose"], (row(*item) for item in functions.items()))


def modules():
    """Kernels that are imported from a module of their name."""
    found = {}
    for room, files in (
        ("kernels", [f"{job}.py" for job in JOBS]),
        ("on_cuda_cores", ["flash_*.py"]),
        ("tensor_core", ["flash_*.py", "mla_*.py"]),
    ):
        for path in sorted(x for file in files for x in (ROOT / "fa_numba" / room).glob(file)):
            function = getattr(importlib.import_module(f"fa_numba.{room}.{path.stem}"), path.stem)
            if getattr(fa_numba, path.stem, None) is not function:
                found[path.stem] = function
    return found


def page():
    """The text of docs/functions.md."""
    listed = [name for names in GROUPS.values() for name in names.split()]
    if sorted(listed) != sorted(fa_numba.__all__):
        odd = ", ".join(sorted(set(listed) ^ set(fa_numba.__all__))) or "a name that is there twice"
        raise ValueError(f"GROUPS must list each name of fa_numba.__all__ once; see {odd}")
    text = HEAD
    for title, names in GROUPS.items():
        functions = {name: getattr(fa_numba, name) for name in names.split()}
        text += f"\n## {title}\n\n{table(functions)}\n"
    text += f"{MODULES}\n{table(modules())}\n"
    return f"{text}{MASKS}\n{table({name: getattr(masks, name) for name in masks.__all__})}\n"


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv[1:]:
        sys.exit(PAGE.read_text(encoding="utf-8") != text and f"{PAGE} is out of date")
    PAGE.write_text(text, encoding="utf-8", newline="\n")
