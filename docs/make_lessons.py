"""Write the tables of docs/lessons.md: the lessons with their minutes, ideas and exercises.

python docs/make_lessons.py
"""

from collections import Counter
from pathlib import Path

from fa_numba.workbook import contents, stubs
from fa_numba.workbook.tables import as_markdown, between_marks

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "lessons.md"

PARTS = {
    "The machine": {
        "00": "a kernel, a thread, a guard, a thread block, shared memory, a barrier, a warp",
        "01": "three limits: memory, arithmetic, overhead; count, divide, compare",
    },
    "Softmax": {
        "02": "subtract the maximum; the threads of a block reduce a row by a tree",
        "03": "maximum and sum in one pass: one factor rescales all that was summed",
    },
    "Attention": {
        "04": "heads, a causal mask; S and P in HBM: count the bytes",
        "05": "shared memory, barriers, banks, coalescing, and how large a tile can be",
        "06": "never write S: rescale instead",
        "07": "swap the loops: the state stays in registers, out is divided once",
        "08": "rebuild P from lse, tile by tile; delta makes each tile independent",
        "09": "any mask as a function; intervals find its tiles; a window and a learned sink",
        "10": "sequences end to end, none sees its neighbour; dropout that nobody stores",
    },
    "Fast": {
        "11": "a library's speed without tensor cores: loads per FMA, machine code, occupancy",
        "12": "which lane holds which element; P is already in its place; 3 × TF32",
        "13": "who waits for whom, who computes which tile: wgmma, TMA, persistent kernels",
        "14": "256 numbers: scales in the right place, a rotation; 2^x by FMAs",
        "15": "a launch is not a kernel: honest times, and counters that name the line",
    },
    "Inference": {
        "16": "keep keys and values, read them once for a group, in chunks, and only a window",
        "17": "split the keys, merge the parts exactly; a prefix of many is read once",
        "18": "a block table for one long array, the cost of the detour, and pages of bytes",
        "19": "who has which page, who shares it, who must leave",
    },
    "Further": {
        "20": "a state that does not grow, and what it forgets",
        "21": "rings, stripes and trees: who waits, what travels",
        "22": "a small GPT learns with your kernels",
        "23": "many requests at a time: who enters, who leaves, which guess stays",
        "24": "one latent for all heads: two matrices move out of the cache",
        "25": "bounds say which pages may matter; a list says which tiles a prompt reads",
    },
}


def page():
    """The text of docs/lessons.md with new tables."""
    parts, kinds = [], Counter()
    lessons = {lesson.number: lesson for lesson in contents.lessons(ROOT)}
    for part, ideas in PARTS.items():
        rows = []
        for number, idea in ideas.items():
            lesson = lessons[number]
            said = " · ".join(f"{e.short} {stubs.read(e).kind}" for e in lesson.exercises)
            link = f"[{number} · {lesson.title}](../notebooks/{lesson.path.name})"
            rows.append((link, idea, " + ".join(map(str, lesson.sittings)), said))
            kinds += lesson.kinds()
        table = as_markdown(["lesson", "the idea", "minutes", "exercises"], rows)
        parts.append(f"## {part}\n\n{table}")
    hours = f"{sum(lesson.minutes for lesson in lessons.values()) / 60:.0f} hours"
    counted = f"{kinds.total()} exercises: {contents.counted(kinds)}"
    parts.append(f"{len(lessons)} lessons, {hours}, {counted}.")
    text = PAGE.read_text(encoding="utf-8")
    return between_marks(text, {"lessons": "\n\n".join(parts)})


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
