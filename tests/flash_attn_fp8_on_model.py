"""flash_attn_fp8 by `hopper_model`: python tests/flash_attn_fp8_on_model.py CASE."""

import json
import sys

import ml_dtypes
import numpy as np
from hopper_model import GlobalArray, Model, replace_instructions

from fa_numba import reference
from fa_numba.ptx.wgmma import byte_offset
from fa_numba.tensor_core.quantize_fp8 import SUM_ROWS, slot_key, width_of

E4M3 = ml_dtypes.float8_e4m3fn
MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "mbarrier", "barriers", "ldmatrix", "tma")),
    *(f"ptx.{x}" for x in ("vectors", "wgmma")),
    "kernels.masks",
    "on_cuda_cores.run_time_masks",
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "lazy_rescaling", "shared_plan")),
    *(f"tensor_core.{x}" for x in ("tile_scheduler", "flash_attn_fp8")),
)
LOG2_E = np.float32(np.log2(np.e))


class FlatArray(GlobalArray):
    """An index beyond an axis reaches into the next one, as in memory."""

    def __getitem__(self, index):
        steps = zip(index, self.data.strides, strict=True)
        at = sum(int(i) * step for i, step in steps) // self.data.itemsize
        assert 0 <= at < self.data.size
        return self.data.ravel()[at]


class Fp8Model(Model):
    """The instructions on e4m3."""

    def wgmma_e4m3(self, n, k, width, d, a, b):
        def product(_):
            return self._bytes(a, 64, k, width) @ self._bytes(b, n, k, width).T

        self._start(d, n, (), product)

    def wgmma_e4m3_registers(self, n, k, width, d, a, b):
        def product(fragments):
            matrix = np.zeros((64, k), np.float32)
            for tid, fragment in enumerate(fragments):
                row, col = tid // 32 * 16 + tid % 32 // 4, 4 * (tid % 4)
                for step, registers in enumerate(fragment.reshape(-1, 4)[: k // 32]):
                    numbers = registers.view(E4M3).reshape(2, 2, 4)  # 16 columns, 8 rows, byte
                    for i, h in np.ndindex(2, 2):
                        at = 32 * step + 16 * i + col
                        matrix[row + 8 * h, at : at + 4] = numbers[i, h]
            return matrix @ self._bytes(b, n, k, width).T

        self._start(d, n, a, product)

    def pack_e4m3x4(self, *x):
        return int(np.array(x, np.float32).clip(-448, 448).astype(E4M3).view(np.uint32)[0])

    def _bytes(self, bits, rows, k, width):
        row, col = np.mgrid[:rows, :k]
        at = ((bits & 0x3FFF) << 4) + byte_offset(row, col, rows, width)
        return self.shared[at].view(E4M3).astype(np.float32)


def tiles_of(x, rows, multiple=1, of_v=False):
    """x, (seqlen, heads, head_dim), as `quantize_fp8` stores it: tiles, and their scales."""
    seqlen, heads, head_dim = x.shape
    count = -(-seqlen // (rows * multiple)) * multiple
    padded = np.zeros((count * rows, heads, head_dim))
    padded[:seqlen] = x
    tiles = padded.reshape(count, rows, heads, head_dim).transpose(2, 0, 1, 3)
    scales = np.maximum(abs(tiles).max((2, 3)), 2.0**-20) / 448
    tiles = tiles / scales[..., None, None]
    if of_v:
        slots = np.arange(rows) // 16 * 16 + [slot_key(i % 16) for i in range(rows)]
        sums = np.zeros((heads, count, SUM_ROWS, rows))
        sums[:, :, 0] = 1
        tiles = np.concatenate([tiles[:, :, slots].swapaxes(2, 3), sums], 2)
    row, col = np.mgrid[: tiles.shape[2], : tiles.shape[3]]
    stored = np.zeros((1, heads, count, row.size), np.uint8)
    at = byte_offset(row, col, tiles.shape[2], width_of(tiles.shape[3]))
    stored[..., at] = tiles.astype(E4M3).view(np.uint8)
    return stored, scales[None].astype(np.float32)


def main(seqlen_q, seqlen_k, heads, head_dim, causal, slices):
    """Compare out and lse with the definition; heads are (num_heads, num_kv_heads)."""
    model = Fp8Model(seed=seqlen_q)
    *_, fp8 = replace_instructions(model, MODULES)
    num_heads, num_kv_heads = heads
    rng = np.random.default_rng(seqlen_q)
    q = rng.standard_normal((1, seqlen_q, num_heads, head_dim))
    k, v = (rng.standard_normal((1, seqlen_k, num_kv_heads, head_dim)) for _ in range(2))
    want, want_lse = reference.attention(q, k, v, causal=causal)
    out = GlobalArray(model, np.full(q.shape, np.nan, np.float16))
    lse = GlobalArray(model, np.full(want_lse.shape, np.nan, np.float32))
    model.maps["out"] = out, 16
    given = tiles_of(q[0], 64, multiple=3), tiles_of(k[0], 128), tiles_of(v[0], 128, of_v=True)
    arrays = [GlobalArray(model, tiles) for tiles, _ in given]
    arrays += [FlatArray(model, scales) for _, scales in given]
    kernel = fp8.make_flash_attn_fp8(head_dim, causal, "float16", False)
    sizes = seqlen_k, num_heads // num_kv_heads, slices
    absent = fp8.absent_rows(seqlen_q, causal)
    scale = LOG2_E / np.float32(head_dim**0.5)
    model.launch(kernel, (2,), 512, *arrays, "out", lse, *sizes, scale, absent)
    error = np.square(out.data - want).mean() ** 0.5 / np.square(want).mean() ** 0.5
    print("out", error)
    assert error < 0.08
    seen = np.isfinite(want_lse)
    np.testing.assert_array_equal(lse.data[~seen], want_lse[~seen])
    assert abs(lse.data - want_lse)[seen].max() < 0.15


if __name__ == "__main__":
    np.seterr(all="ignore")  # numbers of memory that nobody has written
    main(**json.loads(sys.argv[1]))
