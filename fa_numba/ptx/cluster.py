"""Clusters: neighbouring thread blocks that reach into each other's shared memory (sm_90).

The blocks of a cluster run at the same time, on SMs that are close to each other. So a tile that
all of them need is loaded from L2 once: TMA writes it to the shared memory of each (multicast), at
the same offset, and counts the bytes at the mbarrier at the same offset. Everybody announces all
bytes that arrive in its own shared memory, whoever has started the copies.

    block 0                                       block 1
    announce the bytes of K and V                 announce the bytes of K and V
    copy K to both                                copy V to both
    wait(full); multiply                          wait(full); multiply
    arrive at "empty" of block 1                  arrive at "empty" of block 0

Three things are new beside a block alone. The next copy waits until the *other* block is done with
its stage, too. Nobody copies before everybody's barriers are made, and nobody ends while others
may still write to its shared memory or arrive at its barriers: `cluster_sync` at both ends.

A 32-bit address in shared memory is one in the cluster's: bits 24 and up are the block's rank. TMA
and mbarriers take it as it is, a descriptor of wgmma does not (`wgmma.descriptor_in_cluster`).

PTX ISA: "Cluster of cooperative thread arrays"; "barrier.cluster", "mapa", "mbarrier.arrive".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import kernel_properties, literal, statement


@intrinsic
def cluster_of(typingctx, num_blocks):
    """In a kernel's body: each `num_blocks` neighbours along x, a constant, are a cluster.

    This is a property of the kernel (``.reqnctapercluster``), as ``launch_bounds`` is one, and no
    instruction. The grid's x must be a multiple of it. A block's rank in its cluster is
    blockIdx.x % num_blocks.
    """
    dims = {"cluster_dim_x": literal(num_blocks), "cluster_dim_y": 1, "cluster_dim_z": 1}
    return kernel_properties(dims, num_blocks)


@intrinsic
def cluster_sync(typingctx):
    """Wait until all threads of all blocks of the cluster are here: syncthreads for a cluster."""
    return statement("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;")


@intrinsic
def mbarrier_arrive_at(typingctx, barrier, rank):
    """Arrive once at the barrier of block `rank` that is where `barrier` is in this block.

    Earlier reads of this thread are done; its writes are not ordered for the other block (that is
    ``release.cluster``, and takes two fences of memory).
    """
    return statement(
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, <barrier>, <rank>; "
        "mbarrier.arrive.shared::cluster.b64 _, [remote]; }",
        barrier=types.uint32,
        rank=types.uint32,
    )
