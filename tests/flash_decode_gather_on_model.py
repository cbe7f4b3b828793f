"""flash_decode_gather by `hopper_model`: python tests/flash_decode_gather_on_model.py CASE."""

import itertools
import json
import sys
import types

import hopper_model
import numba
import numpy as np
from ampere_model import AmpereModel
from hopper_model import GlobalArray, replace_instructions
from numba import cuda

from fa_numba import reference
from fa_numba.checks import Mask
from fa_numba.kernels import e4m3

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "cp_async", "ldmatrix", "mma", "vectors")),
    *("kernels.masks", "on_cuda_cores.run_time_masks", "on_cuda_cores.decode_problem"),
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "shared_plan", "decoding")),
    "tensor_core.flash_decode_gather",
)
STATIC = hopper_model.SHARED_BYTES  # static arrays, whose addresses are taken, are behind the rest
hopper_model.SHARED_BYTES *= 2


class DecodeModel(AmpereModel):
    """With static arrays in shared memory, shuffles, and the instructions on e4m3."""

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


def main(lengths, num_heads, num_kv_heads, head_dim, page_size, scales, ring, num_splits):
    """Compare with float64; the LEAN form must have the same bits."""
    model = DecodeModel(seed=sum(lengths))
    modules = dict(zip(MODULES, replace_instructions(model, MODULES), strict=True))
    gather, masks, problem, decoding = (
        modules[name] for name in (MODULES[-1], MODULES[7], MODULES[8], MODULES[-2])
    )
    decoding.math = types.SimpleNamespace(log2=lambda x: np.log2(np.float32(x)))  # of 0, too
    model.dynamic, cuda.shared.array = cuda.shared.array, model.static_array
    cuda.shfl_sync = model.shuffle
    rng, batch, longest = np.random.default_rng(0), len(lengths), max(lengths)
    q = rng.standard_normal((batch, 1, num_heads, head_dim)).astype(np.float16)
    k, v = (
        rng.standard_normal((batch, longest, num_kv_heads, head_dim)).astype(np.float16)
        for _ in "kv"
    )
    caches, exact, of_caches = [k, v], [k, v], [np.float32(0)] * 2
    if scales:
        axes = (0, 1, 3) if scales == "head" else 3
        of_caches = [e4m3.scale_of(np.abs(x.astype(np.float32)).max(axes)) for x in (k, v)]
        each = [x[:, None] if scales == "head" else x[..., None] for x in of_caches]
        caches = [e4m3.encode(x.astype(np.float32), s) for x, s in zip((k, v), each, strict=True)]
        exact = [e4m3.decode(x, s.astype(float)) for x, s in zip(caches, each, strict=True)]
    seq_lens, table = np.array(lengths, np.int32), problem.NO_TABLE
    want, want_lse = reference.cached_attention(q.astype(float), *exact, seq_lens)
    if page_size:
        pages = -(-longest // page_size)
        table = rng.permutation(batch * pages).astype(np.int32).reshape(batch, pages)

        def in_pages(x):
            moved = np.zeros((batch * pages, page_size, *x.shape[2:]), x.dtype)
            for b, t in itertools.product(range(batch), range(longest)):
                moved[table[b, t // page_size], t % page_size] = x[b, t]
            return moved

        caches = [in_pages(x) for x in caches]
        of_caches = [in_pages(x) for x in of_caches] if scales == "token" else of_caches
        table = GlobalArray(model, table)
    found = []
    for lean in (False, True)[: 1 + bool(scales)]:
        group, size = num_heads // num_kv_heads, page_size or 0
        constants = head_dim, "float16", group, size, *ring, False, (-1, -1), 0.0, False, scales
        outs = np.full((num_splits, *want.shape), np.nan, np.float32)
        lses = np.full((num_splits, *want_lse.shape), np.nan, np.float32)
        given = [GlobalArray(model, x) for x in (q, *caches, seq_lens, outs, lses)]
        given.insert(3, table)
        scalars = np.float32(head_dim**-0.5), np.float32(0), *problem.pages_of(size)
        scalars += tuple(masks.arguments_of(Mask()))
        of_e4m3 = [GlobalArray(model, x) if scales else x for x in of_caches]
        kernel = gather.make_flash_decode_gather(*constants, LEAN=lean)
        model.launch(kernel, (2,), 32 * ring[0], *given, *scalars, *of_e4m3, ())
        found.append((given[-2].data, given[-1].data))
    assert all(x.tobytes() == y.tobytes() for x, y in zip(found[0], found[-1], strict=True))
    outs, lses = (x.astype(float) for x in found[0])
    lse = np.logaddexp.reduce(lses, axis=0)
    weights = np.exp(lses - np.where(np.isneginf(lse), 0, lse))
    error = np.abs(np.einsum("sbhm,sbmhd->bmhd", weights, outs) - want).max()
    print("out", error)
    assert error <= 1e-3  # P in float16
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    np.seterr(all="ignore")  # numbers of memory that nobody has written
    main(**json.loads(sys.argv[1]))
