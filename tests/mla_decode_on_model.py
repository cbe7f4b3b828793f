"""mla_decode_mma by `hopper_model`: python tests/mla_decode_on_model.py CASE."""

import json
import sys

import numpy as np
from cases import make_latent_case
from hopper_model import GlobalArray, Model, replace_instructions

from fa_numba import reference
from fa_numba.ptx import layouts

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "cp_async", "ldmatrix", "mma", "vectors")),
    *("kernels.masks", "on_cuda_cores.run_time_masks", "on_cuda_cores.decode_problem"),
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "shared_plan", "decoding")),
    "tensor_core.mla_decode_mma",
)
EARLY = 0.5  # chance that a copy is made when it is started; the others are made when awaited
SCALE = 0.3


class AmpereModel(Model):
    """cp.async, ldmatrix and mma.sync."""

    def _mine(self):
        me = self._me()
        if not hasattr(me, "copies"):
            me.copies, me.committed = [], []
        return me

    def cp_async_16(self, destination, source, num_bytes):
        assert destination % 16 == source % 16 == 0

        def copy():
            part = self.shared[destination : destination + 16]
            part[num_bytes:] = 0
            if num_bytes:
                part[:num_bytes] = self._global(source, 16)[:num_bytes]

        if self.random.random() < EARLY:
            copy()
        else:
            self._mine().copies.append(copy)

    def cp_async_commit(self):
        me = self._mine()
        me.committed.append(me.copies)
        me.copies = []

    def cp_async_wait(self, pending):
        committed = self._mine().committed
        for group in committed[: -pending or None]:
            for copy in group:
                copy()
        del committed[: -pending or None]

    def load_global_b32(self, address):
        return int(self._word(address)[0])

    def ldmatrix_x4(self, fragment, address):
        self._load_matrices(fragment, address, layouts.ldmatrix())

    def ldmatrix_x4_trans(self, fragment, address):
        self._load_matrices(fragment, address, layouts.ldmatrix(trans=True))

    def _load_matrices(self, fragment, address, elements):
        def load(given):
            starts = np.array([start for start, _ in given])
            assert (starts % 16 == 0).all()
            rows = self.shared.view(np.uint16)[starts[:, None] // 2 + np.arange(8)]
            for lane, (_, to) in enumerate(given):
                halves = rows.reshape(4, 8, 8)[:, elements[0][lane], elements[1][lane]]
                to.reshape(-1)[:] = np.ascontiguousarray(halves).view(np.uint32)[:, 0]

        self._meet("ldmatrix", 32, (address, fragment), load)

    def mma_m16n8k16_f16(self, d, a, b):
        def multiply(given):
            matrices = np.empty((16, 16), np.float32), np.empty((16, 8), np.float32)
            layout = layouts.mma_a(), layouts.mma_b()
            for matrix, (row, col), i in zip(matrices, layout, (1, 2), strict=True):
                registers = np.stack([x[i] for x in given])
                matrix[row, col] = registers[..., None].view(np.float16)
            product = (matrices[0] @ matrices[1])[layouts.mma_d()]
            for lane, (to, _, _) in enumerate(given):
                to += product[lane]

        self._meet("mma", 32, (d, a.copy(), b.copy()), multiply)


def main(lengths, seqlen_q, num_heads, columns, page_size, causal, num_splits, tiling):
    """Compare partial results, merged in float64, with the definition.

    columns are latent_dim and rope_dim, tiling is (BLOCK_N, STAGES).
    """
    model = AmpereModel(seed=sum(lengths))
    modules = dict(zip(MODULES, replace_instructions(model, MODULES), strict=True))
    decode, masks, problem = (
        modules[name]
        for name in (MODULES[-1], "on_cuda_cores.run_time_masks", "on_cuda_cores.decode_problem")
    )
    rng = np.random.default_rng(len(lengths))
    case = make_latent_case(rng, lengths, seqlen_q, num_heads, *columns, page_size)
    q, cache, seq_lens, table = case
    q, cache = q.astype(np.float16), cache.astype(np.float16)
    k = cache[:, :, None]
    if page_size:
        k, _ = reference.paged_kv_lookup(k, k, table, seq_lens)
    v = k[..., : columns[0]]
    options = {"causal": causal, "softmax_scale": SCALE}
    want, plain = (
        reference.cached_attention(q, k, v, seq_lens, **options, dtype=dtype)
        for dtype in (np.float64, np.float16)
    )
    constant_size = masks.AT_RUN_TIME if (page_size or 0) > 1 else page_size or 0
    kernel = decode.make_mla_decode_mma(
        columns[0], sum(columns), "float16", causal, constant_size, *tiling
    )
    outs = np.full((num_splits, *want[0].shape), np.nan, np.float32)
    lses = np.full((num_splits, *want[1].shape), np.nan, np.float32)
    given = [GlobalArray(model, x) for x in (q, cache, seq_lens, outs, lses)]
    given.insert(2, problem.NO_TABLE if table is None else GlobalArray(model, table))
    scalars = np.float32(SCALE), *problem.pages_of(page_size or 0)
    model.launch(kernel, (3,), decode.THREADS, *given, *scalars)
    outs, lses = given[-2].data.astype(np.float64), given[-1].data.astype(np.float64)
    lse = np.logaddexp.reduce(lses, axis=0)
    weights = np.exp(lses - np.where(np.isneginf(lse), 0, lse))
    out = np.einsum("sbhm,sbmhd->bmhd", weights, outs)
    error, allowed = np.abs(out - want[0]).max(), 2 * np.abs(plain[0] - want[0]).max() + 1e-6
    print("out", error, "of", allowed)
    assert error <= allowed
    np.testing.assert_allclose(lse, want[1], rtol=1e-5, atol=1e-4)


if __name__ == "__main__":
    np.seterr(all="ignore")  # numbers of memory that nobody has written
    main(**json.loads(sys.argv[1]))
