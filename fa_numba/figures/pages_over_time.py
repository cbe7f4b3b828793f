"""The pages of a server, step by step: whose they are, and how full."""

from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from fa_numba.figures.style import COLOURS, GREY, INK, LIGHT, PAPER, Drawing, on_paper

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def frame_of(schedule, requests):
    """The pages of a server between two steps.

    Parameters
    ----------
    schedule : Schedule
        Of a `fa_numba.language_model.server.Engine`; its requests have one answer each.
    requests : list of Request
        All that were submitted; their indices name them.

    Returns
    -------
    dict
        "pages": dict of page to (indices of the requests that have it, slots filled); "waiting" and
        "preempted": lists of indices.
    """
    pool, pages = schedule.pool, {}
    for i, request in enumerate(requests):
        for branch in request.branches if request in schedule.running else ():
            if branch.seq is None:
                continue
            length = pool.length(branch.seq)
            for column, page in enumerate(pool.pages(branch.seq)):
                owners, filled = pages.get(page, ([], 0))
                here = min(pool.page_size, length - column * pool.page_size)
                pages[page] = [*owners, i], max(filled, here)
    preempted = [requests.index(r) for r in schedule.queue.preempted]
    waiting = [requests.index(r) for r in schedule.queue]
    return {
        "pages": pages,
        "waiting": [i for i in waiting if i not in preempted],
        "preempted": preempted,
    }


@on_paper
def pages_over_time(frames, num_pages, page_size):
    """A column for each step, a row for each page, a colour for each request.

    A cell is filled as far as the page is; a shared page has the colours of all who share it. Below
    it, who waits, and in a frame who was preempted.

    Parameters
    ----------
    frames : list of dict
        As from `frame_of`.
    num_pages, page_size : int

    Returns
    -------
    Drawing
    """
    queue = max([len(f["waiting"]) + len(f["preempted"]) for f in frames] + [1])
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
                                       facecolor=_tint(owner)))  # fmt: skip
            if owners and list(owners) != before.get(page):
                ax.text(step + 0.5, page + 0.55, "".join(map(_letter, owners)), ha="center",
                        va="center", fontsize=8, color=INK, weight="bold")  # fmt: skip
            before[page] = list(owners)
        in_line = [(i, True) for i in frame["preempted"]] + [(i, False) for i in frame["waiting"]]
        for row, (i, gone) in enumerate(in_line):
            y = num_pages + 0.6 + row
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
    for name in ("preempted", "waiting"):
        if frame[name]:
            words += f"; {name} {' '.join(map(_letter, frame[name]))}"
    return words


def _letter(i):
    return LETTERS[i % len(LETTERS)]


def _tint(i):
    share = 0.55 if i // len(COLOURS) % 2 == 0 else 0.3
    return tuple(1 - share * (1 - channel) for channel in to_rgb(COLOURS[i % len(COLOURS)]))
