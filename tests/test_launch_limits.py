"""Every launch of every job fits each GPU of the table: shared memory, threads, registers.

For head_dims, groups, page sizes and dtypes that the checks let through, without a GPU. ptxas
gives a kernel no more registers than its launch_bounds allow, and refuses a 17th barrier; kernels
without launch_bounds have at most 256 threads, for which 255 registers each are no more than an SM
has.
"""

import functools
import importlib
import inspect
import itertools

import numpy as np
import pytest
from cases import thorough
from launch_limits import Launch, launch_bounds, static_shared_bytes
from test_dispatch import CAPABILITIES as CARDS
from test_dispatch import aligned, gpu  # noqa: F401

from fa_numba.analysis.machine_code import compile_kernel, compiler_available
from fa_numba.checks.refused import RefusedError
from fa_numba.dispatch.job import JOBS
from fa_numba.runtime import arrays, launching, tensor_maps

HEAD_DIMS = (1, 3, 8, 16, 24, 32, 40, 59, 64, 72, 80, 96, 112, 120, 128, 136, 160, 192, 200, 256)
HEAD_DIMS += (264, 384, 512)
TWO_HEAD_DIMS = ((192, 128), (128, 64), (256, 136), (40, 256), (512, 264))  # v has another one
DTYPES = ("float32", "float16")
LEAST = (7, 5), (8, 9), (9, 0)  # least shared memory; least of Ampere; all kernels there are
GROUPS = (1, 2, 3, 5, 8, 16)  # query heads of a K/V head
PAGE_SIZES = (1, 3, 16, 256)
# With options: rows that TMA cannot copy, the largest of each kernel, a shorter row of v.
OPTION_DIMS = ((59,), (64,), (128,), (256,), (512,), (192, 128))


class NoMaps:
    """Tensor maps that nobody reads."""

    def at(self, address, capturing):
        return 0

    owner = None


@pytest.fixture
def launches(monkeypatch, gpu):  # noqa: F811
    """Make a GPU the current one; return the list of what is launched on it."""
    seen = []

    def launch(kernel, grid, block, *args, shared_bytes=0):
        threads = int(np.prod(block))
        seen.append((Launch(kernel, threads, shared_bytes), args))

    def empty(like, shape, dtype):
        return aligned(*shape, dtype=np.dtype(dtype))

    for owner, name, value in (
        (arrays, "launch", launch),
        (arrays, "_empty", empty),
        (arrays, "_full", lambda like, shape, value, dtype: empty(like, shape, dtype)),
        (arrays, "from_numpy", lambda like, x: x),
        (arrays, "constant", lambda like, shape, value, dtype: empty(like, shape, dtype)),
        (arrays, "is_capturing", lambda x: False),
        (arrays, "module_of", lambda x: np),
        (tensor_maps, "_maps", lambda *layout: NoMaps()),
        (launching, "enabled", False),
    ):
        monkeypatch.setattr(owner, name, value)

    def on(capability):
        seen.clear()
        gpu(capability)
        return seen

    return on


def fits(launch, card):
    """Assert that a thread block can have what a launch asks for."""
    kernel, threads, dynamic = launch
    static, name = static_bytes(kernel), kernel.py_func.__name__
    assert static <= card.shared_bytes_default, name
    assert static + dynamic <= card.shared_bytes_per_block, (name, static, dynamic)
    most = launch_bounds(kernel)
    assert threads <= (most or card.threads_per_block), name
    registers = min(
        card.registers_per_thread, card.registers_per_block // (most or threads) // 8 * 8
    )
    assert registers >= 64, name


static_bytes = functools.cache(static_shared_bytes)


def forms(num_heads):
    """Options of attention that change a kernel, one and many at a time."""
    x = aligned(num_heads)
    options = {"window_size": (200, 200), "softcap": 30.0}
    mask = {"mask": lambda b, h, m, n, c: (m + n) % c != 0, "mask_args": (3,)}
    documents = {"mask": lambda b, h, m, n, document: document[m] == document[n]}
    documents["mask_args"] = (aligned(300, dtype=np.int32),)  # tiles of queries from a queue
    scores = {"score": lambda s, b, h, m, n, x: s + x[h], "score_args": (x,), "sinks": x}
    yield options
    yield options | {"causal": True, "alibi_slopes": x}
    yield {"dropout_p": 0.1, "seed": 1}
    yield {"dropout_p": 0.1, "seed": 1, "alibi_slopes": x}
    yield documents
    yield mask | scores
    yield mask | scores | options | {"alibi_slopes": x}
    yield mask | scores | {"score_args_grad": True}
    yield {"deterministic": True}


def problems(name, head_dim, dtype, head_dim_v=None, few=False):
    """Arrays of one job: groups of every size, page sizes, few and many queries."""
    dims = head_dim, head_dim_v or head_dim

    def random(*shape, dtype=dtype):
        return aligned(*shape, dtype=np.dtype(dtype))

    def ints(*shape):
        return random(*shape, dtype="int32")

    if name in ("softmax", "softmax_topk"):
        for num_cols in (5, 7, 1000, 32_768, 50_257, 70_001):
            yield random(2, num_cols), *([5] if name == "softmax_topk" else [])
        return
    if name == "mla_decode":
        sizes = {"latent_dim": head_dim, "softmax_scale": 1.0}
        for row_dim, num_heads in itertools.product((head_dim, min(head_dim + 320, 576)), GROUPS):
            q, cache = random(1, 1, num_heads, row_dim), random(1, 300, row_dim)
            yield q, cache, ints(1), sizes
        return
    decode = "decode" in name
    turn = head_dim // 8 + DTYPES.index(dtype)
    groups = (8,) if few else GROUPS if decode else (1, 8)
    seqlens = ((2,) if few else (1, 2, 5)) if decode else (1, 40, 300)
    for group in groups:
        # By turns: each head_dim and dtype meets each group, and each seqlen_q with every third.
        for seqlen_q in seqlens[(turn + group) % 3 :][:1] if decode and not few else seqlens:
            turn += 1
            q = random(1, seqlen_q, group, head_dim)
            k, v = (random(1, 300, 1, dim) for dim in dims)
            out, lse = random(*q.shape[:3], dims[1]), random(1, group, seqlen_q, dtype="float32")
            starts, packed_lse = ints(2), random(group, seqlen_q, dtype="float32")
            starts.host[1], starts_k = seqlen_q, ints(2)
            starts_k.host[1] = 300
            if name == "flash_attn":
                yield q, k, v
            elif name == "flash_attn_grad":
                yield out, q, k, v, out, lse
            elif name == "flash_attn_varlen":
                yield *map(packed, (q, k, v)), starts, starts_k
            elif name == "flash_attn_varlen_grad":
                yield *map(packed, (out, q, k, v, out)), packed_lse, starts, starts_k
            elif name == "flash_decode":
                yield q, k, v, ints(1)
            else:
                # By turns: three of four meet each group, head_dim and dtype.
                for page_size in PAGE_SIZES if few else PAGE_SIZES[turn % 4 :][:1]:
                    caches = (random(2, page_size, 1, dim) for dim in dims)
                    yield q, *caches, ints(1, 2), ints(1)


def packed(x):
    return aligned(*x.shape[1:], dtype=x.host.dtype)


def run(job, given):
    """Call each candidate that takes the arguments; yield its title after the call."""
    options = {}
    if isinstance(given[-1], dict):
        *given, options = given
    inputs, options = job.check(*given, **options)
    for title, candidate in job.candidates.items():
        if candidate.package == "cpu" or candidate.refusal(inputs, options):
            continue
        try:
            candidate(*(x.array for x in inputs), **options)
        except RefusedError:  # by its tiles, which a candidate's check need not know
            continue
        yield title


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("capability", [x if x in LEAST else thorough(x) for x in CARDS], ids=str)
def test_every_candidate_of_a_job_fits(launches, capability, name):
    seen, card, ran = launches(capability), CARDS[capability], set()
    all_dims = [(dim,) for dim in HEAD_DIMS]
    if "softmax" in name:  # its rows have no head_dim
        all_dims = all_dims[:1]
    elif name != "mla_decode":
        all_dims += TWO_HEAD_DIMS
    for dtype in DTYPES:
        for head_dim, *head_dim_v in all_dims:
            for given in problems(name, head_dim, dtype, *head_dim_v):
                for title in run(JOBS[name], given):
                    assert seen, title
                    ran.add(title)
                    for launch, _ in seen:
                        fits(launch, card)
                    seen.clear()
    assert ran, "no candidate ran"


WITH_OPTIONS = [name for name in JOBS if name.startswith("flash") or name == "paged_attn_decode"]
SCALES = "k_scale", "v_scale"


@pytest.mark.parametrize("name", WITH_OPTIONS)
@pytest.mark.parametrize("capability", [x if x in LEAST else thorough(x) for x in CARDS], ids=str)
def test_every_form_with_options_fits(launches, capability, name):
    seen, card, job = launches(capability), CARDS[capability], JOBS[name]
    known = inspect.signature(job.function).parameters
    ran, wanted, kernels = set(), set(), set()
    for dtype, dims in itertools.product(DTYPES, OPTION_DIMS):
        for given in problems(name, dims[0], dtype, *dims[1:], few=True):
            num_heads = given["grad" in name].shape[-2]
            calls = [(*given, x) for x in forms(num_heads) if x.keys() <= known.keys()]
            if "k_scale" in known:  # caches of e4m3
                caches = (aligned(*x.shape, dtype=np.uint8) for x in given[1:3])
                calls.append((given[0], *caches, *given[3:], dict.fromkeys(SCALES, aligned(1))))
            for *arguments, options in calls:
                able = (x for x in job.candidates.values() if options.keys() <= x.options)
                wanted |= {(x.title, *options) for x in able if x.package != "cpu"}
                for title in run(job, (*arguments, options)):
                    ran.add((title, *options))
                    for launch, _ in seen:
                        fits(launch, card)
                        kernels.add(launch.kernel.py_func.__name__)
                    seen.clear()
    assert ran and ran <= wanted
    assert "queue_kernel" in kernels or (capability, name) != ((9, 0), "flash_attn")
    assert capability != (9, 0) or ran == wanted, wanted - ran


@pytest.mark.parametrize("module", ["flash_attn_wgmma", "flash_attn_ws", "flash_attn_mma"])
def test_the_kernels_of_lessons_on_tensor_cores_fit(launches, module):
    seen, function = (
        launches((9, 0)),
        getattr(importlib.import_module(f"fa_numba.tensor_core.{module}"), module),
    )
    for head_dim in HEAD_DIMS:
        x = aligned(1, 300, 2, head_dim, dtype=np.float16)
        try:
            function(x, x, x, causal=True)
        except RefusedError:
            continue
    assert seen
    for launch, _ in seen:
        fits(launch, CARDS[9, 0])


@pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")
@pytest.mark.parametrize(
    "name, first",  # candidates
    [("paged_attn_decode", 1), *(thorough(x, 99) for x in ("flash_attn", "paged_attn_decode"))],
)
def test_what_is_declared_is_what_is_compiled(launches, name, first):
    seen = launches((9, 0))
    given = next(problems(name, 128, "float16"))
    for title in itertools.islice(run(JOBS[name], given), first):
        launch, args = seen[0]
        args = [getattr(x, "host", x) for x in args]
        code = compile_kernel(launch.kernel, args, cc=(9, 0, "a"))
        # Less where the compiler drops an array that nothing reads.
        assert 0 <= static_shared_bytes(launch.kernel) - code.shared_bytes < 8, title
        assert code.registers * launch.threads <= 65_536, title
        seen.clear()
