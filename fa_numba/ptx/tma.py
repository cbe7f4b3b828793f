"""The tensor memory accelerator: one thread starts the copy of a whole tile (sm_90).

A tensor map describes an array in global memory and the box that a copy takes from it; the host
makes it once for each array (`runtime.tensor_maps`). A copy names the map and the box's first
element, and reports its bytes to an mbarrier. Elements of the box outside the array are
zero-padded: tiles need no bounds check. The strides are the array's own, so no layout needs a copy.

The box is written to shared memory in rows of 128 bytes, 64 elements of 16 bits, with the 16-byte
chunks of row r permuted by `layouts.swizzle`: the order in which wgmma reads them without bank
conflicts. So a tile is one box for each panel of 64 columns, here with head_dim 128:

    global: rows of one head         shared: two boxes, one after the other
    row   cols 0–63   64–127         tile           rows 0, 1, ... of cols 0–63, 128 bytes each
    row+1 cols 0–63   64–127         tile + bytes   rows 0, 1, ... of cols 64–127
    ...                              bytes = rows of the box · 128

Addresses in shared memory have 32 bits, those of the map and of global memory 64. In the PTX `4d`
and `tile` are a box of four axes; `shared::cluster` is the destination: shared memory of a cluster
of thread blocks (`cluster`), mostly a cluster of one. A load reports its end to an mbarrier
(`mbarrier::complete_tx::bytes`), a store through groups (`bulk_group`), as cp.async does.

PTX ISA: "Data movement and conversion instructions: cp.async.bulk.tensor"; CUDA driver API:
cuTensorMapEncodeTiled.
"""

import functools

from numba import cuda, int32
from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.statement import literal, statement


@intrinsic
def tma_load_4d(typingctx, destination, tensor_map, col, row, head, batch, barrier):
    """Start a copy of the box that begins at [batch, head, row, col] of the map's array.

    `destination` is a multiple of 1024 in shared memory, for the swizzle to begin at its row 0, and
    `tensor_map` the address of the map in global memory. The coordinates, the contiguous axis
    first, may lie outside of the array. `barrier` is the mbarrier that counts the bytes: all of the
    box, zero-padding included.
    """
    coordinate = types.uint32
    return statement(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[<destination>], [<tensor_map>, {<col>, <row>, <head>, <batch>}], [<barrier>];",
        destination=types.uint32,
        tensor_map=types.uint64,
        col=coordinate,
        row=coordinate,
        head=coordinate,
        batch=coordinate,
        barrier=types.uint32,
    )


@intrinsic
def tma_load_4d_multicast(
    typingctx, num_blocks, destination, tensor_map, col, row, head, batch, barrier
):
    """As `tma_load_4d`, to all `num_blocks` blocks of a cluster, a compile-time constant.

    `destination` and `barrier` are this block's. In each other one the box is written at the same
    offset, and the barrier at the same offset counts its bytes.
    """
    coordinate = types.uint32
    return statement(
        f"{{ .reg .b16 blocks; mov.b16 blocks, {(1 << literal(num_blocks)) - 1}; "
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster "
        "[<destination>], [<tensor_map>, {<col>, <row>, <head>, <batch>}], [<barrier>], blocks; }",
        num_blocks=num_blocks,
        destination=types.uint32,
        tensor_map=types.uint64,
        col=coordinate,
        row=coordinate,
        head=coordinate,
        batch=coordinate,
        barrier=types.uint32,
    )


@intrinsic
def tma_store_4d(typingctx, tensor_map, col, row, head, batch, source):
    """Start a copy of a box to [batch, head, row, col]; elements beyond the array are not stored.

    Unlike a load, it must not begin before the array: with a negative row an H200 stopped.

    TMA reads shared memory through the async proxy: threads that wrote to the box call
    `barriers.fence_async_proxy`, and meet at a barrier, before one of them starts this copy.
    Parameters are those of `tma_load_4d`; `source` is an address in shared memory, a multiple of
    1024.
    """
    coordinate = types.uint32
    return statement(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
        "[<tensor_map>, {<col>, <row>, <head>, <batch>}], [<source>];",
        tensor_map=types.uint64,
        col=coordinate,
        row=coordinate,
        head=coordinate,
        batch=coordinate,
        source=types.uint32,
    )


@intrinsic
def tma_store_commit(typingctx):
    """Commit the stores that this thread started since the last call as a group."""
    return statement("cp.async.bulk.commit_group;")


@intrinsic
def tma_store_wait_read(typingctx, pending):
    """Wait until TMA has read all groups of this thread except at most the newest `pending`.

    Shared memory that has been read may be overwritten. The data may not have reached global memory
    yet: that is certain only at the kernel's end.
    """
    return statement(f"cp.async.bulk.wait_group.read {literal(pending)};", pending=pending)


@functools.cache
def make_load_tile(NUM_PANELS, CLUSTER=1):
    """load_tile(tile, num_rows, tensor_map, row, head, b, full): load all columns of a tile.

    Starts one copy for each of its NUM_PANELS panels of 64 columns, `num_rows` rows from `row` on,
    to address `tile` and after it. One thread calls this, after it has announced NUM_PANELS ·
    num_rows · ROW_BYTES bytes to barrier `full`. With CLUSTER > 1 to all blocks of a cluster of so
    many; then each block announces them.
    """

    @cuda.jit(device=True, forceinline=True)
    def load_tile(tile, num_rows, tensor_map, row, head, b, full):
        for panel in range(NUM_PANELS):
            start = tile + panel * num_rows * ROW_BYTES
            tma_load_4d(start, tensor_map, PANEL_COLS * panel, row, head, b, full)

    @cuda.jit(device=True, forceinline=True)
    def load_tile_of_all(tile, num_rows, tensor_map, row, head, b, full):
        for panel in range(NUM_PANELS):
            start, col = tile + panel * num_rows * ROW_BYTES, PANEL_COLS * panel
            tma_load_4d_multicast(CLUSTER, start, tensor_map, col, row, head, b, full)

    return load_tile if CLUSTER == 1 else load_tile_of_all


@cuda.jit(device=True, forceinline=True)
def in_window(row, end, num_rows):
    """The copy of num_rows rows from `row` on that ends before row `end`: its coordinates.

    They are those of a map of windows (`runtime.tensor_maps.windows_of`).

    Returns
    -------
    row : int32
        In the window; num_rows or more if `row` is not before `end`.
    window : int32
        Takes the place of the index in the batch.
    """
    inside = min(int32(num_rows), int32(end - row))
    return int32(num_rows - inside), int32(row + inside)
