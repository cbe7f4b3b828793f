"""From a checked call to the GPU, or to the CPU engine.

arrays         the array decides where a kernel runs; the only file that knows CuPy from PyTorch
launching      launches a compiled kernel by the CUDA driver, without Numba's dispatcher
replay         repeats a call's allocations and launches without running the Python function again
plan_key       the key of a call: layouts and options
graphs         launches that a replay repeats, as a CUDA graph
kernel_cache   compiled kernels on disk
tensor_maps    descriptors of arrays for TMA, made once for each address
bfloat16       conversions of bfloat16 that replace numba-cuda's
quick_compiler remembers answers that Numba's compilers compute again and again
numpy_names    a NumPy name that NumPy has dropped and numba-cuda needs
simulator_options  options that Numba's own simulator does not know
replacing      writes a file as a whole

The caches of a call
--------------------
flash_attn_v2(q, k, v) on a GPU asks 1 to 5 in order. A hit in 1 skips 2 to 5, a hit in 3 skips 4
and 5, a hit in 4 skips 5:

1. replays            replay.replayed, one dict for each function. Key: layouts and options. A hit
                      allocates and launches as recorded, and runs nothing else of the function.
2. factories          functools.cache on each make_...(head_dim, ..., *mask). Key: the kernel's
                      compile-time constants. Value: the kernel, not compiled yet.
3. prepared launches  launching._prepared. Key: kernel, grid, block, shared memory, GPU, layouts
                      of the arrays. Value: the loaded kernel and its parameters.
4. loaded kernels     launching._load. Key: kernel, types of the arguments, GPU. Value: machine
                      code loaded by the driver.
5. disk               kernel_cache, ~/.cache/fa_numba. Key: bytecode of the kernel and of its
                      functions, constants, types, GPU, versions. Value: machine code. A miss
                      compiles with Numba, in seconds.
6. CUDA graphs        graphs.Launches. After eight repetitions a replay launches a graph instead of
                      its kernels. Addresses that come back get one of their own, up to 64 for each
                      replay and stream; one more graph is set to all others.
7. tensor maps        tensor_maps._maps, the descriptors that TMA needs of an array at its address.
8. constant arrays    arrays._constants, arrays that kernels only read, by shape and value.
9. plans of PyTorch   eager._plans of fa_numba.torch, before 1: a hit skips PyTorch's dispatcher.
                      eager._recent: those that were used last, by options.
10. operators         operators._recent of fa_numba.torch, before 1: for compiled graphs.
11. plans of the CPU  cpu.plans: results of checks, by layouts and options; in place of 1 to 8.
12. disk of the CPU   cpu.disk_cache: compiled functions, in a folder of 5.

1, 9 and 11 have one description of options in a key, `plan_key`. Every job of dispatch is itself
replayed, so that the choice of a kernel is made once for each key of its own.

On the CPU engine only the factories' cache matters. A call with Numba's own device arrays is never
replayed: it begins at 2.

Where numba-cuda's internals are used
-------------------------------------
launching      CUDADispatcher: .targetoptions, .extensions, .compile, .typeof_pyval; of a compiled
               kernel .cooperative, .launch_config_sensitive, ._codelibrary with ._entry_name,
               .get_cubin and .get_cufunc; the parameters of an array (its header)
kernel_cache   .py_func and .targetoptions of kernels; ._defn of an intrinsic; .mangling_args of
               a type
bfloat16       numba.cuda.bf16, whose conversions it overrides by lower_cast
quick_compiler BaseFunction: .get_call_type, ._impl_keys, .typing_key; TargetConfig: .values,
               .options, ._values; PostProcessor: .run, ._insert_var_dels; VariableLifetime;
               InlineClosureCallPass: .run, .func_ir; base._has_loc
               contexts: .refresh, ._registries, .typing_context, .get_abi_sizeof
numpy_names    numpy.row_stack, which numba-cuda overloads
arrays         as_cuda_array, external_stream and gpus, which are public
docs/architecture.md lists the files outside of this room.
"""
