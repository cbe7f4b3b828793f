"""Grader of ex13a: wgmma's descriptors, field by field and against what our kernels pass."""

import pytest

from fa_numba.ptx import layouts
from fa_numba.workbook.graders.causes import Wrong

LARGEST = (1 << 18) - 16
FIELDS = {"address": (0, 14), "leading": (16, 14), "stride": (32, 14), "swizzle": (62, 2)}


def bits(number, first, count):
    return number >> first & ((1 << count) - 1)


def check_bits(got, **want):
    """Fail at the first field that holds something else, then at any bit outside of the fields."""
    assert type(got) is int, f"must be an int, got {got!r}"
    whole = got
    for name, (first, count) in FIELDS.items():
        number = bits(got, first, count)
        if number != want[name]:
            others = {key: bits(whole, *place) for key, place in FIELDS.items()}
            known = {
                "The two offsets are exchanged.": others
                == want | {"leading": want["stride"], "stride": want["leading"]},
                "Addresses and offsets are divided by 16.": number
                == 16 * want[name] & (1 << count) - 1,
                "The code of 128 bytes is 1, that of 32 is 3.": name == "swizzle"
                and number == 4 - want[name],
                "The stride goes from 8 rows to the next 8.": name == "stride"
                and 8 * number == want[name],
            }
            raise Wrong(
                f"{name}: bits {first}–{first + count - 1} must hold {want[name]:#x}, got "
                f"{number:#x} of {whole:#018x}",
                causes=[cause for cause, is_so in known.items() if is_so],
                where=name,
            )
        got &= ~(((1 << count) - 1) << first)
    assert got == 0, f"bits that belong to no field must be 0, got {got:#018x} besides"


def test_address(exercise):
    """the address, divided by 16, in bits 0–13"""
    for address in (0, 16, 1024, 0x8400, 0x37C00, LARGEST):
        check_bits(
            exercise.descriptor(address, 0, 0, 0), address=address >> 4, leading=0, stride=0,
            swizzle=0,
        )  # fmt: skip


def test_offsets(exercise):
    """the two offsets, divided by 16, in bits 16–29 and 32–45"""
    for leading, stride in ((16, 0), (0, 16), (8192, 1024), (1024, 8192), (LARGEST, LARGEST)):
        check_bits(
            exercise.descriptor(0, leading, stride, 0), address=0, leading=leading >> 4,
            stride=stride >> 4, swizzle=0,
        )  # fmt: skip


@pytest.mark.parametrize("swizzle_bytes, code", [(0, 0), (128, 1), (64, 2), (32, 3)])
def test_swizzle(exercise, swizzle_bytes, code):
    """the swizzle's code in bits 62–63"""
    check_bits(
        exercise.descriptor(0, 0, 0, swizzle_bytes), address=0, leading=0, stride=0, swizzle=code
    )


def test_all_together(exercise):
    """all fields at their largest: none runs into its neighbour"""
    check_bits(
        exercise.descriptor(LARGEST, LARGEST, LARGEST, 32), address=0x3FFF, leading=0x3FFF,
        stride=0x3FFF, swizzle=3,
    )  # fmt: skip


def test_of_k(exercise):
    """a tile of Q or K: 1024 bytes from 8 rows to the next, 128-byte swizzle"""
    for address in (1024, 0x8400, 0x20000):
        check_bits(exercise.of_k(address), address=address >> 4, leading=1, stride=64, swizzle=1)


@pytest.mark.parametrize("BLOCK_N", [16, 64, 96, 128, 264])
def test_of_v(exercise, BLOCK_N):
    """a tile of V: as many bytes from panel to panel as BLOCK_N rows have"""
    check_bits(
        exercise.of_v(0x8400, BLOCK_N), address=0x840, leading=8 * BLOCK_N, stride=64, swizzle=1
    )


@pytest.mark.parametrize("num_rows", [64, 96, 264])
def test_k_step(exercise, num_rows):
    """k_step: where the next 16 columns of K begin, also in the next panel"""
    start = exercise.of_k(0x1400)
    for d in range(0, 512, 16):
        want = layouts.tile_offset(0, d, num_rows, swizzled=False)
        got = exercise.k_step(start, d, num_rows)
        moved = (bits(got, 0, 14) - 0x140) * 16
        if moved != want:
            known = {
                "Behind 64 columns the next panel begins, num_rows * 128 bytes on.": d * 2,
                "A panel has num_rows rows.": want - d // 64 * (num_rows - 64) * 128,
                "The address in a descriptor is divided by 16, so a step is, too.": 16 * want,
                "Of each panel the columns begin at 0: d % 64.": d % 64 * 2,
            }
            raise Wrong(
                f"columns {d} to {d + 15} of {num_rows} rows begin {want} bytes on, got {moved}",
                causes=[cause for cause, number in known.items() if number == moved],
                where=f"columns {d} to {d + 15}",
            )
        assert got >> 14 == start >> 14, f"k_step({d}) must change the address alone, got {got:#x}"


def test_v_step(exercise):
    """v_step: where the next 16 rows of V begin"""
    start = exercise.of_v(0x8400, 128)
    for n in range(0, 512, 16):
        got = exercise.v_step(start, n)
        want = layouts.tile_offset(n, 0, 128, swizzled=False)
        moved = (bits(got, 0, 14) - 0x840) * 16
        if moved != want:
            known = {
                "The address in a descriptor is divided by 16, so a step is, too.": 16 * want,
                "The next row of V is 128 bytes on.": n * 2,
            }
            raise Wrong(
                f"rows {n} to {n + 15} begin {want} bytes on, got {moved}",
                causes=[cause for cause, number in known.items() if number == moved],
                where=f"rows {n} to {n + 15}",
            )
        assert got >> 14 == start >> 14, f"v_step({n}) must change the address alone, got {got:#x}"


def test_steps_of_any_descriptor(exercise):
    """k_step and v_step: from any descriptor, and a step after a step"""
    for swizzle, stride in ((0, 16), (32, LARGEST)):
        start = exercise.descriptor(2048, LARGEST, stride, swizzle)
        for name, got in (
            ("k_step", exercise.k_step(exercise.k_step(start, 64, 96), 16, 96)),
            ("v_step", exercise.v_step(exercise.v_step(start, 80), 16)),
        ):
            want = start + ((96 * 128 + 32 if name == "k_step" else 96 * 128) >> 4)
            assert got == want, (
                f"two times {name}, from a descriptor with swizzle {swizzle}: must be {want:#x}, "
                f"got {got:#x}; a step changes the address and nothing else"
            )


def test_as_our_kernels(exercise):
    """the same numbers as fa_numba.ptx.wgmma builds"""
    wgmma = pytest.importorskip(
        "fa_numba.ptx.wgmma", reason="needs numba-cuda", exc_type=ImportError
    )
    address = 0x9C00 >> 4
    pairs = {
        "of_k": (exercise.of_k(0x9C00), wgmma.descriptor_bits() | address),
        "of_v": (exercise.of_v(0x9C00, 96), wgmma.descriptor_bits(96 * 128) | address),
    }
    for name, (got, want) in pairs.items():
        assert got == want, f"{name}: the kernels pass {want:#018x}, got {got:#018x}"
