"""Grader of ex16a: the size of a KV cache, and what a decoding step reads of it."""

import pytest

from fa_numba.workbook.graders.causes import Wrong

# name: (num_layers, num_heads, num_kv_heads, head_dim), from the models' own configurations
MODELS = {
    "GPT-3": (96, 96, 96, 128),
    "Llama-3 8B": (32, 32, 8, 128),
    "a small one": (2, 6, 3, 5),
    "MQA": (18, 8, 1, 256),
}
EACH_MODEL = pytest.mark.parametrize("model", MODELS)


def expect(got, want, message, causes):
    """Fail where a number is wrong: ints exactly, floats but for rounding."""
    if not (got == want if isinstance(want, int) else abs(got - want) <= 1e-9 * want):
        raise Wrong(message, causes=causes, where=message.split(":")[0])


def counted(seqlen, num_layers, num_kv_heads, head_dim):
    """Numbers in the cache, counted head by head as they are stored."""
    count = 0
    for _ in range(num_layers):
        for _ in range(num_kv_heads):
            count += seqlen * head_dim  # keys
            count += seqlen * head_dim  # values
    return count


@EACH_MODEL
@pytest.mark.parametrize("dtype_bytes", [1, 2, 4])
def test_cache_bytes(exercise, model, dtype_bytes):
    """cache_bytes: keys and values, of every layer and K/V head"""
    num_layers, _, num_kv_heads, head_dim = MODELS[model]
    for seqlen in (1, 7, 4096):
        want = dtype_bytes * counted(seqlen, num_layers, num_kv_heads, head_dim)
        got = exercise.cache_bytes(seqlen, num_layers, num_kv_heads, head_dim, dtype_bytes)
        known = {
            "Keys and values are stored, each.": got * 2,
            "The factor num_layers is missing.": got * num_layers,
            "The factor num_kv_heads is missing.": got * num_kv_heads,
            "The factor head_dim is missing.": got * head_dim,
            "A number takes dtype_bytes, not always 2.": got * dtype_bytes / 2,
        }
        expect(
            got,
            want,
            f"{model}: {num_layers} layers, {num_kv_heads} K/V heads, head_dim {head_dim}, {seqlen}"
            f" tokens of {dtype_bytes}-byte numbers: must be {want:,} bytes, got {got:,}",
            [cause for cause, number in known.items() if number == want],
        )


def test_gpt3(exercise):
    """cache_bytes: GPT-3 at 4096 tokens, 19,327,352,832 bytes, as published"""
    got = exercise.cache_bytes(4096, 96, 96, 128, 2)
    assert got == 19_327_352_832, f"must be 19,327,352,832 bytes, got {got:,}"


def test_shared_heads(exercise):
    """cache_bytes: a group of g query heads makes the cache g times smaller"""
    whole = exercise.cache_bytes(1000, 40, 64, 128, 2)
    for group_size in (2, 8, 64):
        got = exercise.cache_bytes(1000, 40, 64 // group_size, 128, 2)
        assert got * group_size == whole, f"groups of {group_size}: {whole:,} bytes became {got:,}"


@EACH_MODEL
def test_max_batch(exercise, model):
    """max_batch: one more sequence would not fit"""
    num_layers, _, num_kv_heads, head_dim = MODELS[model]
    for memory_bytes, seqlen, dtype_bytes in (
        (40 * 10**9, 2048, 2), (10**12, 999, 4), (10**7, 11, 1)
    ):  # fmt: skip
        one = dtype_bytes * counted(seqlen, num_layers, num_kv_heads, head_dim)
        got = exercise.max_batch(
            memory_bytes, seqlen, num_layers, num_kv_heads, head_dim, dtype_bytes
        )
        want = memory_bytes // one
        known = {
            "A part of a cache is none: round down.": want + 1,
            "A number takes dtype_bytes, not always 2.": memory_bytes * dtype_bytes // (2 * one),
            "Where not one cache fits the batch is 0.": max(want, 1),
        }
        expect(
            got,
            want,
            f"{model}: caches of {one:,} bytes, {memory_bytes:,} bytes of memory: must be {want}, "
            f"got {got}",
            [cause for cause, number in known.items() if number == got],
        )


def test_max_batch_at_the_edge(exercise):
    """max_batch: memory that is exactly full, and one byte less, and too little for one"""
    one = 2 * counted(10, 3, 2, 8)
    for memory_bytes, want in ((5 * one, 5), (5 * one - 1, 4), (one - 1, 0)):
        got = exercise.max_batch(memory_bytes, 10, 3, 2, 8, 2)
        assert got == want, (
            f"caches of {one} bytes in {memory_bytes} bytes: must be {want}, got {got}"
        )


@EACH_MODEL
@pytest.mark.parametrize("dtype_bytes", [2, 4])
def test_decode_bytes(exercise, model, dtype_bytes):
    """decode_bytes: the whole cache, the queries and the output, of every layer"""
    num_layers, num_heads, num_kv_heads, head_dim = MODELS[model]
    for seqlen in (1, 30, 5000):
        cache = dtype_bytes * counted(seqlen, num_layers, num_kv_heads, head_dim)
        others = dtype_bytes * num_layers * (num_heads * head_dim + num_heads * head_dim)
        got = exercise.decode_bytes(
            seqlen, num_layers, num_heads, num_kv_heads, head_dim, dtype_bytes
        )
        known = {
            "Queries are read and the output is written: both move.": others / 2,
            "Queries and output are those of num_heads heads.": others * num_kv_heads / num_heads,
            "Every layer has queries and an output.": others / num_layers,
            "Queries and output move, too, not only the cache.": 0,
            "Queries and output are those of the new token alone.": others * seqlen,
        }
        expect(
            got,
            cache + others,
            f"{model}, {seqlen} tokens: {cache:,} bytes of cache and {others:,} of queries and "
            f"output must be {cache + others:,}, got {got:,}",
            [cause for cause, number in known.items() if cache + number == got],
        )


@EACH_MODEL
def test_decode_intensity(exercise, model):
    """decode_intensity: FLOPs of two products over those bytes"""
    num_layers, num_heads, num_kv_heads, head_dim = MODELS[model]
    for seqlen, dtype_bytes in ((1, 2), (64, 4), (10_000, 2), (777, 1)):
        flops = 0
        for _ in range(num_layers * num_heads):
            flops += 2 * seqlen * head_dim  # scores: a product and a sum for each column
            flops += 2 * seqlen * head_dim  # P V
        moved = dtype_bytes * (
            counted(seqlen, num_layers, num_kv_heads, head_dim)
            + 2 * num_layers * num_heads * head_dim
        )
        got = exercise.decode_intensity(
            seqlen, num_layers, num_heads, num_kv_heads, head_dim, dtype_bytes
        )
        want, group = flops / moved, num_heads / num_kv_heads
        known = {
            "A multiplication and an addition are two FLOP, in each of two products.": want / 2,
            "Every query head has FLOPs: num_heads, not num_kv_heads.": want / group,
            "Every layer has FLOPs.": want / num_layers,
            "FLOP per byte, not bytes per FLOP.": moved / flops,
            "The intensity is no whole number: divide with /.": flops // moved,
            "This is the limit for long sequences: queries and output move, too.": (
                2 * group / dtype_bytes
            ),
        }
        expect(
            got,
            want,
            f"{model}, {seqlen} tokens, {dtype_bytes}-byte numbers: {flops:,} FLOP over {moved:,} "
            f"bytes must be {want:.6g}, got {got:.6g}",
            [cause for cause, number in known.items() if abs(got - number) <= 1e-9 * number],
        )


@pytest.mark.parametrize("group_size", [1, 4, 32])
def test_long_contexts(exercise, group_size):
    """decode_intensity: tends to the group size in 16-bit numbers, and stays below it"""
    got = exercise.decode_intensity(10**6, 32, 32, 32 // group_size, 128, 2)
    assert 0.999 * group_size <= got < group_size, (
        f"a million tokens, {group_size} query heads to a K/V head: must be just below "
        f"{group_size}, got {got:.6g}"
    )


def test_layers_do_not_matter(exercise):
    """decode_intensity: the same for any number of layers"""
    got = {n: exercise.decode_intensity(500, n, 8, 2, 64, 2) for n in (1, 7, 96)}
    first = got[1]
    assert all(abs(x - first) <= 1e-9 * first for x in got.values()), f"by layers: {got}"


def test_whole_numbers(exercise):
    """bytes and batches are ints, exact beyond 2^53 too"""
    values = [
        exercise.cache_bytes(2**40 + 1, 3, 3, 5, 1),
        exercise.cache_bytes(2**60 + 1, 1, 1, 1, 1),
        exercise.max_batch(2**62 + 2, 1, 1, 1, 1, 1),
        exercise.decode_bytes(2**60 + 1, 3, 3, 3, 5, 1),
    ]
    want = [90 * (2**40 + 1), 2**61 + 2, 2**61 + 1, 90 * (2**60 + 1) + 90]
    assert values == want and all(type(x) is int for x in values), f"must be {want}, got {values}"


def test_a_float(exercise):
    """decode_intensity is a float, of whole numbers of any size"""
    got = exercise.decode_intensity(2**60, 1, 4, 2, 8, 2)
    assert type(got) is float and abs(got - 2) <= 1e-9, (
        f"2^60 tokens, 2 query heads to a K/V head: must be the float 2.0, got {got!r}"
    )
