"""Compile the kernels of docs/other_languages.md for an H100, without a GPU, and count.

python docs/other_languages/compile.py [--nvdisasm FILE]

Each language is compiled if its package is installed here: triton, nvidia-cutlass-dsl, cuda-tile
with nvidia-cuda-tileiras, mojo with max, cuda-bindings with nvidia-cuda-nvrtc, fa-numba. The counts
of instructions go to compiled.json; those of the languages that are missing here stay.
"""

import argparse
import contextlib
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ARCH = "sm_90a"
KINDS = {
    "barriers": r"BAR\.SYNC",
    "mbarrier waits": r"TRYWAIT",
    "copies by TMA": r"UTMALDG",
    "copies by cp.async": r"LDGSTS",
    "mma": r"\bHMMA",
    "wgmma": r"HGMMA",
    "tcgen05": r"UTCHMMA",
    "FFMA": r"FFMA",
}


def triton():
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton_kernel import flash_attn

    types = {"q": "*fp16", "k": "*fp16", "v": "*fp16", "out": "*fp32", "N": "i32", "scale": "fp32"}
    sizes = {"D": 64, "BLOCK_M": 64, "BLOCK_N": 64}
    types |= dict.fromkeys(sizes, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(4)}
    source = ASTSource(fn=flash_attn, signature=types, constexprs=sizes, attrs=aligned)
    return compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]


def cuda_tile(arch="sm_90"):
    import cuda.tile as ct
    from cuda.tile.compilation import (
        ArrayConstraint,
        CallingConvention,
        KernelSignature,
        export_kernel,
    )
    from cutile_kernel import flash_attn

    def array(dtype):
        return ArrayConstraint(
            dtype, 2, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=(),
            may_alias_internally=False, stride_constant=(None, 1), stride_divisible_by=(8, 1),
            base_addr_divisible_by=16,
        )  # fmt: skip

    arguments = [*[array(ct.float16)] * 3, array(ct.float32), 0.125, 64, 64, 64]
    signature = KernelSignature(arguments, CallingConvention.cutile_python_v1())
    file = io.BytesIO()
    export_kernel(flash_attn, [signature], file, gpu_code=arch, output_format="cubin")
    return file.getvalue()


def nvidia_cutlass_dsl():
    os.environ["CUTE_DSL_ARCH"] = ARCH
    import cutlass
    from cute_kernel import launch
    from cutlass import cute

    length = cute.sym_int()
    array = cute.runtime.make_fake_compact_tensor
    arrays = [array(cutlass.Float32, (length, 64), stride_order=(1, 0)) for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # it leaves a file
        compiled = cute.compile[cute.KeepCUBIN](launch, *arrays, cutlass.Float32(0.125))
        return compiled.artifacts.CUBIN


def cuda_bindings():
    from cuda.bindings import nvrtc

    def ask(function, *args):
        error, *rest = function(*args)
        assert int(error) == 0, f"{function.__name__}: {error}"
        return rest[0] if rest else None

    source = (HERE / "cuda_cpp.cu").read_bytes()
    program = ask(nvrtc.nvrtcCreateProgram, source, b"cuda_cpp.cu", 0, [], [])
    options = [f"--gpu-architecture={ARCH}".encode()]
    ask(nvrtc.nvrtcCompileProgram, program, len(options), options)
    cubin = b" " * ask(nvrtc.nvrtcGetCUBINSize, program)
    ask(nvrtc.nvrtcGetCUBIN, program, cubin)
    return cubin


def numba_cuda():
    import numpy as np

    sys.path.insert(0, str(HERE.parents[1] / "solutions"))
    from ex07d_flash_attn_v2 import make_kernel

    from fa_numba.analysis.machine_code import compile_kernel

    x, lse = np.zeros((1000, 64), np.float32), np.zeros(1000, np.float32)
    arguments = x, x, x, x, lse, np.float32(1)
    code = compile_kernel(make_kernel(64, 16, 16, False), arguments, cc=(9, 0))
    return code.cubin


def mojo():
    with tempfile.TemporaryDirectory() as folder:
        command = [
            Path(sys.executable).with_name("mojo"), "build", "--emit=asm",
            f"--target-accelerator={ARCH}", HERE / "mojo_kernel.mojo", "-o", f"{folder}/host.s",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        (ptx,) = Path(folder).glob("*.ptx")
        cubin = Path(folder) / "kernel.cubin"
        subprocess.run(["ptxas", f"-arch={ARCH}", ptx, "-o", cubin], check=True)
        return cubin.read_bytes()


def counts(cubin, nvdisasm):
    """How often each kind of instruction stands in the code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        ran = subprocess.run([nvdisasm, file.name], check=True, capture_output=True, text=True)
    return {kind: len(re.findall(pattern, ran.stdout)) for kind, pattern in KINDS.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--nvdisasm", default="nvdisasm", help="of the CUDA toolkit")
    nvdisasm = parser.parse_args().nvdisasm
    file = HERE / "compiled.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for compiler in (numba_cuda, triton, nvidia_cutlass_dsl, cuda_tile, cuda_bindings, mojo):
        package = compiler.__name__.replace("_", "-")
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            print(f"{package} is not installed here")
            continue
        cubins = {package: compiler()}
        if compiler is cuda_tile:
            cubins |= {f"{package} {arch}": compiler(arch) for arch in ("sm_80", "sm_100")}
        for key, cubin in cubins.items():
            found[key] = {"version": version} | counts(cubin, nvdisasm)
            print(key, found[key])
    file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
