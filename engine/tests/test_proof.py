"""Proofs for all sizes: what is proven has no fault at any size that is tried.

PROOF_SEEDS=1000 pytest tests/test_proof.py runs more random kernels; PROOF_FIRST=123 starts there.
"""

import ast
import inspect
import itertools
import os
import random
import sys
import textwrap

import numpy as np
import pytest
import z3  # noqa: F401 - without it, conftest skips this file
from affine_kernels import SHAPES, THREADS, affine_kernel, compiled
from numba import cuda, float32
from proof_launches import KERNELS, LAUNCHES

import numba_cuda_simulator as simt
from numba_cuda_simulator import command
from numba_cuda_simulator.errors import (
    BarrierDivergenceError,
    KernelError,
    KernelIndexError,
    RaceError,
)

NUM_SEEDS = int(os.environ.get("PROOF_SEEDS", 12))
FIRST_SEED = int(os.environ.get("PROOF_FIRST", 0))
FAULTS = BarrierDivergenceError, KernelIndexError, RaceError
SIZES = [dict(zip("gnm", x, strict=True)) for x in itertools.product((1, 2, 3), range(5), range(4))]


def value(text, sizes):
    return eval(str(text), {}, sizes)


def arrays(arguments, sizes, seed):
    """Return arguments of a size, as texts say them."""
    rng = np.random.default_rng(seed)
    for text in arguments:
        dtype, bracket, dims = str(text).partition("[")
        if not bracket:
            yield value(text, sizes)
            continue
        shape = value(f"({dims[:-1]},)", sizes)
        yield rng.integers(0, 90, shape).astype(dtype)


def fault(kernel, grid, block, arguments, all_sizes):
    """Return the first fault that the engine finds at some sizes, or None."""
    for sizes, seed in itertools.product(all_sizes, range(2)):
        blocks = value(grid, sizes)
        if np.min(blocks) < 1:
            continue
        try:
            with simt.options(uninitialised=False, compiled="never"):
                simt.run(kernel, blocks, block, *arrays(arguments, sizes, seed))
        except FAULTS as error:
            return sizes, error
        except KernelError:
            continue
    return None


@pytest.mark.filterwarnings("ignore::numba_cuda_simulator.errors.KernelWarning")
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + NUM_SEEDS))
def test_random_kernels(seed):
    """What is proven is right wherever it runs; what is refuted has been seen to fail."""
    kernel, text = affine_kernel(seed)
    pick = random.Random(seed).choice
    arguments = f"int64[{pick(SHAPES)}]", f"int64[{pick(SHAPES)}]", "n", "m"
    verdict = simt.prove(kernel, "g", THREADS, *arguments)
    if verdict:
        some = SIZES if NUM_SEEDS > 100 else SIZES[::5]
        assert fault(kernel, "g", THREADS, arguments, some) is None, text
    assert verdict.status != "refuted" or isinstance(verdict.error, FAULTS)


# --- the classic kernels, and faults planted in them ---------------------------------------------

UNDECIDED = {"quicksort", "insertion_sort", "histogram"}  # their indices depend on what they load
SLOW = {"bitonic_sort", "insertion_sort"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.thorough] * (n in SLOW))
                                  for n in LAUNCHES])  # fmt: skip
def test_classic_kernels(name):
    verdict = simt.prove(KERNELS[name], *LAUNCHES[name])
    assert verdict.status == ("undecided" if name in UNDECIDED else "proven"), verdict


class Mutation(ast.NodeTransformer):
    """Plants fault number `place`: a barrier less, < for <=, an index or a bound one more."""

    def __init__(self, place):
        self.place, self.count = place, 0

    def chosen(self):
        self.count += 1
        return self.count == self.place + 1

    def visit_Expr(self, node):
        if "syncthreads" in ast.unparse(node) and self.chosen():
            return ast.Pass()
        return self.generic_visit(node)

    def visit_Compare(self, node):
        self.generic_visit(node)
        if isinstance(node.ops[0], ast.Lt) and self.chosen():
            node.ops[0] = ast.LtE()
        return node

    def visit_Subscript(self, node):
        self.generic_visit(node)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if "shape" not in ast.unparse(node.value) and self.chosen():
            parts[0] = ast.BinOp(parts[0], ast.Add(), ast.Constant(1))
            node.slice = ast.Tuple(parts, ast.Load()) if len(parts) > 1 else parts[0]
        return node


def mutants(kernel):
    """Return the texts of a kernel with one fault each."""
    function = getattr(kernel, "py_func", None) or kernel.fn
    source = textwrap.dedent(inspect.getsource(function))
    for place in itertools.count():
        tree = ast.parse(source)
        mutation = Mutation(place)
        mutation.visit(tree)
        if mutation.count <= place:
            return
        tree.body[0].decorator_list, tree.body[0].name = [], "kernel"
        yield ast.unparse(ast.fix_missing_locations(tree)) + "\n"


MUTATED = "heat", "matrix_product", "transpose", "tree_sum", "prefix_sum", "stencil", "convolution"
PLANTED = [(n, i, text) for n in MUTATED for i, text in enumerate(mutants(KERNELS[n]))]
SOME = [pytest.param(*x[::2], id=f"{x[0]}-{x[1]}", marks=[pytest.mark.thorough] * (i % 6 > 0))
        for i, x in enumerate(PLANTED)]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), SOME)
def test_planted_faults(name, text):
    """A fault that the engine finds at some size is refuted, maybe at another size."""
    function = getattr(KERNELS[name], "py_func", None) or KERNELS[name].fn
    kernel, _ = compiled(text, **{k: v for k, v in vars(sys.modules[function.__module__]).items()
                                  if k in ("TILE", "float32", "int64", "math")})  # fmt: skip
    grid, block, *arguments = LAUNCHES[name]
    sizes = [
        dict(zip("gnmk", x, strict=True)) for x in [(1, 5, 4, 3), (2, 17, 33, 20), (3, 65, 16, 1)]
    ]
    found = fault(kernel, grid, block, arguments, sizes)
    verdict = simt.prove(kernel, grid, block, *arguments)
    assert not found or verdict.status == "refuted", (str(verdict), found)


# --- verdicts ------------------------------------------------------------------------------------


@cuda.jit
def shifted(x, out):
    tile = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.size:
        tile[t] = x[i]
    cuda.syncthreads()
    if i < x.size:
        out[i] = tile[(t + 1) % 32]


@cuda.jit
def scattered(x, where, out):
    i = cuda.grid(1)
    if i < x.size:
        out[where[i]] = x[i]


@cuda.jit
def sliced(x, out):
    out[:] = x[0]


@cuda.jit
def neighbours(x, out):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    for start in range(0, x.size, 64):
        tile[t] = x[start + t]
        cuda.syncwarp()
        out[start + t] = tile[t ^ 1]
        cuda.syncwarp()


@cuda.jit
def opposites(x, out):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncwarp()
    out[t] = tile[63 - t]


def test_a_warp_waits_for_itself_alone():
    assert simt.prove(neighbours, 1, 64, "float32[64 * n]", "float32[64 * n]")
    verdict = simt.prove(opposites, 1, 64, "float32[64]", "float32[64]")
    assert isinstance(verdict.error, RaceError)
    assert simt.prove(neighbours, 1, 32, "float32[64 * n]", "float32[64 * n]").error is None


def test_a_verdict():
    """It is true where it is proven, and says of which launches."""
    verdict = simt.prove(shifted, None, 32, "float32[n]", "float32[n]")
    assert verdict
    assert verdict.launch == "all n; any grid, block 32"
    assert "proven for all n; any grid, block 32. No race" in str(verdict)


def test_a_refutation():
    """It names the smallest sizes, and has what the engine says there."""
    verdict = simt.prove(shifted, "n // 32 + 1", 32, "float32[n]", "float32[n - 1]")
    assert verdict.status == "refuted"
    assert not verdict
    assert verdict.sizes == {"n": 1}
    assert isinstance(verdict.error, KernelIndexError)
    assert "refuted by a launch with n = 1, grid 1, block 32." in str(verdict)
    racing = simt.prove(shifted, "g", 64, "float32[n]", "float32[n]")
    assert isinstance(racing.error, KernelIndexError)  # a tile for half of the threads


def test_data_are_not_guessed():
    """An index that an array of integers holds is left open, and the reason names the line."""
    verdict = simt.prove(scattered, None, 64, "float32[n]", "int32[n]", "float32[n]")
    assert verdict.status == "undecided"
    assert "'where' is loaded at line" in str(verdict)


def test_what_is_not_followed():
    verdict = simt.prove(sliced, None, 64)
    assert verdict.status == "undecided"
    assert "slices" in verdict.reason
    assert "out[:] = x[0]" in verdict.reason


def test_facts():
    args = "float32[n]", "float32[m]"
    assert simt.prove(shifted, None, 32, *args).status == "refuted"
    assert simt.prove(shifted, None, 32, *args, where="m >= n")
    with pytest.raises(ValueError, match="no sizes fit"):
        simt.prove(shifted, None, 32, *args, where=("m > n", "n > m"))


@pytest.mark.parametrize(("arguments", "message"), [
    ((None, 32, "float32[n]"), "takes 2 arguments, got 1"),
    ((None, 0), "sizes from 1 on, got 0"),
    ((None, "a b"), "block must be"),
    ((None, 32, "float32[n", "float32[n]"), "argument 'x' must be"),
])  # fmt: skip
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        simt.prove(shifted, *arguments)


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "enable", lambda **_: None)  # of the whole process
    file = tmp_path / "kernels.py"
    file.write_text(
        "from numba import cuda\n\n@cuda.jit\ndef copy(x, out):\n    i = cuda.grid(1)\n"
        "    if i < x.size:\n        out[i] = x[i]\n"
    )
    launch = ["prove", f"{file}:copy", "--block", "64", "--arguments", "float32[n]"]
    with simt.options():  # the command sets some
        assert command.main([*launch, "float32[n]"]) == 0
        assert command.main([*launch, "float32[n - 1]"]) == 1
    assert "n = 1, grid 1, block 64" in capsys.readouterr().out
