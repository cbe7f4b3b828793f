"""The pages of a server under traffic, step by step: whose they are, and how full."""

from fa_numba.figures.steps.steps import COLOURS, Step, Steps, box, label

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLUMNS, WIDE, HIGH = 6, 54, 62


def frame_of(pool, seqs, queue=(), preempted=()):
    """The pages of a server between two steps.

    Parameters
    ----------
    pool : PagePool
    seqs : dict of int to int or None
        The sequence in the pool of each request that runs, by the request's number; None: it has no
        pages yet.
    queue : sequence of int
        Numbers of the requests that wait, the next one first.
    preempted : sequence of int
        Those among them that have run before.

    Returns
    -------
    dict
        "pages": dict of page to (numbers of the requests that have it, slots filled); "queue" and
        "preempted".
    """
    pages = {}
    for i, seq in seqs.items():
        for column, page in enumerate(() if seq is None else pool.pages(seq)):
            owners, filled = pages.get(page, ([], 0))
            here = min(pool.page_size, pool.length(seq) - column * pool.page_size)
            pages[page] = [*owners, i], max(filled, here)
    return {"pages": pages, "queue": list(queue), "preempted": list(preempted)}


def page_pool_steps(frames, num_pages, page_size):
    """A step for each frame: a box for each page, filled slot by slot, and the queue below.

    Parameters
    ----------
    frames : list of dict
        As from `frame_of`.
    num_pages, page_size : int

    Returns
    -------
    Steps
    """
    rows = -(-num_pages // COLUMNS)
    most = max(len(frame["queue"]) for frame in frames)
    size = 6 + COLUMNS * (WIDE + 2), 44 + rows * (HIGH + 6) + 30 * bool(most)
    steps, before = [], {}
    for number, frame in enumerate(frames, 1):
        steps.append(Step(draw(frame, before, number, num_pages, page_size),
                          in_words(number, frame, num_pages)))  # fmt: skip
        before = frame["pages"]
    return Steps(
        f"{num_pages} pages of {page_size} slots under traffic: a letter for each request.",
        steps, size,
    )  # fmt: skip


def draw(frame, before, number, num_pages, page_size):
    """One frame; a page with a new owner has a thick edge."""
    used = len(frame["pages"])
    title = f"step {number}: {used} of {num_pages} in use; thick: new owner"
    parts = [label(2, 14, title)]
    high = (HIGH - 20) / page_size
    for page in range(num_pages):
        x, y = 2 + page % COLUMNS * (WIDE + 2), 24 + page // COLUMNS * (HIGH + 6)
        owners, filled = frame["pages"].get(page, ([], 0))
        new = owners and owners != before.get(page, ([], 0))[0]
        for slot in range(filled):
            top = y + HIGH - high * (slot + 1)
            parts.append(box(x, top, WIDE, high, "", *colour(owners[0])))
        parts.append(box(x, y, WIDE, HIGH, "", "clear", *["hot"] * bool(new)))
        parts.append(label(x + WIDE / 2, y + 15, "".join(map(letter, owners)) or "free",
                           "ink" if owners else "grey", anchor="middle"))  # fmt: skip
    y = 24 + -(-num_pages // COLUMNS) * (HIGH + 6)
    if frame["queue"]:
        parts.append(label(2, y + 17, "in the queue"))
        if frame["preempted"]:
            parts.append(label(2, y + 42, "dashed: had to leave", "grey"))
    for place, i in enumerate(frame["queue"]):
        gone = ["dashed"] if i in frame["preempted"] else []
        parts.append(box(90 + 30 * place, y, 26, 24, letter(i), *gone))
    return "".join(parts)


def in_words(number, frame, num_pages):
    """The frame in a line: the owner of each page, a dot where it is free."""
    owners = [frame["pages"].get(page, ((), 0))[0] for page in range(num_pages)]
    pages = " ".join("".join(map(letter, o)) or "·" for o in owners)
    words = f"after step {number}: {pages}"
    if frame["queue"]:
        names = (f"[{letter(i)}]" if i in frame["preempted"] else letter(i)
                 for i in frame["queue"])  # fmt: skip
        words += f"; in the queue {' '.join(names)}"
    return words


def letter(i):
    return LETTERS[i % len(LETTERS)]


def colour(i):
    """The kinds of a request's boxes: later ones have the colours again, pale."""
    return [COLOURS[i % len(COLOURS)]] + ["faint"] * (i // len(COLOURS) % 2)
