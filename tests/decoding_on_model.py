"""The decoders on tensor cores by `hopper_model`: python tests/decoding_on_model.py CASE."""

import json
import sys
import types

import hopper_model
import numba
import numpy as np
import on_model
from ampere_model import AmpereModel
from cases import make_latent_case, make_qkv
from hopper_model import GlobalArray, replace_instructions
from numba import cuda

from fa_numba import reference
from fa_numba.checks import Mask
from fa_numba.kernels import e4m3

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "cp_async", "ldmatrix", "mma", "vectors")),
    *("kernels.masks", "on_cuda_cores.run_time_masks", "on_cuda_cores.decode_problem"),
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "shared_plan", "decoding")),
    *(f"tensor_core.{x}" for x in ("divided_columns", "flash_decode_columns", "mla_decode_mma")),
    "tensor_core.flash_decode_gather",
)
STATIC = hopper_model.SHARED_BYTES  # static arrays, whose addresses are taken, are behind the rest
hopper_model.SHARED_BYTES *= 2
SCALE = 0.3  # of latents


class DecodeModel(AmpereModel):
    """With static arrays in shared memory, shuffles, and the instructions on e4m3."""

    def replace_instructions(self, names):
        """`hopper_model.replace_instructions`: the modules, by the last words of their names."""
        modules = replace_instructions(self, names)
        self.dynamic, cuda.shared.array = cuda.shared.array, self.static_array
        cuda.shfl_sync = self.shuffle
        modules = {name.split(".")[-1]: x for name, x in zip(names, modules, strict=True)}
        modules = types.SimpleNamespace(**modules)
        modules.decoding.math = types.SimpleNamespace(log2=lambda x: np.log2(np.float32(x)))  # of 0
        return modules

    def shared_address(self, array):
        if not isinstance(array, np.ndarray) or array.base is None:
            return super().shared_address(array)
        return max(16, array.ctypes.data - self.shared.ctypes.data)

    def static_array(self, shape, dtype, align=16):
        if not shape:
            return self.dynamic(shape, dtype)
        thread = self._me()
        thread.static_arrays += 1  # all threads declare them in the same order
        if thread.static_arrays not in self.static:
            dtype = np.float32 if dtype is numba.float32 else np.int32
            start = STATIC + sum(-(-x.nbytes // 128) * 128 for x in self.static.values())
            array = self.shared[start : start + 4 * int(np.prod(shape))].view(dtype)
            self.static[thread.static_arrays] = array.reshape(shape)
        return self.static[thread.static_arrays]

    def shuffle(self, mask, x, lane):
        return self._meet("shuffle", 32, x)[int(lane)]

    def unpack_e4m3x4(self, x, four, order=(0, 1, 2, 3)):
        four = np.array([four], np.uint32).view(np.uint8)[[*order]]
        x[:2] = e4m3.decode(four, np.float16(1)).astype(np.float16).view(np.uint32)

    def unpack_e4m3_pairs(self, x, four):
        self.unpack_e4m3x4(x, four, (0, 2, 1, 3))

    def store_shared_b64(self, address, x):
        self.shared[address : address + 8].view(np.uint64)[0] = x

    def load_shared_b64(self, address):
        return int(self.shared[address : address + 8].view(np.uint64)[0])


class Run:
    """What the cases of the three decoders share: a model, its modules, lengths and pages."""

    def __init__(self, lengths, num_splits, page_size):
        self.model, self.num_splits = DecodeModel(sum(lengths)), num_splits
        self.modules = self.model.replace_instructions(MODULES)
        self.rng, self.seq_lens = np.random.default_rng(len(lengths)), np.array(lengths, np.int32)
        self.page_size, self.table = page_size or 0, self.modules.decode_problem.NO_TABLE
        if self.page_size:
            shape = len(lengths), -(-max(lengths) // page_size)
            self.table = self.rng.permutation(shape[0] * shape[1]).astype(np.int32).reshape(shape)

    def in_pages(self, x):
        """Rows of x, NaN past the end of each sequence, in the pages of the table, if there are."""
        if x.dtype.kind == "f":
            for b, length in enumerate(self.seq_lens):
                x[b, length:] = np.nan
        if not self.page_size:
            return x
        pages = np.zeros((self.table.size, self.page_size, *x.shape[2:]), x.dtype)
        rows = np.zeros((len(x), self.table.shape[1] * self.page_size, *x.shape[2:]), x.dtype)
        rows[:, : x.shape[1]] = x
        pages[self.table] = rows.reshape(*self.table.shape, *pages.shape[1:])
        return pages

    def size_of_pages(self):
        """As a kernel is made with it."""
        return self.modules.run_time_masks.AT_RUN_TIME if self.page_size > 1 else self.page_size

    def launch(self, kernel, grid, threads, inputs, want, *rest):
        """Partial results of the splits, by a kernel of these arrays and numbers."""
        parts = [np.full((self.num_splits, *x.shape), np.nan, np.float32) for x in want]
        given = [*inputs, self.table, self.seq_lens, *parts, *rest]
        given = [GlobalArray(self.model, x) if is_array(x) else x for x in given]
        self.model.launch(kernel, (grid,), threads, *given)
        return parts

    def check(self, parts, want, allowed):
        """Compare partial results, merged in float64, with the definition."""
        outs, lses = (x.astype(np.float64) for x in parts)
        on_model.merge(outs, lses, out := np.empty(want[0].shape), lse := np.empty(want[1].shape))
        error = np.abs(out - want[0]).max()
        print("out", error, "of", allowed)
        assert error <= allowed
        np.testing.assert_allclose(lse, want[1], rtol=1e-5, atol=1e-5)


def is_array(x):
    return isinstance(x, np.ndarray) and x.ndim > 0 and x.size > 0


def definition(q, k, v, seq_lens, **options):
    """By `reference` in float64, and the error that a plain computation in float16 may have."""
    want, plain = (
        reference.cached_attention(q, k, v, seq_lens, **options, dtype=dtype)
        for dtype in (np.float64, np.float16)
    )
    return want, 2 * np.abs(plain[0] - want[0]).max() + 1e-6


def columns(run, seqlen_q, heads, head_dim, mask, tiling):
    """flash_decode_columns: heads are (num_heads, num_kv_heads), mask is options of reference."""
    masks, decode = run.modules.run_time_masks, run.modules.flash_decode_columns
    sizes = len(run.seq_lens), seqlen_q, max(run.seq_lens), *heads, head_dim
    q, k, v = (x.astype(np.float16) for x in make_qkv(run.rng, *sizes))
    slopes = mask.get("alibi_slopes")
    if slopes is not None:
        mask["alibi_slopes"] = slopes = np.float32(slopes)
    want, allowed = definition(q, k, v, run.seq_lens, **mask)
    causal, window = mask.get("causal", False), tuple(mask.get("window_size", (-1, -1)))
    made = Mask(causal, window, mask.get("softcap", 0.0), slopes is not None)
    kernel = decode.make_flash_decode_columns(
        head_dim, "float16", run.size_of_pages(), *tiling, *masks.constants_of(made)
    )
    scalars = np.float32(head_dim**-0.5), np.float32(0) if slopes is None else slopes
    scalars += *run.modules.decode_problem.pages_of(run.page_size), *masks.arguments_of(made), ()
    inputs = q, run.in_pages(k), run.in_pages(v)
    parts = run.launch(kernel, 3, decode.THREADS, inputs, want, *scalars)
    run.check(parts, want, allowed)


def latent(run, seqlen_q, num_heads, columns, causal, tiling):
    """mla_decode_mma: columns are latent_dim and rope_dim."""
    decode, lengths = run.modules.mla_decode_mma, run.seq_lens
    case = make_latent_case(run.rng, lengths, seqlen_q, num_heads, *columns, run.page_size)
    q, cache = (x.astype(np.float16) for x in case[:2])
    k = cache[:, :, None]
    if run.page_size:
        run.table = case[3]
        k, _ = reference.paged_kv_lookup(k, k, run.table, lengths)
    options = {"causal": causal, "softmax_scale": SCALE}
    want, allowed = definition(q, k, k[..., : columns[0]], lengths, **options)
    kernel = decode.make_mla_decode_mma(
        columns[0], sum(columns), "float16", causal, run.size_of_pages(), *tiling
    )
    scalars = np.float32(SCALE), *run.modules.decode_problem.pages_of(run.page_size)
    parts = run.launch(kernel, 3, decode.THREADS, (q, cache), want, *scalars)
    run.check(parts, want, allowed)


def gather(run, heads, head_dim, scales, ring):
    """flash_decode_gather; of e4m3 the LEAN form must have the same bits."""
    (num_heads, num_kv_heads), batch = heads, len(run.seq_lens)
    sizes = batch, 1, max(run.seq_lens), num_heads, num_kv_heads, head_dim
    q, k, v = (x.astype(np.float16) for x in make_qkv(run.rng, *sizes))
    caches, exact, of_caches = [k, v], [k, v], [np.float32(0)] * 2
    if scales:
        axes = (0, 1, 3) if scales == "head" else 3
        of_caches = [e4m3.scale_of(np.abs(x.astype(np.float32)).max(axes)) for x in (k, v)]
        each = [x[:, None] if scales == "head" else x[..., None] for x in of_caches]
        caches = [e4m3.encode(x.astype(np.float32), s) for x, s in zip((k, v), each, strict=True)]
        exact = [e4m3.decode(x, s.astype(float)) for x, s in zip(caches, each, strict=True)]
    want = reference.cached_attention(q.astype(float), *exact, run.seq_lens)
    caches = [run.in_pages(x) for x in caches]
    of_caches = [run.in_pages(x) for x in of_caches] if scales == "token" else of_caches
    constants = head_dim, "float16", num_heads // num_kv_heads, run.page_size, *ring
    scalars = np.float32(head_dim**-0.5), np.float32(0)
    scalars += tuple(run.modules.decode_problem.pages_of(run.page_size))
    scalars += *run.modules.run_time_masks.arguments_of(Mask()), *of_caches, ()
    found = []
    for lean in (False, True)[: 1 + bool(scales)]:
        kernel = run.modules.flash_decode_gather.make_flash_decode_gather(
            *constants, False, (-1, -1), 0.0, False, scales, LEAN=lean
        )
        found.append(run.launch(kernel, 2, 32 * ring[0], (q, *caches), want, *scalars))
    assert all(x.tobytes() == y.tobytes() for x, y in zip(found[0], found[-1], strict=True))
    run.check(found[0], want, 1e-3)  # P in float16


if __name__ == "__main__":
    np.seterr(all="ignore")  # numbers of memory that nobody has written
    case = json.loads(sys.argv[1])
    run = Run(*(case.pop(name) for name in ("lengths", "num_splits", "page_size")))
    {"columns": columns, "latent": latent, "gather": gather}[case.pop("decoder")](run, **case)
