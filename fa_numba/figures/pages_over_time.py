"""The pages of a server, step by step: whose they are, and how full."""

from matplotlib.patches import Rectangle

from fa_numba.figures.style import COLOURS, GREY, INK, LIGHT, PAPER, Drawing, on_paper, tint

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


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


@on_paper
def pages_over_time(frames, num_pages, page_size):
    """A column for each step, a row for each page, a colour for each request.

    A cell is filled as far as the page is; a shared page has the colours of all who share it. Below
    are those who wait, in a frame if they were preempted.

    Parameters
    ----------
    frames : list of dict
        As from `frame_of`.
    num_pages, page_size : int
    """
    queue = max(1, *(len(frame["queue"]) for frame in frames))
    figure = Drawing(0.235 * len(frames) + 1.2, 0.235 * (num_pages + queue) + 1.15)
    ax = figure.subplots()
    lines, before = [], {}
    for step, frame in enumerate(frames):
        for page in range(num_pages):
            owners, filled = frame["pages"].get(page, ((), 0))
            ax.add_patch(Rectangle((step, page), 1, 1, facecolor=PAPER, edgecolor=LIGHT,
                                   linewidth=0.8))  # fmt: skip
            height = 0.9 * filled / page_size
            for k, owner in enumerate(owners):
                ax.add_patch(Rectangle((step + k / len(owners), page + 0.95 - height),
                                       1 / len(owners), height, linewidth=0,
                                       facecolor=_colour(owner)))  # fmt: skip
            if owners and list(owners) != before.get(page):
                ax.text(step + 0.5, page + 0.55, "".join(map(_letter, owners)), ha="center",
                        va="center", fontsize=8, color=INK, weight="bold")  # fmt: skip
            before[page] = list(owners)
        for row, i in enumerate(frame["queue"]):
            y, gone = num_pages + 0.6 + row, i in frame["preempted"]
            colour = COLOURS[i % len(COLOURS)]
            ax.text(step + 0.5, y + 0.5, _letter(i), ha="center", va="center", fontsize=8,
                    color=colour, weight="bold" if gone else "normal")  # fmt: skip
            if gone:
                ax.add_patch(Rectangle((step + 0.05, y + 0.05), 0.9, 0.9, facecolor="none",
                                       edgecolor=colour))  # fmt: skip
        lines.append(_line(step, frame, num_pages))
    ax.text(-0.3, num_pages / 2, f"{num_pages} pages\nof {page_size} slots", ha="right",
            va="center", fontsize=9, color=INK)  # fmt: skip
    ax.text(-0.3, num_pages + 0.6 + queue / 2, "in the queue", ha="right", va="center", fontsize=9,
            color=INK)  # fmt: skip
    for step in range(0, len(frames), 5):
        ax.text(step + 0.5, -0.35, str(step + 1), ha="center", va="center", fontsize=8, color=GREY)
    ax.text(-0.3, -0.35, "after step", ha="right", va="center", fontsize=8, color=GREY)
    ax.set(xlim=(-3.6, len(frames) + 0.2), ylim=(num_pages + queue + 0.8, -0.9))
    ax.axis("off")
    figure.text = "\n".join(lines)
    return figure


def _line(step, frame, num_pages):
    """The frame in a line: the owner of each page, a dot where it is free."""
    owners = [frame["pages"].get(page, ((), 0))[0] for page in range(num_pages)]
    pages = " ".join("".join(map(_letter, o)) or "·" for o in owners)
    words = f"after step {step + 1:>2}: {pages}"
    if frame["queue"]:
        names = (
            f"[{_letter(i)}]" if i in frame["preempted"] else _letter(i) for i in frame["queue"]
        )
        words += f"; in the queue {' '.join(names)}"
    return words


def _letter(i):
    return LETTERS[i % len(LETTERS)]


def _colour(i):
    return tint(COLOURS[i % len(COLOURS)], 0.4 if i // len(COLOURS) % 2 == 0 else 0.2)
