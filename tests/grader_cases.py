"""The sizes that graders try: recorded from their own runs, and compared with rules.

A plugin of pytest (``-p tests.grader_cases``) notes every launch and every call of an answer while
its grader runs, into the JSON file that FA_NUMBA_GRADER_CASES names. `gaps` compares the notes of
an exercise with the rules:

warps      a launch with more than one warp for each thread block
HEAD_DIM   a launch with HEAD_DIM = 128
tiles      along each axis that is cut into tiles: at least 10 of them, and a last one that is
           not full
sizes      along each axis a size that is no power of 2, and above any limit of a shortcut
scores     scores below -1e4, and a row of different scores whose maximum is 0

`AXES` names the axes of each exercise, `SCORES` the arguments that hold scores, and `EXEMPT` the
rules that an exercise cannot keep, with the reason.

``python -m tests.grader_cases ex06d`` grades our solution and prints the gaps.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import math
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from fa_numba.workbook.catalog import all_exercises, find
from fa_numba.workbook.grading.answer import Answer
from fa_numba.workbook.grading.proxies import Kernel, Proxy

VARIABLE = "FA_NUMBA_GRADER_CASES"
LIMIT = 256  # of a shortcut, where AXES names no other: the threads of a usual thread block

# "array.axis" or "argument", "/" its tile: a constant of the factory, "x" or "y" of the thread
# block, a number, or a product; ">" the limit. A list counts as an array.
AXES = {
    "ex00a": "x.0",
    "ex00b": "x.0>64",
    "ex00c": "a.0 a.1",
    "ex00d": "x.0 x.1",
    "ex00e": "a.0/y a.1/x",
    "ex00f": "x.0/64",
    "ex00h": "x.0/64",
    "ex02a": "x.0/x x.1>4096",
    "ex02b": "x.0>10",
    "ex02c": "x.0>10 x.1/x>1024",
    "ex02d": "x.0>10 x.1/x>4096",
    "ex03a": "",
    "ex03b": "x.0>10 x.1/x>4096",
    "ex03c": "x.0>10 x.1/x>4096",
    "ex03d": "x.0/x x.1 K>16",
    "ex04a": "x.0 x.1>64 num_heads>8",
    "ex04b": "q.0 k.0",
    "ex04e": "q.0/x k.0/key_chunk_size",
    "ex05a": "x.0 x.1/x>4096",
    "ex05b": "a.0/TILE a.1/TILE b.1/TILE",
    "ex05c": "x.0/32 x.1/32>256",
    "ex06a": "s.0 s.1 v.1>128",
    "ex06b": "q.0/BLOCK_M k.0/BLOCK_N",
    "ex06c": "q.0/BLOCK_M k.0/BLOCK_N",
    "ex06d": "s.0/BLOCK_M",
    "ex07a": "seqlen_q/BLOCK_M seqlen_k/BLOCK_N BLOCK_M>64 BLOCK_N>64",
    "ex07b": "s.0/BLOCK_M s.1/BLOCK_N",
    "ex07c": "s.0/BLOCK_M s.1/32",
    "ex07d": "q.0/BLOCK_M k.0/BLOCK_N",
    "ex07e": "s.0/32 s.1/4",
    "ex08a": "out.0/4 out.1/32",
    "ex08b": "q.0/BLOCK_M k.0/BLOCK_N",
    "ex08c": "q.0/BLOCK_M k.0/BLOCK_N",
    "ex08d": "q.0>64 k.0>64 q.1>64",
    "ex08e": "N/BLOCK_M N/BLOCK_N HEAD_DIM>128 BLOCK_M>64 BLOCK_N>64",
    "ex09a": "",
    "ex09b": "sees.0/BLOCK_M sees.1/BLOCK_N BLOCK_M>64 BLOCK_N>64",
    "ex09c": "q.0/BLOCK_M k.0/BLOCK_N",
    "ex09d": "lse.0>64 lse.1/x",
    "ex09e": "qk.0/16 qk.1/16",
    "ex10a": "lengths.0>16 tile>64",
    "ex10b": "lengths.0>64 starts.0>64",
    "ex10c": "cu_seqlens.0 BLOCK>64",
    "ex10d": "q.0/BLOCK",
    "ex10e": "lengths.0>64",
    "ex10f": "",
    "ex11a": "s.0/64",
    "ex11b": "a.0/4*TX a.1/TX b.1/4*TX",
    "ex11c": "",
    "ex11d": "",
    "ex12a": "x.0/16 x.1/16 y.1/8",
    "ex12b": "x.0/32 found.0",
    "ex12c": "s.0/16 s.1/16 v.1/8",
    "ex12d": "x.0/16 x.1/8 y.1/8",
    "ex13a": "BLOCK_N num_rows d n",
    "ex13b": "num_tiles num_stages>8",
    "ex13c": "q.0 q.1>128 k.0/BLOCK_N BLOCK_N>64",
    "ex13d": "v.0/8 v.1>64 num_tiles>128 found.0>128",
    "ex13e": "x.1 NUM_STAGES>8",
    "ex13f": "k.0>32 k.1>64",
    "ex14b": "x.0/block_rows x.1/64",
    "ex14c": "q8.0 HEAD_DIM>128 k8.0/BLOCK_N",
    "ex14d": "x.0",
    "ex14e": "x.0/64",
    "ex15c": "x.0/y x.1/x>4096",
    "ex15d": "num_heads head_dim",
    "ex15e": "x.0/32 x.1/32",
    "ex16b": "group_size>64 kv_head seqlen_q seqlen_k",
    "ex16c": "q.0>64 k_cache.1/BLOCK_N k_cache.2>64 HEAD_DIM>128 GROUP_SIZE>16 BLOCK_N>32",
    "ex16d": "q.0>64 k_cache.0",
    "ex16e": "num_sinks window",
    "ex17a": "",
    "ex17b": "num_splits>1024 num_n_tiles>1024 thread_blocks num_sms",
    "ex17c": (
        "out_partial.0 q.0>64 k_cache.1/BLOCK_N k_cache.2>64 HEAD_DIM>128 GROUP_SIZE>16 BLOCK_N>32"
    ),
    "ex17d": "out_partial.0>1024 out_partial.1>64 out_partial.2>64 HEAD_DIM/x",
    "ex17e": "out_partial.0 out_partial.3/x",
    "ex17f": (
        "out_partial.0 q.0>64 k_prefix.0/BLOCK_N k_prefix.1>64 HEAD_DIM>128 GROUP_SIZE>16"
        " BLOCK_M>16 BLOCK_N>32"
    ),
    "ex18a": "k.0 k.1 k.2 k_cache.0 k_cache.1 block_table.0 block_table.1",
    "ex18b": "k_out.0 k_out.1/k_cache.1 k_cache.1 k_cache.2>64 k_cache.3 x",
    "ex18c": "q.0 q.1>128 s.1/8 k_cache.1",
    **dict.fromkeys(
        ("ex18d", "ex18e"),
        "out_partial.0 q.0>64 k_cache.0 k_cache.1 k_cache.2>64 block_table.1 HEAD_DIM>128"
        " GROUP_SIZE>16 BLOCK_N>32",
    ),
    "ex18f": "",  # the kernel is given
    "ex19a": "n/page_size page_size trace.0",
    "ex19b": "length num_pages page_size>64",
    "ex19c": "length num_pages page_size>64 copies.0 k_cache.0 k_cache.1>64 k_cache.2>64",
    "ex19d": "tokens.0 tokens.1/page_size page_size>64",
    "ex20a": "v.0 phi_q.1 state.1",
    "ex20b": "v.0/CHUNK phi_q.1 state.1>128 CHUNK>64",
    "ex20c": "x.1 phi.1>4096",
    "ex20d": "q.0 q.1>64 w_q.1>64",
    "ex21a": "world_size>4 q.0 q.1>128",
    "ex21b": "world_size>4 seqlen",
    "ex21c": "world_size>4 c",
    "ex21d": "world_size>4",
    "ex21e": "outs.0>4 outs.1 outs.2/x",
    "ex21f": "world_size>4",
    "ex21g": "out.0 out.1/x total.0 total.1",
    "ex22a": "logits.0 logits.1/64",
    "ex22b": "weights.0/x t",
    "ex22c": "tokens.0 dlogits.1 last.1/64",
    "ex22d": "x.0 x.1>16 x.2>64 cos.0",
    "ex22e": "dmiddle.0 w_out.0>16",
    "ex23a": "num_cached.0 positions.0/64 page_size>64 block_table.1",
    "ex23b": "answers.0 batch>64",
    "ex23c": "waiting.0 running.0 num_free page_size>64",
    "ex23d": "lengths.0 num_free page_size>64",
    "ex23e": "p.0 drafted.1>64 p.2/64",
    "ex23f": "parents.0 parents.1>8",
    "ex24a": "q_nope.0 q_nope.1 q_rope.1 w_uk.1",
    "ex24b": "q.0/BLOCK_M>32 latent.0/BLOCK_N latent.1 k_rope.1 BLOCK_N>32",
    "ex24c": "q.0>64 q.1/BLOCK_M>32 q.2 latent_cache.1/BLOCK_N out.2 BLOCK_N>32",
    "ex25a": "k_cache.1 k_cache.2>64 k_cache.3 block_table.0>64 block_table.1",
    "ex25b": "q.0>64 q.1>64 q.2 k_min.1>64 block_table.1 page_size>64",
    "ex25c": "q.0/BLOCK_M k.0/BLOCK_N lists.0>64 lists.1",
}  # fmt: skip

# The arguments that are scores, or q and k.
SCORES = {
    **dict.fromkeys(("ex00f", "ex02a", "ex02b", "ex02d", "ex03b", "ex03c", "ex03d", "ex05a"), "x"),
    **dict.fromkeys(("ex03a", "ex06a", "ex06d", "ex07b", "ex07c", "ex07e"), "s"),
    **dict.fromkeys(("ex16c", "ex16d", "ex17c", "ex18d"), "q k_cache"),
    "ex17f": "q k_prefix",
    "ex24c": "q latent_cache",
    "ex25c": "q k",
    **dict.fromkeys(
        ("ex04b", "ex04e", "ex06b", "ex06c", "ex07d", "ex08b", "ex08c", "ex09c", "ex10d", "ex13c"),
        "q k",
    ),
}

MULTIPLES = "by the statement lengths are multiples of the tile"
EXEMPT = {
    "ex00f": {"x.0 ragged": MULTIPLES},
    "ex00h": {"x.0 ragged": MULTIPLES},
    "ex03b": {"warps": "the statement's thread block is one warp"},
    "ex04e": {"HEAD_DIM": "the given file sets it to 8"},
    "ex05c": {
        "warps": "the statement's thread block is one warp",
        "x.0 ragged": MULTIPLES,
        "x.1 ragged": MULTIPLES,
    },
    "ex07b": {"s.0 ragged": MULTIPLES, "s.1 ragged": MULTIPLES},
    "ex07c": {"s.0 ragged": MULTIPLES, "s.1 ragged": MULTIPLES},
    "ex07e": {"warps": "the statement's thread block is one warp", "s.1 ragged": MULTIPLES},
    "ex09b": {"sees.0 ragged": MULTIPLES, "sees.1 ragged": MULTIPLES},
    "ex12a": {f"{axis} ragged": MULTIPLES for axis in ("x.0", "x.1", "y.1")},
    "ex12b": {"x.0 ragged": MULTIPLES},
    "ex12c": {f"{axis} ragged": MULTIPLES for axis in ("s.0", "s.1", "v.1")},
    "ex12d": {"y.1 ragged": MULTIPLES},
    "ex14c": {"k8.0 ragged": MULTIPLES},
    "ex15e": {"x.0 ragged": MULTIPLES, "x.1 ragged": MULTIPLES},
    "ex16d": {"warps": "the statement's thread block is one warp"},
    **dict.fromkeys(("ex17d", "ex17e"), {"warps": "the statement gives a row one warp"}),
    "ex18c": {"warps": "the given file sets the thread block to 8", "s.1 ragged": MULTIPLES},
    **dict.fromkeys(("ex25a", "ex25b"), {"warps": "the statement's thread block is one warp"}),
}


# --- the recorder


def _noted(name, value):
    """What is kept of an argument: {"n": 5} of a number, {"x.0": 8, "x.1": 3} of an array."""
    if isinstance(value, np.ndarray | list | tuple | dict):
        shape = value.shape if isinstance(value, np.ndarray) else (len(value),)
        return {f"{name}.{axis}": size for axis, size in enumerate(shape)}
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return {name: int(value)}
    return {}


def _noted_scores(names, arguments):
    """Whether a call has scores below -1e4, and a row whose maximum is 0."""
    arrays = [np.asarray(arguments[n], np.float64) for n in names if n in arguments]
    if len(arrays) != len(names):
        return {}
    with np.errstate(all="ignore"):
        scores = arrays[0]
        if len(arrays) == 2:
            q, k = arrays
            scale = arguments.get("softmax_scale", 1 / np.sqrt(q.shape[-1]))
            if q.shape[:-2] != k.shape[:-2]:  # keys in pages: each query meets all
                q, k = (x.reshape(-1, x.shape[-1]) for x in arrays)
            scores = float(scale) * (q @ np.swapaxes(k, -1, -2))
        scores = np.where(np.isnan(scores), -np.inf, scores)  # of slots without a token
        finite = np.isfinite(scores)
        low = bool((finite & (scores < -1e4)).any())
        zero = (scores.max(axis=-1, initial=-np.inf) == 0) & ((scores < 0) & finite).any(axis=-1)
    return {"low scores": low, "maximum 0": bool(zero.any())}


class Recorder:
    """Notes the requests that judges send to answers."""

    def __init__(self):
        self.notes, self.constants = {}, {}

    def note(self, answer, do, of, args):
        short = answer.path.stem.split("_")[0]
        if do in ("run", "trace"):
            (grid, block, *args) = args
            names = (
                answer.parameters(of, len(args))
                if isinstance(of, Kernel)
                else list(inspect.signature(of.py_func).parameters)
            )
            block = [*(block if isinstance(block, tuple) else (block,)), 1, 1][:3]
            noted = dict(zip("xyz", map(int, block), strict=True))
            noted |= self.constants.get((answer, *_key(of)), {}) | {"launch": 1}
        else:
            ours = inspect.isfunction(of)  # which calls the answer, over there
            names = (
                list(inspect.signature(of).parameters)
                if ours
                else _parameters(answer.path, of.__name__)
            )
            noted = {}
        arguments = dict(zip(names or (), args, strict=False))
        for name, value in arguments.items():
            noted |= _noted(name, value)
        if short in SCORES:
            noted |= _noted_scores(SCORES[short].split(), arguments)
        self.notes.setdefault(short, set()).add(tuple(sorted(noted.items())))
        return noted

    def request(self, answer, do, of=None, *, args=(), **more):
        noted = {}
        if do in ("run", "trace", "call"):
            noted = self.note(answer, do, of, args)
        for item in args if do == "each" else ():
            self.note(answer, do, of, item)
        value = plain_request(answer, do, of, args=args, **more)
        if isinstance(value, Kernel):
            self.constants[answer, *_key(value)] = noted
        return value


def _key(kernel):
    if not isinstance(kernel, Proxy):
        return None, id(kernel)
    return kernel._generation, kernel._number


@functools.cache
def _parameters(path, name):
    """The names of a function's parameters, in the answer's file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _parameters(path, "__init__")
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return [a.arg for a in node.args.args if a.arg != "self"]
    return []


plain_request = Answer.request


def pytest_configure(config):
    config.recorder = recorder = Recorder()

    def request(self, do, of=None, **more):
        return recorder.request(self, do, of, **more)

    Answer.request = request


def pytest_unconfigure(config):
    Answer.request = plain_request
    notes = {short: [dict(n) for n in some] for short, some in config.recorder.notes.items()}
    Path(os.environ[VARIABLE]).write_text(json.dumps(notes), encoding="utf-8")


# --- the rules


def gaps(exercise, notes: list[dict]) -> list[str]:
    """The rules that the cases of an exercise's grader leave out."""
    short = exercise.short
    launches = [n for n in notes if "launch" in n]
    statement = ast.get_docstring(ast.parse(exercise.solution.read_text(encoding="utf-8")))
    found = {}
    if launches:
        if max(n["x"] * n["y"] * n["z"] for n in launches) <= 32:
            found["warps"] = "no thread block has more than one warp"
        if "head_dim" in statement.lower() and not any(map(_is_wide, launches)):
            found["HEAD_DIM"] = "HEAD_DIM is never 128"
        if short not in AXES:
            found["axes"] = f"AXES has no row for {short}"
    for axis in AXES.get(short, "").split():
        size, _, limit = axis.partition(">")
        size, _, tile = size.partition("/")
        cases = [(n[size], _tile(n, tile)) for n in notes if size in n]
        if not cases:
            found[size] = f"{size} is never seen"
            continue
        odd = max((s for s, _ in cases if s & (s - 1)), default=0)
        if odd <= int(limit or LIMIT):
            found[f"{size} size"] = (
                f"{size} is at most {odd}, of sizes that are no power of 2; it must be above "
                f"{limit or LIMIT}"
            )
        if tile:
            most = max(-(-s // t) for s, t in cases if t)
            if most < 10:
                found[f"{size} tiles"] = f"{size} has at most {most} tiles; it must have 10"
            if not any(t and s % t for s, t in cases):
                found[f"{size} ragged"] = f"the last tile along {size} is always full"
    for rule in ("low scores", "maximum 0") if short in SCORES else ():
        if not any(n.get(rule) for n in notes):
            found[rule] = f"never tried: {rule}"
    exempt = EXEMPT.get(short, {})
    unused = [f"EXEMPT is not needed: {rule}" for rule in exempt if rule not in found]
    return [text for rule, text in found.items() if rule not in exempt] + unused


def _is_wide(note):
    for name in ("HEAD_DIM", "head_dim"):
        if name in note:
            return note[name] == 128
    return any(size == 128 for key, size in note.items() if "." in key)


def _tile(note, tile):
    """The tile's size in a call, or 0 where it has none."""
    sizes = [int(t) if t.isdigit() else note.get(t, 0) for t in tile.split("*")]
    return math.prod(sizes)


def main(names):
    from fa_numba.workbook.grader import grade_all

    exercises = [e for name in names for e in find(name)] or all_exercises()
    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = file = f"{folder}/cases.json"
        os.environ["PYTEST_ADDOPTS"] = "-p tests.grader_cases"
        report = grade_all(exercises, impl="solutions")
        notes = json.loads(Path(file).read_text(encoding="utf-8"))
    for graded in report.graded:
        if not graded.passed:
            print(graded)
    found = {e.short: gaps(e, notes.get(e.short, [])) for e in exercises}
    for short, texts in found.items():
        print("\n".join(f"{short}  {text}" for text in texts) or f"{short}  complete")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
