"""The backward pass on tensor cores, without a GPU: machine code and refusals."""

import expression_cases
import numpy as np
import pytest
from cases import thorough
from machine_code_cases import in_registers, needs_compiler, stated_registers
from numba import cuda, float32, typeof, types

pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")


from fa_numba.analysis.machine_code import compile_kernel
from fa_numba.checks import check_grad_dtype
from fa_numba.on_cuda_cores.run_time_masks import AT_RUN_TIME
from fa_numba.tensor_core import gradient_fragments
from fa_numba.tensor_core.backward import add_sink_parts, make_convert_dq, make_prepare_rows
from fa_numba.tensor_core.dq_parts import fastest_order
from fa_numba.tensor_core.flash_attn_bwd_mma import (
    flash_attn_bwd_mma,
    make_dq_mma,
    make_flash_attn_bwd_mma,
)
from fa_numba.tensor_core.flash_attn_bwd_persistent import (
    PART_LENGTH,
    SLOT_LENGTH,
    SLOTS,
    flash_attn_bwd_persistent,
    make_flash_attn_bwd_persistent,
    shared_bytes,
)
from fa_numba.tensor_core.flash_attn_bwd_wide import flash_attn_bwd_wide, make_flash_attn_bwd_wide
from fa_numba.tensor_core.flash_attn_bwd_wide import shared_bytes as wide_shared_bytes

HOPPER = (9, 0, "a")
MASK_ARGS = types.int32, types.int32, types.float32, types.float32
NONE = types.Tuple(())


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, dtype",
    [
        thorough(64, "float16"),
        thorough(128, "bfloat16"),
        thorough(192, "float16"),
        (256, "bfloat16"),
    ],
)
def test_kernels_before_and_after_stay_in_registers(head_dim, dtype):
    x = types.Array(types.float16, 4, "C")
    rows, dq_sum = (types.Array(types.float32, ndim, "C") for ndim in (3, 4))
    of_rows = x, x, *3 * (rows,)
    sinks = types.Tuple((types.Array(types.float32, 1, "C"), rows))
    for kernel, args in (
        (make_prepare_rows(head_dim, dtype, True), (*of_rows, dq_sum, types.float32, NONE)),
        (make_prepare_rows(head_dim, dtype), (*of_rows, *2 * (types.float32,), NONE)),
        (make_prepare_rows(head_dim, dtype, True, True), (*of_rows, dq_sum, types.float32, sinks)),
        (add_sink_parts, (rows, types.Array(types.float32, 1, "C"))),
        (make_convert_dq(head_dim, dtype), (dq_sum, x, types.float32)),
        (make_convert_dq(head_dim, "float32"), (dq_sum, dq_sum, types.float32)),
    ):
        in_registers(kernel, args)


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, dtype, causal", [thorough(64, "bfloat16", True), (128, "float16", False)]
)
@pytest.mark.parametrize("add_dq", [True, thorough(False)])  # False: a part of the kernel
def test_mma_kernels_stay_in_registers(head_dim, dtype, causal, add_dq):
    x = types.Array(types.float16, 4, "C")
    rows, dq_sum = (types.Array(types.float32, ndim, "C") for ndim in (3, 4))
    scales = 2 * (types.float32,)
    for kernel, args, spilled in (
        # A few addresses are spilled, but none in the products.
        (
            make_flash_attn_bwd_mma(head_dim, causal, dtype, add_dq, not add_dq),
            (*4 * (x,), rows, rows, dq_sum if add_dq else types.float32, x, x, *scales, NONE, NONE),
            40,
        ),
        (make_convert_dq(head_dim, dtype, False), (dq_sum, x, types.float32), 0),
        (make_dq_mma(head_dim, causal, dtype), (*4 * (x,), rows, rows, x, *scales, NONE, NONE), 0),
    ):
        code = compile_kernel(kernel, args, cc=(8, 0))
        assert code.spill_bytes <= spilled and code.local_bytes <= spilled
        assert code.float64_instructions == 0
        assert code.registers <= stated_registers(kernel)


@needs_compiler
@pytest.mark.parametrize(
    "name, head_dim, cc",
    [
        ("a score and a mask", 128, (8, 0)),
        thorough("a score and a mask", 64, (9, 0, "a")),
        thorough("documents", 128, (8, 0)),
        thorough("T5", 64, (8, 0)),
        thorough("window and first keys", 64, (8, 0)),
    ],
)
@pytest.mark.parametrize("add_dq", [True, thorough(False)])
def test_mma_kernels_with_functions_of_the_user_stay_in_registers(name, head_dim, cc, add_dq):
    expressions, arguments, _ = expression_cases.given_of(name)
    x, runs = types.Array(types.float16, 4, "C"), types.Array(types.int32, 5, "C")
    rows, dq_sum = (types.Array(types.float32, ndim, "C") for ndim in (3, 4))
    inputs, args = (*4 * (x,), rows, rows), typeof(tuple(arguments))
    scales = 2 * (types.float32,)
    if add_dq:
        kernel = make_flash_attn_bwd_mma(
            head_dim, False, "float16", True, cc >= (9, 0), expressions
        )
        code = compile_kernel(kernel, (*inputs, dq_sum, x, x, *scales, runs, args), cc=cc)
    else:
        kernel = make_dq_mma(head_dim, False, "float16", expressions)
        runs = expression_cases.runs_type(expressions)
        code = compile_kernel(kernel, (*inputs, x, *scales, runs, args), cc=cc)
    spilled = 84 if cc >= (9, 0) else 40  # of addresses and indices
    assert code.spill_bytes <= spilled and code.local_bytes <= 40
    assert code.float64_instructions == 0
    assert code.registers <= stated_registers(kernel)


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, order, mask, spilled_by_products, in_step",
    [
        thorough(64, "added", (True,), 0, False),
        thorough(64, "by arrival", (True,), 4, False),
        thorough(64, "added", (False, (100, 50)), 0, False),
        # A cap's derivatives take 32 registers.
        thorough(64, "added", (False, (-1, -1), 30.0, True), 80, False),
        thorough(96, "by arrival", (True,), 4, False),
        thorough(128, "ordered", (True, (100, -1), 30.0, True), 16, False),
        thorough(128, "by arrival", (False,), 4, False),
        (128, "added", (True,), 0, False),
        thorough((192, 128), "added", (True,), 0, False),
        thorough((192, 128), "added", (True,), 30, True),
        thorough((192, 128), "added", (True, (100, -1), 30.0, True), 30, False),
        thorough((192, 128), "ordered", (True,), 30, False),
        thorough((128, 64), "added", (True,), 0, True),
        thorough(64, "added", (True,), 0, True),
        thorough(128, "added", (True,), 0, True),
        thorough(128, "added", (True, (-1, -1), 30.0), 0, True),
        thorough(64, "added", (True, (-1, -1), 0.0, True), 0, True),
    ],
)
def test_persistent_kernels_stay_in_registers(head_dim, order, mask, spilled_by_products, in_step):
    head_dim, head_dim_v = map(int, np.broadcast_to(head_dim, 2))
    x = types.Array(types.float16, 4, "C")
    rows, dq_sum = (types.Array(types.float32, ndim, "C") for ndim in (3, 4))
    causal, *rest = mask
    counters = types.int32 if order == "added" else types.Array(types.int32, 1, "C")
    slopes = types.Array(types.float32, 1, "C") if mask[3:] else types.float32
    args = (*6 * (types.uint64,), rows, rows, dq_sum, x, *3 * (types.int32,), *2 * (types.float32,))
    kernel = make_flash_attn_bwd_persistent(
        head_dim, order, causal, "float16", *rest, IN_STEP=in_step, HEAD_DIM_V=head_dim_v
    )
    code = compile_kernel(kernel, (*args, slopes, counters, *MASK_ARGS, NONE, NONE), cc=HOPPER)
    assert spills_between_products(code) <= spilled_by_products
    # The producer and the warp that counts parts have 24 registers.
    # The warp that counts parts; of a third panel of dQ, too, it keeps more.
    most = 320 if head_dim == head_dim_v else 480
    allowed = 0 if order == "added" and not spilled_by_products else most
    assert code.spill_bytes <= allowed and code.local_bytes <= allowed
    assert code.float64_instructions == 0
    assert code.registers <= stated_registers(kernel)
    assert "C75" not in code.report  # products serialised, setmaxnreg ignored


def spills_between_products(code):
    """Instructions for local memory from the first product to the last."""
    opcodes = [i.opcode.split(".")[0] for i in code.instructions]
    last = len(opcodes) - 1 - opcodes[::-1].index("HGMMA")
    products = opcodes[opcodes.index("HGMMA") : last]
    return products.count("STL") + products.count("LDL")


@needs_compiler
@pytest.mark.parametrize("group_parts", [thorough(1), 4])
def test_gradients_in_float32_stay_in_registers(group_parts):
    rows, x = (types.Array(types.float32, ndim, "C") for ndim in (3, 4))
    options = {"GRAD_FLOAT32": True, "GROUP_PARTS": group_parts}
    kernel = make_flash_attn_bwd_persistent(128, "added", True, "bfloat16", **options)
    maps = *4 * (types.uint64,), x, x  # dk and dv themselves
    numbers = *3 * (types.int32,), *3 * (types.float32,), types.int32, *MASK_ARGS, NONE, NONE
    in_registers(kernel, (*maps, rows, rows, x, x, *numbers))


@needs_compiler
@pytest.mark.parametrize(
    "name, head_dim, order, softcap, spilled_by_others",
    [
        thorough("causal", 64, "added", 0.0, 0),
        thorough("a window", 128, "added", 0.0, 0),
        thorough("prefix", 64, "added", 0.0, 0),
        ("window and first keys", 128, "added", 0.0, 0),
        thorough("documents", 64, "added", 0.0, 0),
        thorough("softcap", 64, "added", 0.0, 0),
        thorough("dilated", 128, "added", float(AT_RUN_TIME), 0),
        thorough("a score and a mask", 128, "ordered", 0.0, 512),
    ],
)
def test_kernels_with_functions_of_the_user_stay_in_registers(
    name, head_dim, order, softcap, spilled_by_others
):
    given = expression_cases.given_of(name)
    x, runs = types.Array(types.float16, 4, "C"), types.Array(types.int32, 5, "C")
    rows, dq_sum = (types.Array(types.float32, ndim, "C") for ndim in (3, 4))
    args = (*6 * (types.uint64,), rows, rows, dq_sum, x, *3 * (types.int32,), *3 * (types.float32,))
    args += types.Array(types.int32, 1, "C"), *MASK_ARGS
    second = types.Array(types.int32, 1, "C") if order == "added" else runs
    args += types.Tuple((runs, second)), typeof(given.arguments)
    kernel = make_flash_attn_bwd_persistent(
        head_dim, order, False, "float16", SOFTCAP=softcap, EXPRESSIONS=given.expressions
    )
    code = compile_kernel(kernel, args, cc=HOPPER)
    assert spills_between_products(code) == code.float64_instructions == 0
    # The producer and the warp that counts parts have 24 registers.
    assert code.spill_bytes <= spilled_by_others
    assert code.registers <= stated_registers(kernel)
    assert "C75" not in code.report


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("float16", False), "grad_dtype must be None or \"float32\", got 'float16'"),
        (
            ("float32", True),
            'deterministic must be False where grad_dtype is "float32": the sums of dq are in any '
            "order, got True",
        ),
    ],
)
def test_refused_dtypes_of_gradients(arguments, message):
    with pytest.raises(ValueError) as raised:
        check_grad_dtype(*arguments)
    assert str(raised.value) == message


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, deterministic, dtype, mask, in_step",
    [
        (256, False, "float16", (False,), False),
        thorough(256, False, "float16", (True,), True),
        thorough(256, True, "bfloat16", (True,), False),
        thorough(192, False, "float16", (True, (100, -1), 30.0, True), False),
        thorough(136, False, "bfloat16", (False, (30, 20)), False),
        thorough((256, 136), True, "float16", (True,), False),
    ],
)
def test_wide_kernels_stay_in_registers(head_dim, deterministic, dtype, mask, in_step):
    head_dim, head_dim_v = map(int, np.broadcast_to(head_dim, 2))
    rows, dq_sum = (types.Array(types.float32, ndim, "C") for ndim in (3, 4))
    causal, *rest = mask
    counters = types.Array(types.int32, 1, "C") if deterministic else types.int32
    slopes = types.Array(types.float32, 1, "C") if mask[3:] else types.float32
    args = (*6 * (types.uint64,), rows, rows, dq_sum, *4 * (types.int32,), *2 * (types.float32,))
    kernel = make_flash_attn_bwd_wide(
        head_dim, deterministic, causal, dtype, *rest, IN_STEP=in_step, HEAD_DIM_V=head_dim_v
    )
    code = compile_kernel(kernel, (*args, slopes, counters, *MASK_ARGS, NONE, NONE), cc=HOPPER)
    # Which tile of keys it is, kept for the stores of dK and dV: not in the loop over queries.
    assert code.spill_bytes <= 200 and code.local_bytes <= 40
    assert code.float64_instructions == 0
    assert code.registers <= stated_registers(kernel)
    assert "C75" not in code.report  # products serialised, setmaxnreg ignored


@needs_compiler
@pytest.mark.parametrize(
    "name, head_dim, deterministic",
    [
        thorough("a score and a mask", 256, False),
        thorough("documents", 256, True),
        thorough("T5", 136, False),
    ],
)
def test_wide_kernels_with_functions_of_the_user_stay_in_registers(name, head_dim, deterministic):
    expressions, arguments, _ = expression_cases.given_of(name)
    rows, dq_sum = (types.Array(types.float32, ndim, "C") for ndim in (3, 4))
    runs = types.UniTuple(types.Array(types.int32, 5, "C"), 2 if deterministic else 1)
    args = (*6 * (types.uint64,), rows, rows, dq_sum, *4 * (types.int32,), *3 * (types.float32,))
    args += types.Array(types.int32, 1, "C"), *MASK_ARGS, runs, typeof(tuple(arguments))
    kernel = make_flash_attn_bwd_wide(
        head_dim, deterministic, False, "float16", EXPRESSIONS=expressions
    )
    code = compile_kernel(kernel, args, cc=HOPPER)
    assert spills_between_products(code) <= 12 and code.float64_instructions == 0
    assert code.spill_bytes <= 200 and code.local_bytes <= 40
    assert code.registers <= stated_registers(kernel)
    assert "C75" not in code.report


@pytest.mark.parametrize(
    "head_dim, seqlen, heads, group, mask, order",
    [
        (128, 512, 512, 1, (True, (-1, -1)), "by arrival"),
        (128, 2048, 128, 1, (True, (-1, -1)), "added"),
        (64, 2048, 256, 4, (False, (-1, -1)), "added"),
        (64, 8192, 64, 1, (True, (-1, -1)), "by arrival"),
        (64, 8192, 64, 4, (True, (-1, -1)), "added"),  # heads of a group take turns
        (128, 1024, 512, 4, (True, (-1, -1)), "by arrival"),
        (128, 1024, 512, 8, (True, (-1, -1)), "added"),
        (128, 8192, 64, 8, (True, (1000, -1)), "by arrival"),  # there they do not
        (128, 8192, 64, 1, (False, (1000, -1)), "added"),
        (128, 512, 8, 1, (True, (-1, -1)), "added"),  # the last tiles would end one by one
    ],
)
def test_few_parts_of_dq_are_summed_by_arrival(head_dim, seqlen, heads, group, mask, order):
    assert fastest_order(head_dim, seqlen // 128, heads, group, 132, mask) == order


def test_a_thread_block_of_persistent_fits_an_sm():
    static = 4 * (SLOTS * SLOT_LENGTH + PART_LENGTH)
    largest = max(shared_bytes(64), shared_bytes(128), shared_bytes(192, 128))
    assert largest + static <= 227 * 1024
    assert max(wide_shared_bytes(192), wide_shared_bytes(256)) + 4 * 2 * SLOT_LENGTH <= 227 * 1024


@pytest.mark.parametrize(
    "backward", [flash_attn_bwd_persistent, flash_attn_bwd_mma, flash_attn_bwd_wide]
)
def test_arrays_in_host_memory_are_refused(backward):
    x, lse = np.zeros((1, 4, 1, 64), np.float16), np.zeros((1, 1, 4), np.float32)
    with pytest.raises(TypeError, match=f"must be GPU arrays.*{backward.__name__} is made of PTX"):
        backward(x, x, x, x, x, lse)


@pytest.mark.parametrize("block_m", [64, 128])
def test_columns_that_a_mask_keeps(monkeypatch, block_m):
    @cuda.jit(device=True)
    def low_bits(count):
        return np.uint32((1 << min(count, 32)) - 1)

    @cuda.jit(device=True)
    def opaque(x):
        return np.uint32(x & 0xFFFFFFFF)

    monkeypatch.setattr(gradient_fragments, "low_bits", low_bits)
    monkeypatch.setattr(gradient_fragments, "opaque", opaque)
    select = gradient_fragments.make_select.__wrapped__(block_m)
    SHAPE, hidden = (block_m // 8, 4), np.float32(-1)

    @cuda.jit
    def kernel(bounds, kept):
        s = cuda.local.array(SHAPE, float32)
        i = cuda.threadIdx.x
        for j in range(block_m // 8):
            for r in range(4):
                s[j, r] = float32(1)
        select(s, 0, bounds[i, 0], bounds[i, 1], hidden)
        select(s, 1, bounds[i, 1], bounds[i, 0], hidden)
        for j in range(block_m // 8):
            for r in range(4):
                kept[i, r // 2, 8 * j + r % 2] = s[j, r]

    bounds = np.array([(a, b) for a in range(-9, block_m + 9, 3) for b in (-7, a, block_m + 8)])
    bounds = bounds.astype(np.int32)
    kept = np.zeros((len(bounds), 2, block_m), np.float32)
    kernel[1, len(bounds)](bounds, kept)
    columns = np.arange(block_m)[np.arange(block_m) % 8 < 2]
    first, end = bounds[:, :1], bounds[:, 1:]
    for h, (low, high) in enumerate(((first, end), (end, first))):
        seen = (low <= columns) & (columns < high)
        np.testing.assert_array_equal(kept[:, h][:, columns], np.where(seen, 1, -1))
