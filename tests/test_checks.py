"""checks: every bad argument is refused with its name, what it must be, and what it got."""

import numpy as np
import pytest

import fa_numba
from fa_numba import checks


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def attention(**changed):
    """flash_attn_v2 on good arguments, but for the changed ones."""
    good = {"q": ones(2, 5, 4, 8), "k": ones(2, 6, 2, 8), "v": ones(2, 6, 2, 8)}
    return fa_numba.flash_attn_v2(**good | changed)


def block_sparse(block_mask, **changed):
    """flash_attn_v1 with tiles of 4 × 4, which makes the mask 2 × 2."""
    x = ones(1, 5, 2, 8)
    good = {"q": x, "k": x, "v": x, "block_m": 4, "block_n": 4}
    return fa_numba.flash_attn_v1(**good | changed, block_mask=block_mask)


def backward(**changed):
    x, k = ones(2, 5, 4, 8), ones(2, 6, 2, 8)
    good = {"dout": x, "q": x, "k": k, "v": k, "out": x, "lse": ones(2, 4, 5)}
    return fa_numba.flash_attn_bwd(**good | changed)


def lookup(**changed):
    good = {
        "k_cache": ones(3, 4, 2, 8),
        "v_cache": ones(3, 4, 2, 8),
        "block_table": np.array([[0, 2], [1, -1]], np.int32),
        "seq_lens": np.array([7, 4], np.int32),
    }
    return fa_numba.paged_kv_lookup(**good | changed)


def decode(**changed):
    good = {
        "q": ones(2, 1, 4, 8),
        "k_cache": ones(2, 6, 2, 8),
        "v_cache": ones(2, 6, 2, 8),
        "seq_lens": table(6, 3),
    }
    return fa_numba.flash_decode(**good | changed)


def paged_decode(**changed):
    good = {
        "q": ones(2, 1, 4, 8),
        "k_cache": ones(3, 4, 2, 8),
        "v_cache": ones(3, 4, 2, 8),
        "block_table": table([0, 2], [1, -1]),
        "seq_lens": table(7, 4),
    }
    return fa_numba.paged_attn_decode(**good | changed)


def merge(**changed):
    out, lse = ones(2, 5, 4, 8), ones(2, 4, 5)
    good = {"out_a": out, "lse_a": lse, "out_b": out, "lse_b": lse}
    return fa_numba.merge_states(**good | changed)


def write(**changed):
    """reshape_and_cache of 3 tokens to caches of 5 pages of 4."""
    token, cache = ones(3, 2, 8), ones(5, 4, 2, 8)
    good = {"k": token, "v": token, "k_cache": cache, "v_cache": ones(5, 4, 2, 8)}
    return fa_numba.reshape_and_cache(**{**good, "slot_mapping": table(7, -1, 19), **changed})


def copy(**changed):
    good = {"k_cache": ones(5, 4, 2, 8), "v_cache": ones(5, 4, 2, 8)}
    return fa_numba.copy_pages(**{**good, "src": table(0, 4), "dst": table(1, 3), **changed})


def swap(**changed):
    source, target = ones(5, 4, 2, 8), ones(3, 4, 2, 8)
    good = {"k_src": source, "v_src": source, "k_dst": target, "v_dst": ones(3, 4, 2, 8)}
    return fa_numba.swap_pages(**{**good, "src": table(0, 4), "dst": table(1, 2), **changed})


def pool(num_pages=4, page_size=2, tokens=(1, 2, 3), append=None, seq=0):
    """A pool with one sequence, number 0, which is appended to and forked."""
    pool = fa_numba.PagePool(num_pages, page_size)
    pool.allocate(tokens)
    pool.append({seq: [4]} if append is None else append)
    pool.fork(seq)


def read_only(*shape):
    x = ones(*shape)
    x.flags.writeable = False
    return x


def softmax(x):
    return fa_numba.safe_softmax(x)


def table(*rows):
    return np.array(rows, np.int32)


HALF = np.float16

# function, changed arguments, what the message says
BAD_TYPES = [
    (attention, {"q": [[1.0]]}, "q must be a NumPy array, CuPy array, .* got list"),
    (attention, {"k": None}, "k must be .* got NoneType"),
    (attention, {"v": 3.0}, "v must be .* got float"),
    (softmax, {"x": "text"}, "x must be .* got str"),
    (lookup, {"seq_lens": [7, 4]}, "seq_lens must be .* got list"),
    (attention, {"q": ones(2, 5, 4, 8, dtype=float)}, "q must be float32, got float64"),
    (attention, {"k": ones(2, 6, 2, 8, dtype=HALF)}, "k must be float32, got float16, .*not have"),
    (attention, {"v": ones(2, 6, 2, 8, dtype=int)}, "v must be float32, got int64"),
    (attention, {"q": ones(2, 5, 4, 8, dtype=">f4")}, "q must be float32, got >f4"),
    (backward, {"lse": ones(2, 4, 5, dtype=float)}, "lse must be float32, got float64"),
    (backward, {"dout": ones(2, 5, 4, 8, dtype=bool)}, "dout must be float32, got bool"),
    (softmax, {"x": ones(3, 4, dtype=HALF)}, "x must be float32, got float16"),
    (lookup, {"v_cache": ones(3, 4, 2, 8, dtype=float)}, "v_cache must be float32, got float64"),
    (lookup, {"block_table": ones(2, 2, dtype=int)}, "block_table must be int32, got int64"),
    (lookup, {"seq_lens": ones(2)}, "seq_lens must be int32, got float32"),
    (attention, {"causal": 1}, "causal must be True or False, got 1"),
    (attention, {"causal": "yes"}, "causal must be True or False, got 'yes'"),
    (attention, {"window_size": 3}, r"window_size must be a tuple \(left, right\), got 3"),
    (attention, {"window_size": (3,)}, r"window_size must be a tuple .* got \(3,\)"),
    (attention, {"window_size": (1, 2, 3)}, r"window_size must be a tuple .* got \(1, 2, 3\)"),
    (attention, {"window_size": None}, "window_size must be a tuple .* got None"),
    (attention, {"window_size": (3.0, 0)}, r"window_size\[0\] must be an integer, got 3.0"),
    (attention, {"window_size": (3, None)}, r"window_size\[1\] must be an integer, got None"),
    (backward, {"window_size": (True, 0)}, r"window_size\[0\] must be an integer, got True"),
    (attention, {"softcap": None}, "softcap must be a number, got NoneType"),
    (attention, {"softcap": "30"}, "softcap must be a number, got str"),
    (backward, {"softcap": True}, "softcap must be a number, got bool"),
    (attention, {"alibi_slopes": 0.5}, "alibi_slopes must be .* got float"),
    (attention, {"alibi_slopes": [0.5] * 4}, "alibi_slopes must be .* got list"),
    (
        attention,
        {"alibi_slopes": ones(4, dtype=float)},
        "alibi_slopes must be float32, got float64",
    ),
    (backward, {"alibi_slopes": ones(4, dtype=HALF)}, "alibi_slopes must be float32, got float16"),
    (attention, {"softmax_scale": "1"}, "softmax_scale must be a number or None, got str"),
    (attention, {"softmax_scale": True}, "softmax_scale must be a number or None, got bool"),
    (attention, {"softmax_scale": 1j}, "softmax_scale must be a number or None, got complex"),
    (attention, {"block_m": 8.0}, "block_m must be an integer, got 8.0"),
    (attention, {"block_n": True}, "block_n must be an integer, got True"),
    (lookup, {"max_len": 7.5}, "max_len must be an integer, got 7.5"),
    (decode, {"q": None}, "q must be .* got NoneType"),
    (decode, {"k_cache": ones(2, 6, 2, 8, dtype=float)}, "k_cache must be float32, got float64"),
    (decode, {"v_cache": ones(2, 6, 2, 8, dtype=HALF)}, "v_cache must be float32, got float16"),
    (decode, {"seq_lens": [6, 3]}, "seq_lens must be .* got list"),
    (decode, {"seq_lens": np.array([6, 3])}, "seq_lens must be int32, got int64"),
    (decode, {"num_splits": 2.0}, "num_splits must be an integer, got 2.0"),
    (decode, {"num_splits": None}, "num_splits must be an integer, got None"),
    (decode, {"num_splits": True}, "num_splits must be an integer, got True"),
    (decode, {"causal": None}, "causal must be True or False, got None"),
    (decode, {"block_n": 8.0}, "block_n must be an integer, got 8.0"),
    (decode, {"window_size": 3}, r"window_size must be a tuple \(left, right\), got 3"),
    (decode, {"window_size": (3.0, 0)}, r"window_size\[0\] must be an integer, got 3.0"),
    (decode, {"softcap": None}, "softcap must be a number, got NoneType"),
    (decode, {"alibi_slopes": [0.5] * 4}, "alibi_slopes must be .* got list"),
    (decode, {"alibi_slopes": ones(4, dtype=float)}, "alibi_slopes must be float32, got float64"),
    (paged_decode, {"q": [1.0]}, "q must be .* got list"),
    (paged_decode, {"block_table": [[0, 2]]}, "block_table must be .* got list"),
    (paged_decode, {"q": ones(2, 1, 4, 8, dtype=HALF)}, "q must be float32, got float16"),
    (paged_decode, {"k_cache": ones(3, 4, 2, 8, dtype=float)}, "k_cache must be float32"),
    (paged_decode, {"block_table": ones(2, 2)}, "block_table must be int32, got float32"),
    (paged_decode, {"seq_lens": np.array([7, 4])}, "seq_lens must be int32, got int64"),
    (paged_decode, {"num_splits": "2"}, "num_splits must be an integer, got '2'"),
    (paged_decode, {"causal": 0}, "causal must be True or False, got 0"),
    (paged_decode, {"window_size": None}, "window_size must be a tuple .* got None"),
    (paged_decode, {"window_size": (3, True)}, r"window_size\[1\] must be an integer, got True"),
    (paged_decode, {"softcap": "30"}, "softcap must be a number, got str"),
    (paged_decode, {"alibi_slopes": 0.5}, "alibi_slopes must be .* got float"),
    (paged_decode, {"alibi_slopes": ones(4, dtype=HALF)}, "alibi_slopes must be float32, got flo"),
    (merge, {"out_a": [1.0]}, "out_a must be .* got list"),
    (merge, {"lse_b": None}, "lse_b must be .* got NoneType"),
    (merge, {"out_b": ones(2, 5, 4, 8, dtype=float)}, "out_b must be float32, got float64"),
    (merge, {"lse_a": ones(2, 4, 5, dtype=int)}, "lse_a must be float32, got int64"),
    (block_sparse, {"block_mask": True}, "block_mask must be .* got bool"),
    (block_sparse, {"block_mask": [[1, 1], [1, 1]]}, "block_mask must be .* got list"),
    (block_sparse, {"block_mask": ones(2, 2)}, "block_mask must be bool, got float32"),
    (block_sparse, {"block_mask": ones(2, 2, dtype=np.uint8)}, "must be bool, got uint8"),
    (write, {"k": [[1.0]]}, "k must be .* got list"),
    (write, {"v": ones(3, 2, 8, dtype=float)}, "v must be float32, got float64"),
    (write, {"k_cache": ones(5, 4, 2, 8, dtype=HALF)}, "k_cache must be float32, got float16"),
    (write, {"v_cache": None}, "v_cache must be .* got NoneType"),
    (write, {"slot_mapping": [7, 8, 9]}, "slot_mapping must be .* got list"),
    (write, {"slot_mapping": np.arange(3)}, "slot_mapping must be int32, got int64"),
    (copy, {"k_cache": 1}, "k_cache must be .* got int"),
    (copy, {"v_cache": ones(5, 4, 2, 8, dtype=float)}, "v_cache must be float32, got float64"),
    (copy, {"src": [0, 4]}, "src must be .* got list"),
    (copy, {"src": np.arange(2)}, "src must be int32, got int64"),
    (copy, {"dst": ones(2)}, "dst must be int32, got float32"),
    (swap, {"k_src": None}, "k_src must be .* got NoneType"),
    (swap, {"v_dst": ones(3, 4, 2, 8, dtype=int)}, "v_dst must be float32, got int64"),
    (swap, {"src": [0, 4]}, "src must be a NumPy array: .* on the host, got list"),
    (swap, {"dst": np.arange(2)}, "dst must be int32, got int64"),
    (pool, {"num_pages": 4.0}, "num_pages must be an integer, got 4.0"),
    (pool, {"page_size": None}, "page_size must be an integer, got None"),
    (pool, {"tokens": 5}, "tokens must be a sequence of integers, got 5"),
    (pool, {"tokens": [1, 2.0]}, r"tokens must be a sequence of integers, got \[1, 2.0\]"),
    (pool, {"tokens": "text"}, "tokens must be a sequence of integers, got 'text'"),
    (pool, {"append": [4]}, r"tokens must be a dict .*\{seq: \[token\]\}, got \[4\]"),
    (pool, {"append": {0: 4}}, "tokens must be a sequence of integers, got 4"),
]
BAD_VALUES = [
    # axes
    (attention, {"q": ones(5, 4, 8)}, r"q must have axes \(batch, seqlen_q, .*\(5, 4, 8\)"),
    (attention, {"k": ones(1, 2, 6, 2, 8)}, r"k must have axes .*\(1, 2, 6, 2, 8\)"),
    (softmax, {"x": ones(4)}, r"x must have axes \(num_rows, num_cols\), got shape \(4,\)"),
    (softmax, {"x": ones(2, 3, 4)}, r"x must have axes .*\(2, 3, 4\)"),
    (lookup, {"k_cache": ones(4, 2, 8)}, r"k_cache must have axes \(num_pages, .*\(4, 2, 8\)"),
    (lookup, {"block_table": table(0, 1)}, r"block_table must have axes \(batch, max_pages\)"),
    (lookup, {"seq_lens": table([7, 4])}, r"seq_lens must have axes \(batch\), .*\(1, 2\)"),
    # sizes that do not agree
    (attention, {"v": ones(2, 5, 2, 8)}, r"v must have the shape of k, .*\(2, 5, 2, 8\)"),
    (attention, {"q": ones(3, 5, 4, 8)}, "k and v must have the batch of q, 3, got 2"),
    (attention, {"q": ones(2, 5, 4, 9)}, "k and v must have the head_dim of q, 9, got 8"),
    (attention, {"q": ones(2, 5, 3, 8)}, "must divide .*num_kv_heads=2 for num_heads=3"),
    (backward, {"dout": ones(2, 5, 2, 8)}, r"dout must have the shape of q, .*\(2, 5, 2, 8\)"),
    (backward, {"out": ones(2, 6, 4, 8)}, r"out must have the shape of q, .*\(2, 6, 4, 8\)"),
    (backward, {"lse": ones(2, 5, 4)}, r"lse must have shape .*\(2, 4, 5\), got \(2, 5, 4\)"),
    (lookup, {"v_cache": ones(3, 4, 2, 9)}, "v_cache must have the shape of k_cache"),
    (lookup, {"seq_lens": table(7)}, "seq_lens must have one length for each of the 2 .*got 1"),
    # sizes out of range
    (attention, {x: ones(2, 5, 4, 257) for x in "qkv"}, "head_dim from 1 to 256, got 257"),
    (attention, {x: ones(2, 5, 4, 0) for x in "qkv"}, "q must have head_dim from 1 .*got 0"),
    (attention, {"q": ones(2, 5, 0, 8)}, "q must have at least one head"),
    (attention, {x: ones(2, 6, 0, 8) for x in "kv"}, "num_kv_heads=0 for num_heads=4"),
    (attention, {"q": ones(65536, 0, 1, 1)}, "batch must be at most 65535, got 65536"),
    (attention, {"q": ones(1, 0, 65536, 1)}, "num_heads must be at most 65535, got 65536"),
    (lookup, {f"{x}_cache": ones(3, 0, 2, 8) for x in "kv"}, "at least 1, got page_size=0"),
    (lookup, {f"{x}_cache": ones(3, 4, 2, 300) for x in "kv"}, "k_cache must have head_dim"),
    # layout
    (attention, {"q": ones(2, 5, 4, 16)[..., ::2]}, "q must be contiguous along its last axis"),
    (attention, {"k": ones(2, 8, 2, 6).transpose(0, 3, 2, 1)}, "k must be contiguous"),
    (attention, {"v": ones(2, 6, 2, 8)[..., ::-1]}, "v must be contiguous"),
    (backward, {"dout": ones(2, 5, 8, 4).transpose(0, 1, 3, 2)}, "dout must be contiguous"),
    (softmax, {"x": ones(4, 3).T}, "x must be contiguous"),
    # options
    (attention, {"softmax_scale": np.nan}, "softmax_scale must be finite in float32, got nan"),
    (attention, {"softmax_scale": 1e39}, "softmax_scale must be finite in float32, got 1e"),
    (attention, {"window_size": (-2, 0)}, r"window_size\[0\] must be at least -1, got -2"),
    (backward, {"window_size": (0, -3)}, r"window_size\[1\] must be at least -1, got -3"),
    (attention, {"softcap": -1}, "softcap must be 0, or positive and finite in float32, got -1"),
    (attention, {"softcap": np.nan}, "softcap must be 0, or positive .* got nan"),
    (attention, {"softcap": np.inf}, "softcap must be 0, or positive .* got inf"),
    (backward, {"softcap": 1e39}, "softcap must be 0, or positive .* got 1e"),
    (attention, {"softcap": 1e-60}, "softcap must be 0, or positive .* got 1e-60"),
    (attention, {"alibi_slopes": ones(2)}, "one slope for each of the 4 heads of q, got 2"),
    (attention, {"alibi_slopes": ones(2, 4)}, r"alibi_slopes must have axes \(num_heads\), .*2, 4"),
    (backward, {"alibi_slopes": ones(5)}, "one slope for each of the 4 heads of q, got 5"),
    (attention, {"block_m": 0}, "block_m must be at least 1, got 0"),
    (attention, {"block_n": -4}, "block_n must be at least 1, got -4"),
    (attention, {"block_m": 64, "block_n": 32}, r"at most 1024, got 64 \* 32 = 2048"),
    (attention, {"block_m": 1, "block_n": 768}, "within 49152 bytes .* got 1 and 768"),
    # decoding
    (decode, {"q": ones(2, 4, 8)}, r"q must have axes \(batch, seqlen_q, .*\(2, 4, 8\)"),
    (decode, {"k_cache": ones(6, 2, 8)}, r"k_cache must have axes \(batch, max_len, .*\(6, 2, 8\)"),
    (decode, {"v_cache": ones(2, 7, 2, 8)}, r"v_cache must have the shape of k_cache, .*7, 2, 8"),
    (decode, {"q": ones(3, 1, 4, 8)}, "k_cache and v_cache must have the batch of q, 3, got 2"),
    (decode, {"q": ones(2, 1, 4, 9)}, "k_cache and v_cache must have the head_dim of q, 9, got 8"),
    (decode, {"q": ones(2, 1, 3, 8)}, "must divide .*num_kv_heads=2 for num_heads=3"),
    (decode, {"k_cache": ones(2, 6, 2, 16)[..., ::2]}, "k_cache must be contiguous"),
    (decode, {"seq_lens": table([6, 3])}, r"seq_lens must have axes \(batch\), got shape \(1, 2\)"),
    (decode, {"seq_lens": table(6)}, "one length for each of the 2 sequences of q, got 1"),
    (decode, {"seq_lens": table(6, 7)}, r"seq_lens\[1\] must be from 0 to max_len = 6, got 7"),
    (decode, {"seq_lens": table(-1, 6)}, r"seq_lens\[0\] must be from 0 to max_len = 6, got -1"),
    (decode, {"num_splits": -1}, "num_splits must be at least 0, got -1"),
    (decode, {"softmax_scale": np.inf}, "softmax_scale must be finite in float32, got inf"),
    (decode, {"window_size": (-2, 0)}, r"window_size\[0\] must be at least -1, got -2"),
    (decode, {"softcap": -1}, "softcap must be 0, or positive and finite in float32, got -1"),
    (decode, {"alibi_slopes": ones(2)}, "one slope for each of the 4 heads of q, got 2"),
    (decode, {"alibi_slopes": ones(4, 1)}, r"alibi_slopes must have axes \(num_heads\), .*4, 1"),
    (decode, {"block_m": 0}, "block_m must be at least 1, got 0"),
    (decode, {"block_m": 64, "block_n": 32}, r"at most 1024, got 64 \* 32 = 2048"),
    # decoding from pages
    (paged_decode, {"q": ones(1, 4, 8)}, r"q must have axes \(batch, seqlen_q, .*\(1, 4, 8\)"),
    (paged_decode, {"k_cache": ones(3, 4, 8)}, r"k_cache must have axes \(num_pages, page_size"),
    (paged_decode, {"v_cache": ones(3, 5, 2, 8)}, "v_cache must have the shape of k_cache"),
    (paged_decode, {"q": ones(3, 1, 4, 8)}, "a row for each of the 3 sequences of q, got 2"),
    (paged_decode, {"q": ones(2, 1, 4, 9)}, "must have the head_dim of q, 9, got 8"),
    (paged_decode, {"q": ones(2, 1, 3, 8)}, "must divide .*num_kv_heads=2 for num_heads=3"),
    (paged_decode, {"q": ones(2, 1, 0, 8)}, "q must have at least one head"),
    (paged_decode, {"q": ones(2, 1, 4, 16)[..., ::2]}, "q must be contiguous along its last"),
    (paged_decode, {f"{x}_cache": ones(3, 0, 2, 8) for x in "kv"}, "at least 1, got page_size=0"),
    (paged_decode, {"seq_lens": table(7)}, "one length for each of the 2 rows of block_table"),
    (paged_decode, {"seq_lens": table(9, 4)}, r"seq_lens\[0\] must be from 0 to .* = 8, got 9"),
    (paged_decode, {"seq_lens": table(7, 5)}, r"block_table\[1, 1\] must be a page .*got -1"),
    (paged_decode, {"block_table": table([0, 3], [1, 1])}, r"\[0, 1\] must be .* 0 to 2, .*got 3"),
    (paged_decode, {"num_splits": -1}, "num_splits must be at least 0, got -1"),
    (paged_decode, {"softmax_scale": np.nan}, "softmax_scale must be finite in float32, got nan"),
    (paged_decode, {"window_size": (0, -3)}, r"window_size\[1\] must be at least -1, got -3"),
    (paged_decode, {"softcap": np.inf}, "softcap must be 0, or positive .* got inf"),
    (paged_decode, {"alibi_slopes": ones(2)}, "one slope for each of the 4 heads of q, got 2"),
    (paged_decode, {"alibi_slopes": ones(2, 2)}, r"alibi_slopes must have axes \(num_heads\)"),
    (paged_decode, {"block_n": 0}, "block_n must be at least 1, got 0"),
    (merge, {"out_a": ones(5, 4, 8)}, r"out_a must have axes \(batch, seqlen_q, .*\(5, 4, 8\)"),
    (merge, {"out_b": ones(2, 6, 4, 8)}, r"out_b must have the shape of out_a, .*\(2, 6, 4, 8\)"),
    (merge, {"out_b": ones(2, 5, 8, 4).transpose(0, 1, 3, 2)}, "out_b must be contiguous"),
    (merge, {"lse_a": ones(2, 5, 4)}, r"lse_a must have shape .*\(2, 4, 5\), got \(2, 5, 4\)"),
    (merge, {"lse_b": ones(2, 4)}, r"lse_b must have shape .*\(2, 4, 5\), got \(2, 4\)"),
    (merge, {f"out_{x}": ones(2, 5, 4, 257) for x in "ab"}, "head_dim from 1 to 256, got 257"),
    (merge, {f"out_{x}": ones(65536, 0, 1, 1) for x in "ab"}, "batch must be at most 65535"),
    (block_sparse, {"block_mask": ones(2, dtype=bool)}, r"block_mask must have axes .*\(2,\)"),
    (block_sparse, {"block_mask": ones(1, 1, 2, 2, dtype=bool)}, r"block_mask must have axes"),
    (block_sparse, {"block_mask": ones(2, 3, dtype=bool)}, r"= \(2, 2\) for .*got \(2, 3\)"),
    (block_sparse, {"block_mask": ones(2, 2, dtype=bool), "block_m": 8}, r"\(1, 2\) for block_m=8"),
    # what the tables hold
    (lookup, {"seq_lens": table(7, -1)}, r"seq_lens\[1\] must be from 0 to .* = 8, got -1"),
    (lookup, {"seq_lens": table(9, 4)}, r"seq_lens\[0\] must be from 0 to .* = 8, got 9"),
    (lookup, {"block_table": table([0, 3], [1, -1])}, r"\[0, 1\] must be a page from 0 to 2, .*3"),
    (lookup, {"seq_lens": table(7, 5)}, r"block_table\[1, 1\] must be a page .*\[1\] = 5 .*got -1"),
    (lookup, {"max_len": 6}, r"seq_lens\[0\] must be from 0 to max_len = 6, got 7"),
    (lookup, {"max_len": 9}, r"max_len must be at most max_pages \* page_size = 8, got 9"),
    (lookup, {"max_len": -1}, "max_len must be at least 0, got -1"),
    # writing, copying, swapping pages
    (write, {"k": ones(1, 3, 2, 8)}, r"k must have axes \(num_tokens, num_kv_heads, head_dim\)"),
    (write, {"v": ones(4, 2, 8)}, r"v must have the shape of k, \(3, 2, 8\), got \(4, 2, 8\)"),
    (write, {x: ones(3, 2, 9) for x in "kv"}, r"of the caches, \(2, 8\), got \(2, 9\)"),
    (write, {"k": ones(3, 8, 2).transpose(0, 2, 1)}, "k must be contiguous along its last axis"),
    (write, {"v_cache": ones(5, 4, 8, 2).swapaxes(2, 3)}, "v_cache must be contiguous"),
    (write, {"k_cache": ones(4, 2, 8)}, r"k_cache must have axes \(num_pages, .*\(4, 2, 8\)"),
    (write, {"v_cache": ones(6, 4, 2, 8)}, "v_cache must have the shape of k_cache"),
    (write, {f"{x}_cache": ones(5, 0, 2, 8) for x in "kv"}, "at least 1, got page_size=0"),
    (write, {"k_cache": read_only(5, 4, 2, 8)}, "k_cache must be writable"),
    (write, {"v_cache": read_only(5, 4, 2, 8)}, "v_cache must be writable"),
    (write, {"slot_mapping": table([7, 8, 9])}, r"slot_mapping must have axes \(num_tokens\)"),
    (write, {"slot_mapping": table(7, 8)}, "a slot for each of the 3 tokens of k, got 2"),
    (
        write,
        {"slot_mapping": table(1, 20, 2)},
        r"slot_mapping\[1\] .* from 0 to 19, or -1 .*got 20",
    ),
    (write, {"slot_mapping": table(1, 3, -2)}, r"slot_mapping\[2\] must be a slot .* got -2"),
    (write, {"slot_mapping": table(6, 1, 6)}, r"twice, got slot_mapping\[0\] = slot_.*\[2\] = 6"),
    (copy, {"k_cache": ones(5, 4, 2)}, r"k_cache must have axes .*\(5, 4, 2\)"),
    (copy, {"v_cache": ones(5, 4, 2, 9)}, "v_cache must have the shape of k_cache"),
    (copy, {f"{x}_cache": ones(5, 4, 2, 257) for x in "kv"}, "k_cache must have head_dim from 1"),
    (copy, {"v_cache": read_only(5, 4, 2, 8)}, "v_cache must be writable"),
    (copy, {"src": table([0, 4])}, r"src must have axes \(num_copies\), got shape \(1, 2\)"),
    (copy, {"dst": table(1)}, r"dst must have the shape of src, \(2\,\), got \(1,\)"),
    (copy, {"src": table(0, 5)}, r"src\[1\] must be a page of k_cache, from 0 to 4, got 5"),
    (copy, {"dst": table(-1, 3)}, r"dst\[0\] must be a page of k_cache, from 0 to 4, got -1"),
    (copy, {"dst": table(3, 3)}, r"dst must name no place twice, got dst\[0\] = dst\[1\] = 3"),
    (copy, {"dst": table(1, 0)}, r"no page in common, .* got dst\[1\] = 0, which is also src\[0\]"),
    (swap, {"v_src": ones(4, 4, 2, 8)}, "v_src must have the shape of k_src"),
    (swap, {"k_dst": ones(3, 4, 2, 16)[..., ::2]}, "k_dst must be contiguous"),
    (swap, {"v_dst": read_only(3, 4, 2, 8)}, "v_dst must be writable"),
    (
        swap,
        {f"{x}_dst": ones(3, 5, 2, 8) for x in "kv"},
        r"must have the pages of k_src, \(4, 2, 8\), got \(5, 2, 8\)",
    ),
    (swap, {"src": table(0, 5)}, r"src\[1\] must be a page of k_src, from 0 to 4, got 5"),
    (swap, {"dst": table(3, 1)}, r"dst\[0\] must be a page of k_dst, from 0 to 2, got 3"),
    (swap, {"dst": table(2, 2)}, r"dst must name no place twice, got dst\[0\] = dst\[1\] = 2"),
    (swap, {"dst": table(2)}, "dst must have the shape of src"),
    # the page pool
    (pool, {"num_pages": 0}, "num_pages must be at least 1, got 0"),
    (pool, {"page_size": -1}, "page_size must be at least 1, got -1"),
    (pool, {"num_pages": 2**30, "page_size": 3}, r"a slot fits an int32, got 1073741824 \* 3"),
    (pool, {"seq": 1}, "seq must be a sequence of this pool, not freed, got 1"),
    (pool, {"append": {0: [4], -1: [5]}}, "seq must be a sequence of this pool, .* got -1"),
]


@pytest.mark.parametrize("function, changed, message", BAD_TYPES)
def test_wrong_types_are_named(function, changed, message):
    with pytest.raises(TypeError, match=message):
        function(**changed)


@pytest.mark.parametrize("function, changed, message", BAD_VALUES)
def test_wrong_values_are_named(function, changed, message):
    with pytest.raises(ValueError, match=message):
        function(**changed)


def test_every_public_argument_is_in_the_tables():
    assert len(BAD_TYPES) + len(BAD_VALUES) >= 40
    changed = {name for _, arguments, _ in BAD_TYPES + BAD_VALUES for name in arguments}
    assert changed >= {"q", "k", "v", "dout", "out", "lse", "x", "causal", "softmax_scale"}
    assert changed >= {"block_m", "block_n", "max_len", "block_table", "seq_lens", "k_cache"}
    assert changed >= {"block_mask", "k_cache", "v_cache", "num_splits"}
    assert changed >= {"out_a", "lse_a", "out_b", "lse_b"}


@pytest.mark.parametrize(
    "name", ["naive_attn", "flash_attn_v1", "flash_attn_v2", "naive_softmax", "online_softmax"]
)
def test_every_function_checks(name):
    with pytest.raises(TypeError, match="float32, got float64"):
        x = np.zeros((2, 3) if "softmax" in name else (1, 2, 1, 4))
        getattr(fa_numba, name)(*[x] if "softmax" in name else [x, x, x])


def test_good_arguments_come_back_in_the_form_that_launchers_need():
    scale = checks.check_softmax_scale(None, 64)
    assert scale == np.float32(0.125) and scale.dtype == np.float32
    assert checks.check_softmax_scale(0, 64) == 0  # and not the default
    assert checks.check_softmax_scale(np.float64(2), 64).dtype == np.float32
    assert checks.check_causal(np.True_) is True
    constants, slopes = checks.check_mask(
        ones(1, 1, 2, 4), True, [np.int64(3), 5], np.float32(2), None
    )
    assert constants == (True, (3, -1), 2.0, False) and isinstance(slopes, np.float32)
    assert [type(x) for x in constants] == [bool, tuple, float, bool]
    assert checks.check_block_sizes("flash_attn_v2", 64, None, None) == (16, 16)
    assert checks.check_block_sizes("flash_attn_v2", 64, np.int64(4), None) == (4, 16)
    attention(block_m=1, block_n=128, softmax_scale=-1, causal=np.False_)
    attention(q=ones(2, 0, 4, 8))
