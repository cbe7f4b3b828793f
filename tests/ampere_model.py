"""As `hopper_model`, with cp.async, ldmatrix and mma.sync."""

import numpy as np
from hopper_model import Model

from fa_numba.ptx import layouts

MMA_A, MMA_B, MMA_D = layouts.mma_a(), layouts.mma_b(), layouts.mma_d()
ROWS, COLUMNS = layouts.ldmatrix(), layouts.ldmatrix(trans=True)
EARLY = 0.5  # chance that a copy is made when it is started; the others are made when awaited


class AmpereModel(Model):
    """One GPU, as `Model`."""

    def _mine(self):
        me = self._me()
        if not hasattr(me, "copies"):
            me.copies, me.committed = [], []
        return me

    def cp_async_16(self, destination, source, num_bytes, size=16):
        assert destination % size == source % size == 0

        def copy():
            part = self.shared[destination : destination + size]
            part[num_bytes:] = 0
            if num_bytes:
                part[:num_bytes] = self._global(source, size)[:num_bytes]

        if self.random.random() < EARLY:
            copy()
        else:
            self._mine().copies.append(copy)

    def cp_async_4(self, destination, source, num_bytes):
        self.cp_async_16(destination, source, num_bytes, 4)

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
        self._load_matrices(fragment, address, ROWS)

    def ldmatrix_x4_trans(self, fragment, address):
        self._load_matrices(fragment, address, COLUMNS)

    def _load_matrices(self, fragment, address, elements):
        def load(given):
            starts = np.array([start for start, _ in given])
            assert (starts % 16 == 0).all()
            rows = self.shared.view(np.uint16)[starts[:, None] // 2 + np.arange(8)]
            halves = rows.reshape(4, 8, 8)[:, *elements]  # [matrix, lane, half]
            words = np.ascontiguousarray(halves).view(np.uint32)[..., 0].T
            for lane, (_, to) in enumerate(given):
                to.reshape(-1)[:] = words[lane]

        self._meet("ldmatrix", 32, (address, fragment), load)

    def store_shared_b32(self, address, x):
        self.shared[address : address + 4].view(np.uint32)[0] = x

    def atomic_add(self, address, x):
        self._word(address).view(np.float32)[0] += x

    def unknown_half(self, address):
        return int(self.shared[address : address + 4].view(np.uint32)[0])

    def split_tf32(self, big, small, x, half, length):
        bits = x.reshape(-1)[:length].view(np.uint32)
        big.reshape(-1)[:] = bits + np.uint32(half) & np.uint32(0xFFFFE000)
        small.reshape(-1)[:] = (bits.view(np.float32) - big.view(np.float32)).view(np.uint32)

    def mma_m16n8k8_tf32x3(self, d, a_big, a_small, *b):
        def multiply(given):
            k, g = np.arange(32) % 4, np.arange(32) // 4
            a = np.empty((2, 16, 8), np.float32)  # the big parts, the small ones
            b = np.empty((2, 8, 8), np.float32)
            registers = np.array([x[1] for x in given]).view(np.float32)
            for i in range(4):
                a[:, g + 8 * (i % 2), k + 4 * (i // 2)] = registers[:, :, i].T
            registers = np.array([x[2] for x in given], np.uint32).view(np.float32)
            for part, half in np.ndindex(2, 2):
                b[part, k + 4 * half, g] = registers[:, 2 * part + half]
            product = (a[1] @ b[0] + a[0] @ b[1] + a[0] @ b[0])[MMA_D]
            for lane, (to, _, _) in enumerate(given):
                to += product[lane]

        self._meet("mma", 32, (d, (a_big.copy(), a_small.copy()), b), multiply)

    def mma_m16n8k16_f16(self, d, a, b):
        def multiply(given):
            matrices = np.empty((16, 16), np.float32), np.empty((16, 8), np.float32)
            for matrix, (row, col), i in zip(matrices, (MMA_A, MMA_B), (1, 2), strict=True):
                registers = np.stack([x[i] for x in given])
                matrix[row, col] = registers[..., None].view(np.float16)
            product = (matrices[0] @ matrices[1])[MMA_D]
            for lane, (to, _, _) in enumerate(given):
                to += product[lane]

        self._meet("mma", 32, (d, a.copy(), b.copy()), multiply)
