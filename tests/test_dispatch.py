"""A job takes the fastest kernel that can: by the table, else by preference; which says so."""

import functools
import itertools
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from cases import (
    MASKS,
    check_backward,
    check_forward,
    each_mask,
    each_shape,
    kernel_function,
    make_paged_cache,
    make_qkv,
    mask_options,
    random,
)
from fake_libraries import CupyArray
from test_checks import K, X

import fa_numba
from fa_numba import dispatch, reference, simt
from fa_numba.analysis.devices import DEVICES
from fa_numba.dispatch import attention
from fa_numba.dispatch.candidates import Candidate
from fa_numba.dispatch.job import JOBS
from fa_numba.runtime import arrays, launching
from numba_cuda_simulator.devices import KIB, alike

CANDIDATES = {name: job.candidates for name, job in JOBS.items()}
KERNELS = {"rows": CANDIDATES["flash_attn"], "gradients": CANDIDATES["flash_attn_grad"]}
STARTS_Q, STARTS_K = (np.array(starts, np.int32) for starts in ([0, 2, 5], [0, 6, 6]))
LENGTHS = np.array([6, 3], np.int32)


def check_both(rng, q, k, v, **options):
    """`flash_attn` and its gradients; test_cpu.py says the rest of what NumPy arrays meet."""
    check_forward(fa_numba.flash_attn, q, k, v, **options)
    functions = fa_numba.flash_attn, fa_numba.flash_attn_grad
    check_backward(*functions, random(rng, *q.shape), q, k, v, **options)


@each_shape
@each_mask
def test_any_shape(rng, shape, causal):
    check_both(rng, *make_qkv(rng, *shape.sizes), causal=causal)


@pytest.mark.parametrize("seqlen_q", [1, 40])
def test_every_option_arrives(rng, seqlen_q):
    q, k, v = make_qkv(rng, 2, seqlen_q, 40, 4, 2, 16)
    check_both(rng, q, k, v, **mask_options(MASKS["all"], 4), softmax_scale=0.3)


def test_a_kernel_that_cannot_is_not_taken(gpu):
    gpu((7, 5))
    x = aligned(1, 20, 2, 8, dtype=np.float16)
    choice = fa_numba.which(x, x, x)
    assert choice.kernel == "flash_attn_registers" and "any GPU" in choice.reason
    assert "needs a GPU of compute capability 8.0" in choice.refused["flash_attn_mma"]
    assert "at most 16 queries, got 20" in choice.refused["flash_decode_wide"]
    assert choice.refused["cpu.flash_attn"] == "takes NumPy arrays alone"
    assert "flash_attn_v2" not in choice.refused
    assert str(choice).splitlines()[0].startswith("flash_attn_registers: takes")


def test_options_that_no_kernel_has(gpu):
    gpu((9, 0))
    x, lse = aligned(1, 20, 2, 264, dtype=np.float16), aligned(1, 2, 20)
    options = {"score": lambda s, b, h, m, n: s + 1}
    with pytest.raises(TypeError, match="flash_attn_grad has no kernel") as raised:
        fa_numba.which(fa_numba.flash_attn_grad, x, x, x, x, x, lse, **options)
    assert "not cpu.flash_attn_grad: takes NumPy arrays alone" in str(raised.value)
    assert "flash_attn_bwd_stored has no score" in str(raised.value)
    assert str(raised.value).endswith("and computes on the CPU")


def test_gradients_of_score_args_come_beside_any_kernel(gpu):
    gpu((9, 0))
    x, lse = aligned(1, 20, 2, 64, dtype=np.float16), aligned(1, 2, 20)
    given = fa_numba.flash_attn_grad, x, x, x, x, x, lse
    options = {"score": lambda s, b, h, m, n, c: s + c[h], "score_args": (aligned(2),)}
    choice = fa_numba.which(*given, **options, score_args_grad=True)
    assert choice.kernel == "flash_attn_bwd_persistent"
    with pytest.raises(ValueError, match="deterministic must be False with score_args_grad"):
        fa_numba.which(*given, **options, score_args_grad=True, deterministic=True)


@pytest.mark.parametrize("seqlen_q, seqlen_k, dtype, kernel", [
    (1, 4096, np.float16, "flash_decode_gather"),
    (16, 4096, np.float16, "flash_decode_gather"),
    (17, 4096, np.float16, "flash_attn_split"),
    (4096, 4096, np.float16, "flash_attn_persistent"),
    (8, 100, np.float32, "flash_decode_wide"),
    (9, 100, np.float32, "flash_attn_tf32x3"),
    (9, 1024, np.float32, "flash_decode_wide"),
    (17, 4096, np.float32, "flash_attn_tf32x3"),
])  # fmt: skip
def test_the_order_on_hopper(gpu, seqlen_q, seqlen_k, dtype, kernel):
    gpu((9, 0))
    q, k = (aligned(1, n, 8, 64, dtype=dtype) for n in (seqlen_q, seqlen_k))
    assert fa_numba.which(q, k, k).kernel == kernel


def test_arrays_of_a_mask_and_a_score(gpu):
    """They decide nothing, and no key holds them."""
    gpu((9, 0))
    q = aligned(1, 300, 2, 64, dtype=np.float16)
    functions = {
        "mask": lambda b, h, m, n, most, w: m - n < w[h],
        "mask_args": (7, CupyArray(np.int32([3, 9]))),
        "score": lambda s, b, h, m, n, bias: s + bias[n],
        "score_args": (CupyArray(np.zeros(300, np.float32)),),
    }
    assert fa_numba.which(q, q, q, **functions).kernel == "flash_attn_persistent"
    one, lengths = aligned(1, 1, 2, 64, dtype=np.float16), aligned(1, dtype=np.int32)
    choice = fa_numba.which("flash_decode", one, q, q, lengths, **functions, sinks=aligned(2))
    assert choice.kernel == "flash_decode_gather"


@pytest.mark.parametrize("capability, row_dim, dtype, refused", [
    ((8, 0), 576, np.float16, ""),
    ((9, 0), 72, np.float16, ""),
    ((8, 0), 576, np.float32, "must be float16 or bfloat16 for mla_decode_mma, got float32"),
    ((9, 0), 49, np.float16, "row_dim that is a multiple of 8 up to 576 for mla_decode_mma"),
    ((7, 5), 576, np.float16, "mla_decode_mma needs a GPU of compute capability 8.0"),
])  # fmt: skip
def test_latents_on_tensor_cores(gpu, capability, row_dim, dtype, refused):
    gpu(capability)
    q, cache = aligned(2, 1, 16, row_dim, dtype=dtype), aligned(2, 64, row_dim, dtype=dtype)
    lengths = aligned(2, dtype=np.int32)
    options = {"softmax_scale": 0.1, "latent_dim": 40}
    choice = fa_numba.which(fa_numba.mla_decode, q, cache, lengths, **options)
    assert choice.kernel == ("mla_decode" if refused else "mla_decode_mma")
    assert refused in choice.refused.get("mla_decode_mma", "")


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)], ids=str)
def test_caches_of_e4m3(gpu, capability):
    """Hopper's kernel has an instruction for them, and the kernels to read use integers."""
    gpu(capability)
    q, cache = aligned(2, 1, 8, 64, dtype=np.float16), aligned(2, 64, 2, 64, dtype=np.uint8)
    lengths, scales = aligned(2, dtype=np.int32), {x: aligned(2) for x in ("k_scale", "v_scale")}
    choice = fa_numba.which(fa_numba.flash_decode, q, cache, cache, lengths, **scales)
    assert choice.kernel == ("flash_decode_gather" if capability[0] == 9 else "flash_decode")
    assert "flash_decode_mma" in choice.refused
    if capability[0] != 9:
        needs = "flash_decode_gather needs a GPU of compute capability 9.x"
        assert needs in choice.refused["flash_decode_gather"]


def test_every_candidate_has_a_reason():
    assert all(x.why for candidates in CANDIDATES.values() for x in candidates.values())


def test_an_option_that_a_kernel_has_not_got():
    kernel, inputs = Candidate("naive_attn", "kernels"), attention.Inputs(X, K, K)
    assert kernel.refusal(inputs, {"causal": True}) is None
    assert kernel.refusal(inputs, {"causal": True, "dropout_p": 0.5, "seed": 1}) == (
        "naive_attn has no dropout_p, seed"
    )


def test_a_programming_error_in_a_check_is_no_refusal():
    def check(candidate, inputs, options):
        return None + 1

    with pytest.raises(TypeError, match="unsupported operand"):
        Candidate("naive_attn", "kernels", check=check).refusal(attention.Inputs(X, K, K), {})


def test_the_next_kernel_runs_where_the_first_cannot_be_launched(gpu, monkeypatch):
    gpu((9, 0))
    job = JOBS["paged_attn_decode"]
    monkeypatch.setitem(vars(job), "not_launched", {})
    given, options = CALLS["paged_attn_decode"]
    given = [*on_gpu(given, np.float16)]
    ran = []

    def function(name, error=None):
        @functools.wraps(job.candidates[name].function)  # its options are read
        def call(*args, **options):
            ran.append(name)
            if error:
                raise error
            return name

        monkeypatch.setitem(vars(job.candidates[name]), "function", call)

    refused = launching.LaunchRefusedError("needs 233600 bytes, gets at most 232448")
    function("flash_decode_gather", refused)
    function("flash_decode_mma")
    inputs, options = job.check(*given, **options)
    with pytest.warns(UserWarning, match="flash_decode_gather cannot run.*needs 233600 bytes"):
        assert job.call(inputs, options) == "flash_decode_mma"
    assert job.call(inputs, options) == "flash_decode_mma"  # not tried again
    assert ran == ["flash_decode_gather", "flash_decode_mma", "flash_decode_mma"]
    choice = job.choose(inputs, options)
    assert choice.kernel == "flash_decode_mma"
    assert "233600" in choice.refused["flash_decode_gather"]
    for window in ((5, 0), (6, 0)):  # a launch may depend on its size
        inputs, options = job.check(*given, window_size=window)
        assert job.choose(inputs, options).kernel == "flash_decode_gather"
        with pytest.warns(UserWarning, match="flash_decode_gather cannot run"):
            job.call(inputs, options)
    for name in (
        "flash_decode_mma", "flash_decode_columns", "flash_decode_wide", "paged_attn_decode"
    ):  # fmt: skip
        function(name, refused)
    with pytest.warns(UserWarning), pytest.raises(launching.LaunchRefusedError):
        job.call(inputs, options)


def test_an_option_that_a_kernel_need_not_be_told():
    kernel = Candidate("flash_attn_bwd", "kernels")
    inputs = attention.GradientInputs(X, X, K, K, X, None)
    options = {"deterministic": True}
    assert kernel.refusal(inputs, options) == "flash_attn_bwd has no deterministic"
    assert KERNELS["gradients"]["flash_attn_bwd"].refusal(inputs, options) is None


def gradient_arguments(q, k, v=None, out=None):
    """Arguments of `flash_attn_grad`: v and out are k and q by default, dout is out."""
    v, out = k if v is None else v, q if out is None else out
    return out, q, k, v, out, type(q)(np.zeros(tuple(q.shape[i] for i in (0, 2, 1)), np.float32))


@pytest.fixture
def gpu(monkeypatch):
    """Makes a GPU of a compute capability the one that kernels run on; arrays are fake CuPy's."""

    def make(capability):
        listed = alike(capability)
        block = listed.shared_bytes_per_block if listed else 99 * KIB
        monkeypatch.setattr(arrays, "gpu_available", lambda: True)
        monkeypatch.setattr(arrays, "compute_capability", lambda x: capability)
        monkeypatch.setattr(arrays, "shared_bytes_per_block", lambda x: block)
        monkeypatch.setattr(arrays, "num_sms", lambda x: 132)

    return make


def aligned(*shape, dtype=np.float32):
    """An array of fake CuPy that begins at a multiple of 16 bytes."""
    size = math.prod(shape)
    memory = np.zeros(size + 16, dtype)
    first = -memory.ctypes.data % 16 // memory.itemsize
    return CupyArray(memory[first : first + size].reshape(shape))


CAPABILITIES = {card.compute_capability: card for card in DEVICES.values()}
TF32_PAYS_OFF = ((8, 0), (9, 0), (10, 0), (10, 3))


@pytest.mark.parametrize("card", DEVICES.values(), ids=lambda card: card.name)
def test_tf32_pays_off_where_it_is_more_than_three_times_as_fast(card):
    ratio = (card.tf32_tensor or 0) / card.float32
    assert attention.tf32_pays_off(card.compute_capability) == (ratio > 3)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "capability", [*CAPABILITIES, (8, 7), (10, 3), (11, 0), (12, 1), (13, 0)], ids=str
)
def test_float32_by_3xtf32_only_where_that_pays_off(gpu, capability, backward):
    gpu(capability)
    x = aligned(1, 64, 2, 64)
    job, given = "flash_attn", (x, x, x)
    if backward:
        job, given = "flash_attn_grad", gradient_arguments(x, x)
    choice = fa_numba.which(job, *given)
    name = "flash_attn_bwd_" if backward else "flash_attn_"
    assert attention.tf32_pays_off(capability) == (capability in TF32_PAYS_OFF)
    if capability in TF32_PAYS_OFF:
        assert choice.kernel == f"{name}tf32x3"
    else:
        assert choice.kernel == f"{name}registers"
        why = choice.refused[f"{name}tf32x3"]
        if not backward:  # backward, shared memory may be too small besides
            assert ("needs a GPU" if capability < (8, 0) else "three TF32 products") in why


@pytest.mark.parametrize("capability", [*CAPABILITIES, (8, 7), (12, 1)], ids=str)
def test_every_gpu_has_a_kernel(gpu, capability):
    gpu(capability)
    for case in itertools.product([np.float32, np.float16], [1, 64], [64, 128, 256, 40, 7]):
        dtype, seqlen_q, head_dim = case
        q, k = (aligned(1, n, 2, head_dim, dtype=dtype) for n in (seqlen_q, 64))
        assert fa_numba.which(q, k, k).kernel in KERNELS["rows"], case
        choice = fa_numba.which("flash_attn_grad", *gradient_arguments(q, k))
        assert choice.kernel in KERNELS["gradients"], case


def test_gradients_of_many_columns_on_a_gpu_of_little_shared_memory(gpu):
    gpu((7, 5))
    for head_dim, kernel in ((192, "flash_attn_bwd_registers"), (193, "flash_attn_bwd")):
        x = aligned(1, 64, 2, head_dim)
        choice = fa_numba.which("flash_attn_grad", *gradient_arguments(x, x))
        assert choice.kernel == kernel
    assert "flash_attn_bwd runs here" in choice.refused["flash_attn_bwd_registers"]


@pytest.mark.parametrize("head_dim, kernel", [(256, "persistent"), (264, "wide"), (512, "wide")])
def test_wide_heads_on_hopper(gpu, head_dim, kernel):
    gpu((9, 0))
    q, k = (aligned(1, 64, heads, head_dim, dtype=np.float16) for heads in (4, 2))
    choice = fa_numba.which(q, k, k, causal=True, window_size=(30, -1))
    assert choice.kernel == f"flash_attn_{kernel}"
    if kernel == "wide":
        assert "head_dim" in choice.refused["flash_attn_persistent"]
        tokens = (aligned(64, heads, head_dim, dtype=np.float16) for heads in (4, 2, 2))
        packed = *tokens, *2 * (aligned(3, dtype=np.int32),)
        assert fa_numba.which("flash_attn_varlen", *packed).kernel == "flash_attn_wide_varlen"
        results = packed[0], aligned(4, 64)
        packed = packed[0], *packed[:3], *results, *packed[3:]
        choice = fa_numba.which("flash_attn_varlen_grad", *packed, deterministic=True)
        assert choice.kernel == "flash_attn_bwd_stored_varlen"
        gradients = gradient_arguments(q, k)
        options = {"alibi_slopes": aligned(4), "sinks": aligned(4), "dropout_p": 0.5}
        options |= {"mask": lambda b, h, m, n: n % 3 < 2, "score": lambda s, b, h, m, n: s + m}
        for name, value in options.items():  # a slower kernel takes it, or an error names it
            choice = fa_numba.which(q, k, k, **{name: value})
            assert choice.kernel == "flash_attn_v2"
            assert f"has no {name}" in choice.refused["flash_attn_wide"]
            with pytest.raises(TypeError, match=f"flash_attn_bwd_stored has no {name}"):
                fa_numba.which("flash_attn_grad", *gradients, **{name: value})
            if name != "dropout_p":
                with pytest.raises(TypeError, match=f"bwd_stored_varlen has no {name}"):
                    fa_numba.which("flash_attn_varlen_grad", *packed, **{name: value})
    else:
        assert "above 256" in choice.refused["flash_attn_wide"]
    gpu((8, 0))
    assert "flash_attn_wide" in fa_numba.which(q, k, k).refused


@pytest.mark.parametrize("head_dims", [(192, 128), (512, 512), (16, 264)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_kernels_that_take_one_head_dim_up_to_256_are_not_taken(gpu, head_dims, dtype):
    gpu((8, 0))
    q, v = (aligned(1, 64, 2, head_dim, dtype=dtype) for head_dim in head_dims)
    choice, refusal = fa_numba.which(q, q, v), "must have (the shape of k|head_dim from 1 to 256)"
    assert choice.kernel == "flash_attn_v2"
    assert re.search(refusal, choice.refused["flash_attn_registers"])
    lengths = CupyArray(np.full(1, 64, np.int32))
    choice = fa_numba.which("flash_decode", q, q, v, lengths)
    if head_dims[0] == head_dims[1]:
        in_16_bits = dtype == np.float16
        assert choice.kernel == f"flash_decode_{'columns' if in_16_bits else 'wide'}"
    else:
        assert choice.kernel == "flash_decode"
        assert re.search(refusal.replace("k|", "k_cache|"), choice.refused["flash_decode_wide"])
    arguments = gradient_arguments(q, q, v, out=v)
    if max(head_dims) <= 256:
        assert fa_numba.which("flash_attn_grad", *arguments).kernel == "flash_attn_bwd"
    else:
        with pytest.raises(TypeError, match="not flash_attn_bwd: . must have head_dim from 1 to"):
            fa_numba.which("flash_attn_grad", *arguments)


def test_a_kernel_on_tensor_cores_names_itself_where_v_has_another_head_dim(gpu):
    gpu((8, 0))
    q, v = (aligned(1, 64, 2, head_dim, dtype=np.float16) for head_dim in (192, 128))
    with pytest.raises(ValueError, match="v must have the head_dim of q for flash_attn_mma, 192,"):
        CANDIDATES["flash_attn"]["flash_attn_mma"].function(q, q, v)


@pytest.mark.parametrize("head_dim", [136, 192, 256])
@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_of_many_columns_on_hopper(gpu, head_dim, deterministic):
    gpu((9, 0))
    x = aligned(1, 64, 2, head_dim, dtype=np.float16)
    choice = fa_numba.which(
        "flash_attn_grad", *gradient_arguments(x, x), deterministic=deterministic
    )
    assert choice.kernel == "flash_attn_bwd_wide"
    gpu((8, 0))
    choice = fa_numba.which("flash_attn_grad", *gradient_arguments(x, x))
    assert "compute capability 9.x" in choice.refused["flash_attn_bwd_wide"]


@pytest.mark.parametrize("head_dim", [264, 512])
def test_gradients_above_256_on_hopper(gpu, head_dim):
    gpu((9, 0))
    q, k = (aligned(1, 64, heads, head_dim, dtype=np.float16) for heads in (4, 2))
    arguments, mask = gradient_arguments(q, k), {"causal": True, "window_size": (30, -1)}
    for deterministic in (False, True):
        choice = fa_numba.which("flash_attn_grad", *arguments, **mask, deterministic=deterministic)
        assert choice.kernel == "flash_attn_bwd_stored"
    for compute_capability, options, said in (
        ((9, 0), {"alibi_slopes": aligned(4)}, "flash_attn_bwd_stored has no alibi_slopes"),
        ((9, 0), {"dropout_p": 0.5}, "flash_attn_bwd_stored has no dropout_p"),
        ((8, 0), {}, "compute capability 9.x"),
    ):
        gpu(compute_capability)
        with pytest.raises(TypeError, match=said) as raised:
            fa_numba.which("flash_attn_grad", *arguments, **options)
        assert "runs on it" not in str(raised.value)  # no other kernel takes this head_dim


@pytest.mark.parametrize(
    "head_dim, head_dim_v, kernel, of_gradients",
    [
        (256, 128, "flash_attn_persistent", "flash_attn_bwd_wide"),
        (192, 136, "flash_attn_persistent", "flash_attn_bwd_wide"),
        (192, 128, "flash_attn_persistent", "flash_attn_bwd_persistent"),
        (64, 56, "flash_attn_persistent", "flash_attn_bwd_persistent"),
        (128, 192, "flash_attn_v2", "flash_attn_bwd"),
    ],
)
def test_another_head_dim_of_v_on_hopper(gpu, head_dim, head_dim_v, kernel, of_gradients):
    gpu((9, 0))
    q, k, v, dout = (
        aligned(1, 500, 4, d, dtype=np.float16)
        for d in (head_dim, head_dim, head_dim_v, head_dim_v)
    )
    choice = fa_numba.which(q, k, v)
    assert choice.kernel == kernel
    if kernel == "flash_attn_v2":
        said = choice.refused["flash_attn_persistent"]
        assert "v must have a head_dim up to that of q" in said and "128, got 192" in said
    lse = aligned(1, 4, 500)
    choice = fa_numba.which("flash_attn_grad", dout, q, k, v, dout, lse)
    assert choice.kernel == of_gradients
    if head_dim == 64:
        assert "above 64 for flash_attn_bwd_wide, got 64" in choice.refused["flash_attn_bwd_wide"]


def test_few_queries_on_hopper_are_decoded_by_gather(gpu):
    gpu((9, 0))
    q, k = aligned(16, 1, 32, 64, dtype=np.float16), aligned(16, 4096, 32, 64, dtype=np.float16)
    row = {"flash_decode_gather", "flash_decode_mma", "flash_decode_wide", "flash_attn_persistent"}
    choice = fa_numba.which(q, k, k)
    assert choice.kernel in row and "flash_decode_gather" not in choice.refused
    backwards = CupyArray(k.host[:, ::-1])  # cp.async takes any stride, a tensor map does not
    choice = fa_numba.which(q, backwards, backwards)
    assert "flash_decode_gather" not in choice.refused
    assert "no negative stride" in choice.refused["flash_attn_persistent"]


@pytest.mark.parametrize("head_dim", [59, 130])
def test_odd_rows_on_hopper_are_copied_for_many_queries(gpu, head_dim):
    gpu((9, 0))
    x = aligned(2, 64, 4, head_dim, dtype=np.float16)
    choice = fa_numba.which(x, x, x)
    assert choice.kernel == "flash_attn_padded" and "multiple of 16 bytes" in choice.reason
    assert fa_numba.which(x, x, x, mask=fa_numba.masks.causal).kernel == "flash_attn_padded"
    choice = fa_numba.which(CupyArray(x.host[:, :1]), x, x)
    assert "more than 16 queries, got 1" in choice.refused["flash_attn_padded"]
    x = aligned(2, 64, 4, 64, dtype=np.float16)
    choice = fa_numba.which(x, x, x)
    assert "it can copy all of these" in choice.refused["flash_attn_padded"]


@pytest.mark.parametrize("head_dim", [59, 130])
def test_gradients_of_odd_rows_on_hopper_are_copied(gpu, head_dim):
    gpu((9, 0))
    x = aligned(2, 64, 4, head_dim, dtype=np.float16)
    choice = fa_numba.which("flash_attn_grad", *gradient_arguments(x, x))
    assert choice.kernel == "flash_attn_bwd_padded" and "multiple of 16 bytes" in choice.reason
    choice = fa_numba.which(
        "flash_attn_grad", *gradient_arguments(x, x), mask=fa_numba.masks.causal
    )
    assert choice.kernel == "flash_attn_bwd_padded"
    x = aligned(2, 64, 4, 64, dtype=np.float16)
    choice = fa_numba.which("flash_attn_grad", *gradient_arguments(x, x))
    assert "it can copy all of these" in choice.refused["flash_attn_bwd_padded"]
    backwards = CupyArray(x.host[:, ::-1])
    choice = fa_numba.which("flash_attn_grad", *gradient_arguments(backwards, x))
    assert choice.kernel == "flash_attn_bwd_padded"


def calls():
    """Arguments of each job, in NumPy arrays: name, arrays, options."""
    rng = np.random.default_rng(0)
    q, k, v = make_qkv(rng, 2, 5, 6, 4, 2, 8)
    packed = q[0], k[0], v[0], STARTS_Q, STARTS_K
    k_pages, v_pages, block_table, lengths = make_paged_cache(rng, LENGTHS, 4, 2, 8)
    out, lse = reference.attention(q, k, v, dtype=np.float32)
    lse = np.ascontiguousarray(lse, np.float32)
    yield "flash_attn", (q, k, v), {"causal": True}
    yield "flash_attn_grad", (random(rng, *q.shape), q, k, v, out, lse), {}
    yield "flash_attn_varlen", packed, {"window_size": (2, 0)}
    out, lse = kernel_function("flash_attn_varlen")(*packed)
    gradient = random(rng, *q[0].shape), *packed[:3], out, lse, *packed[3:]
    yield "flash_attn_varlen_grad", gradient, {"deterministic": True}
    yield "flash_decode", (q, k, v, LENGTHS), {"softcap": 5.0}
    yield "paged_attn_decode", (q, k_pages, v_pages, block_table, lengths), {"causal": True}
    latents = k_pages.reshape(*k_pages.shape[:2], -1)  # a head's columns after the other's
    options = {"softmax_scale": 0.3, "block_table": block_table, "latent_dim": 5}
    yield "mla_decode", (random(rng, 2, 1, 3, latents.shape[2]), latents, lengths), options
    yield "softmax", (random(rng, 3, 40),), {}
    yield "softmax_topk", (random(rng, 3, 40),), {"k": 5}


CALLS = {name: (given, options) for name, given, options in calls()}
LESSONS = {
    "flash_attn": "flash_attn_v2",
    "flash_attn_grad": "flash_attn_bwd",
    "flash_attn_varlen_grad": "flash_attn_varlen_bwd",
    "softmax": "online_softmax",
}
each_job = pytest.mark.parametrize("name", CALLS)
ON_CPU = [name for name in CALLS if f"cpu.{name}" in JOBS[name].candidates]


def test_the_jobs_are_these():
    assert set(CALLS) == set(JOBS) <= set(fa_numba.__all__)
    assert all(getattr(fa_numba, name) is getattr(dispatch, name) for name in JOBS)


def test_lesson_kernels_are_reached_by_their_files():
    """In a new process, where nothing has imported them."""
    program = """
import fa_numba
for name in ("flash_attn_varlen", "flash_decode", "paged_attn_decode", "softmax_topk"):
    assert callable(getattr(getattr(fa_numba.kernels, name), name))
assert not hasattr(fa_numba.kernels, "flash_attn_v9")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@each_job
def test_a_job_computes_what_the_lesson_kernel_does(name):
    given, options = CALLS[name]
    got = getattr(fa_numba, name)(*given, **options)
    lesson = kernel_function(LESSONS.get(name, name))
    want = lesson(*given, **{x: y for x, y in options.items() if x != "deterministic"})
    got, want = (x if isinstance(x, tuple) else (x,) for x in (got, want))
    for x, y in zip(got, want, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ON_CPU)
def test_numpy_arrays_do_not_meet_the_engine(name):
    given, options = CALLS[name]
    with simt.tracing() as traces:
        getattr(fa_numba, name)(*given, **options)
    assert not traces
    choice = fa_numba.which(name, *given, **options)
    assert choice.kernel == f"cpu.{name}"
    assert "compiled for the CPU" in choice.reason and "flash_attn_v2" in choice.reason


def test_dropout_of_numpy_arrays_is_that_of_the_lesson_kernel():
    dropout = {"dropout_p": 0.5, "seed": 3}
    assert fa_numba.which(X, K, K, **dropout).kernel == "cpu.flash_attn"
    got = fa_numba.flash_attn(X, K, K, **dropout)
    want = fa_numba.flash_attn_v2(X, K, K, **dropout)
    gradients = [
        function(X, X, K, K, *want, **dropout)
        for function in (fa_numba.flash_attn_grad, fa_numba.flash_attn_bwd)
    ]
    for x, y in (*zip(got, want, strict=True), *zip(*gradients, strict=True)):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


@each_job
def test_which_takes_a_job_or_its_name(name):
    given, options = CALLS[name]
    choice = fa_numba.which(getattr(fa_numba, name), *given, **options)
    assert choice == fa_numba.which(name, *given, **options)
    assert choice.kernel in CANDIDATES[name] and choice.reason


def test_which_without_a_job_means_flash_attn():
    q, k, v = CALLS["flash_attn"][0]
    choice = fa_numba.which("flash_attn", q, k, v, causal=True)
    assert fa_numba.which(q, k, v, causal=True) == choice
    assert fa_numba.which(q=q, k=k, v=v, causal=True) == choice


def test_which_of_what_is_no_job():
    for wrong in ("flash_attn_v2", fa_numba.flash_attn_v2):
        with pytest.raises(ValueError, match="job must be flash_attn, .*, got flash_attn_v2"):
            fa_numba.which(wrong, X, K, K)
    lesson = fa_numba.kernels.flash_decode.flash_decode  # it has the name of a job
    with pytest.raises(ValueError, match="job must be fa_numba.flash_decode, got fa_numba.kernels"):
        fa_numba.which(lesson, X, K, K, LENGTHS)
    with pytest.raises(TypeError, match="flash_decode has no argument 'scale': .* softmax_scale"):
        fa_numba.which("flash_decode", X, K, K, LENGTHS, scale=1.0)
    with pytest.raises(TypeError, match=r'which\("flash_attn_grad", dout'):
        fa_numba.which(X, K, K, backward=True)


def on_gpu(given, dtype):
    """Arrays of fake CuPy, those of floats in a dtype but for lse."""
    for x in given:
        kind = dtype if x.dtype == np.float32 and x.ndim > 2 and x.shape[-1] == 8 else x.dtype
        y = aligned(*x.shape, dtype=kind)
        y.host[...] = x
        yield y


TAKEN = {  # on Hopper, on Ampere, before; then in float32
    "flash_attn_varlen": ("flash_attn_persistent_varlen", *["flash_attn_varlen"] * 3),
    "flash_attn_varlen_grad": ("flash_attn_bwd_varlen", *["flash_attn_varlen_bwd"] * 3),
    "flash_decode": (
        "flash_decode_gather", "flash_decode_mma", "flash_decode_wide", "flash_decode_wide"
    ),
    "paged_attn_decode": (
        "flash_decode_gather", "flash_decode_mma", "flash_decode_wide", "flash_decode_wide"
    ),
    "softmax": ["softmax_registers"] * 4,
    "softmax_topk": ["softmax_topk_warps"] * 4,
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_the_kernel_of_a_job_by_preference(gpu, name):
    given, options = CALLS[name]
    ways = zip([(9, 0), (8, 6), (7, 5), (9, 0)], 3 * [np.float16] + [np.float32], strict=True)
    for (capability, dtype), kernel in zip(ways, TAKEN[name], strict=True):
        gpu(capability)
        choice = fa_numba.which(name, *on_gpu(given, dtype), **options)
        assert choice.kernel == kernel and choice.reason
        assert choice.refused[f"cpu.{name}"] == "takes NumPy arrays alone"


@pytest.mark.parametrize("name", ["flash_decode_mma", "flash_decode_wide"])
def test_fast_decoders_get_the_table_by_name(monkeypatch, name):
    seen = []
    candidate = CANDIDATES["paged_attn_decode"][name]
    monkeypatch.setitem(candidate.__dict__, "function", lambda *a, **b: seen.append((a, b)))
    given, options = CALLS["paged_attn_decode"]
    candidate(*given, **options)
    ((arguments, named),) = seen
    q, k_cache, v_cache, block_table, lengths = given
    assert all(x is y for x, y in zip(arguments, (q, k_cache, v_cache, lengths), strict=True))
    assert named.pop("block_table") is block_table and named == options


def test_keys_are_split_where_sms_would_be_idle(gpu):
    gpu((9, 0))
    k = aligned(1, 16384, 8, 64, dtype=np.float16)
    name, reasons = "flash_attn_split", {}
    for seqlen_q in (16, 17, 128, 16384):
        choice = fa_numba.which(aligned(1, seqlen_q, 8, 64, dtype=np.float16), k, k)
        assert (choice.kernel == name) == (seqlen_q in (17, 128))
        reasons[seqlen_q] = choice.refused.get(name)
    assert "for more than 16 queries of a group of heads, got 16" in reasons[16]
    grouped = aligned(1, 16, 32, 64, dtype=np.float16)  # four heads share one of K and V: 64 rows
    assert fa_numba.which(grouped, k, k).kernel == name
    assert "1.25 times as fast, got 1." in reasons[16384]  # by the model
    q = aligned(1, 128, 8, 64, dtype=np.float16)
    assert fa_numba.which(q, k, k, window_size=(9, 0)).kernel != name  # each query sees few keys
    assert fa_numba.which(q, k, k, dropout_p=0.1).kernel != name
    gpu((8, 0))
    assert name in fa_numba.which(q, k, k).refused


def test_which_makes_nothing(monkeypatch):
    monkeypatch.setattr(arrays, "launch", None)
    choice = fa_numba.which(X, K, K, softcap=1.0, softmax_scale=-1)
    assert choice.kernel in KERNELS["rows"]
