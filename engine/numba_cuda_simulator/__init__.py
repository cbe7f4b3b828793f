"""A CPU engine for Numba-CUDA kernels: all threads in lockstep, every access checked.

A launch: `hook` hands kernel[grid, block](...) to `launch`; `transform` rewrites the kernel once;
`names` looks up its globals; a `Machine` runs it, batch by batch; `watch` hears every access.
The machine's parts are `lanes`, `operators`, `memory`, `warps`, `atomics` and `names`: a class
each, which is given the parts that it uses.

Running a kernel

- hook: Numba's own launch syntax, on the engine
- launch: checks the arguments as a driver would, and runs the batches; `run` and `Machine`
- transform: rewrites a kernel, so that each statement runs for all threads at once
- syntax: which Python a kernel may be written in
- scopes: in which block of statements a variable lives
- names: what names mean inside a kernel
- signatures: what @cuda.jit("void(float32[:])") makes of arguments and results
- lanes: threads as array elements, control flow as masks
- operators: those whose meaning differs from NumPy's
- serial: launches of one thread, with Python's own control flow
- memory: indices to offsets, loads and stores, allocation
- arrays: arrays in global, shared and local memory
- records: arrays of NumPy's structured dtypes
- warps: barriers, shuffles and votes
- atomics: atomic operations
- intrinsics: cuda.*, casts and builtins
- mathematics: math.*, with Numba's result types
- dtypes: Numba's rules of types, where they differ from NumPy's
- libdevice: cuda.libdevice.*
- reductions: x.sum(), x.argmax(), ...: of a whole array, by each thread
- host: cuda.to_device and the like, in host memory
- present: the GPU that a program finds: cuda.gpus, contexts
- ufuncs: @vectorize and @guvectorize with target="cuda"
- overloads: what kernel.overloads, .signatures, .specialize(...) say where nothing is compiled
- generated: the text of functions that a program makes by exec
- cuda: `cuda` for kernels that name no Numba
- command: simt run, simt trace
- waits: loops in which threads wait for each other
- turns: the order of such threads: block by block, or thread by thread
- progress: how far a long launch has come

Long launches, compiled for the CPU

- second_gear: which launches
- compiled: compiling a kernel, and running it
- machine_code: what comes out, on disk and in memory
- kept_files: files of compiled code, whole and of this user alone
- split: loops over blocks and threads, from barrier to barrier
- emit: a function's statements and expressions
- watched: loads, stores and atomics that check indices and watch for races
- native: operators and functions, with the engine's types

Watching it

- watch: hears every access, counts it and looks for races
- race_rules: which accesses race, and what orders them
- shared_races: races in shared memory, and values that a missing barrier would leave stale
- global_races: races in global memory
- histories: shared memory's accesses, once for all blocks that behave alike
- shadow: who touched each element last
- fences: the order between blocks that a fence and an atomic make
- findings: races and uninitialised reads, as sentences

Counting it

- trace: all that was counted; `trace`, `tracing`
- counters: sectors, wavefronts and bank conflicts
- flops: floating-point operations
- recording: every access in order, for drawings; `record`
- following: variables after each line, for drawings; `follow`

For all sizes

- proof: no race and no wrong index at any size, or a launch that shows one; `prove`
- walk: a kernel's accesses as expressions of threads, loops and sizes
- integers: these expressions
- questions: put to Z3

For all of them

- errors: what goes wrong, in the learner's own terms
- other_names: those of CUDA C++ and Triton
- options: settings
- devices: the facts of a GPU that a launch depends on
- without_runtime: imports numba-cuda where CUDA's runtime library is missing

The folder `without_numba` has Numba's names, for a Python that has no Numba.
"""

from . import without_numba, without_runtime

without_numba.install()  # before anything asks for a name of Numba
without_runtime.import_numba_cuda()

from . import errors  # noqa: E402
from .following import follow  # noqa: E402
from .hook import disable, enable, has_gpu, is_enabled  # noqa: E402
from .launch import run, trace, tracing  # noqa: E402
from .options import options  # noqa: E402
from .proof import prove  # noqa: E402
from .recording import record  # noqa: E402

__all__ = [
    "disable", "enable", "errors", "follow", "has_gpu", "is_enabled", "options", "prove", "record",
    "run", "trace", "tracing",
]  # fmt: skip
