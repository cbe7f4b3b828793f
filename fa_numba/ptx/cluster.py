"""Clusters: thread blocks that run at the same time and reach each other's shared memory (sm_90).

The blocks of a cluster are neighbours along x, on SMs that share a network. What one loads, TMA can
write to the shared memory of all (`multicast`): tiles that two blocks need come once from L2.

    block 0, rank 0    loads rows 0–31 of a tile   ──┬──▶ its shared memory, rows 0–31
                                                     └──▶ block 1's,          rows 0–31
    block 1, rank 1    loads rows 32–63            ──┬──▶ its shared memory, rows 32–63
                                                     └──▶ block 0's,          rows 32–63

Each part goes to the same address in every block, and reports its bytes to the mbarrier at the same
address there. So each block's "full" expects the bytes of the whole tile, whoever loads them; and a
stage is empty once the consumers of *all* blocks have read it: each arrives at every block's
"empty" (`mbarrier_arrive_in`). Before the first copy all barriers must exist, and no block may end
while another one still writes to it or arrives there: `cluster_arrive` and `cluster_wait` at the
beginning and at the end.

PTX ISA: "Cluster of cooperative thread arrays", "mapa", "barrier.cluster",
"cp.async.bulk.tensor: .multicast::cluster", ".reqnctapercluster".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import annotation, literal, statement


@intrinsic
def cluster_blocks(typingctx, count):
    """No instruction: the kernel's grid consists of clusters of `count` thread blocks along x.

    Only a kernel itself may say so, not a function that it calls. The grid's length along x must be
    a multiple of `count`, a compile-time constant, 2 to 8.
    """
    return annotation(cluster_dim_x=literal(count), cluster_dim_y=1, cluster_dim_z=1)(count)


@intrinsic
def cluster_arrive(typingctx):
    """Arrive at the barrier of the cluster; `cluster_wait` must follow. Each thread calls both."""
    return statement("barrier.cluster.arrive.release;")


@intrinsic
def cluster_wait(typingctx):
    """Wait until all threads of the cluster have arrived, or have ended."""
    return statement("barrier.cluster.wait.acquire;")


@intrinsic
def mbarrier_arrive_in(typingctx, barrier, rank):
    """Arrive at the mbarrier that block `rank` of the cluster has at address `barrier`.

    For threads that have read and not written: the other block sees no earlier write of this one
    (scope `cta`; a wider one costs a memory barrier).
    """
    return statement(
        "{ .reg .b32 there; "
        "mapa.shared::cluster.u32 there, <barrier>, <rank>; "
        "mbarrier.arrive.release.cta.shared::cluster.b64 _, [there]; }",
        barrier=types.uint32,
        rank=types.uint32,
    )


@intrinsic
def tma_load_4d_multicast(
    typingctx, destination, tensor_map, col, row, head, batch, barrier, blocks
):
    """Start a copy to several thread blocks of the cluster.

    Parameters
    ----------
    destination, barrier : uint32
        Addresses in this block. The box goes to the same address of each block, and its bytes are
        reported to the barrier at the same address there.
    tensor_map, col, row, head, batch
        As for `tma.tma_load_4d`.
    blocks : uint32
        Bit i is set for the block of rank i.
    """
    coordinate = types.uint32
    return statement(
        "{ .reg .b16 blocks; cvt.u16.u32 blocks, <blocks>; "
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [<destination>], "
        "[<tensor_map>, {<col>, <row>, <head>, <batch>}], [<barrier>], blocks; }",
        destination=types.uint32,
        tensor_map=types.uint64,
        col=coordinate,
        row=coordinate,
        head=coordinate,
        batch=coordinate,
        barrier=types.uint32,
        blocks=types.uint32,
    )
