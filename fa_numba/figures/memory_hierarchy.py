"""The levels of a GPU's memory: how much each holds, how fast it is, how long an answer takes."""

from fa_numba.analysis.devices import device
from fa_numba.analysis.hierarchy import hierarchy
from fa_numba.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, Drawing, on_paper, plain

COLOURS = BLUE, ORANGE, GREEN, PURPLE, GREY, GREY


def _size(number, unit):
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


@on_paper
def memory_hierarchy(name="A100-40GB"):
    """Size, bandwidth and latency of each level of a GPU's memory, and the bandwidth of its links.

    Parameters
    ----------
    name : str
        A GPU of the device table.

    Returns
    -------
    Drawing
        In full colour is the part that one thread, or one thread block, can have. Numbers that the
        vendor does not print, and nobody has measured for us, are left out.
    """
    gpu = device(name)
    levels = hierarchy(gpu)
    figure = Drawing(10, 3.4, text=_words(levels))
    panels = figure.subplots(1, 3, sharey=True, width_ratios=(1.25, 1, 0.9))
    columns = (
        ("holds", "B", [level.num_bytes for level in levels], (1e2, 1e14)),
        ("moves, B/s", "B/s", [level.bandwidth for level in levels], (1e9, 1e17)),
        ("answers after, clocks", "", [level.clocks for level in levels], (1, 2e4)),
    )
    places = range(len(levels))
    for ax, (title, unit, values, limits) in zip(panels, columns, strict=True):
        plain(ax, grid="x")
        for place, level, value in zip(places, levels, values, strict=True):
            if value is None:
                if unit != "B" or level.num_bytes:
                    ax.text(limits[0] * 1.3, place, "–", va="center", color=GREY)
                continue
            faint = 0.4 if unit == "B" and level.bytes_each else 1
            # As floats: whole numbers of more than 32 bits are too large for NumPy in a browser.
            ax.barh(place, float(value), color=COLOURS[place], height=0.55, alpha=faint)
            words = _size(value, unit) if unit else f"{value:,}"
            if unit == "B" and level.bytes_each:
                ax.barh(place, float(level.bytes_each), color=COLOURS[place], height=0.55)
                words += f"; {level.seen_by}: {_size(level.bytes_each, 'B')}"
            ax.text(value * 1.4, place, words, va="center", fontsize=8.5)
        ax.set(xscale="log", xlim=limits)
        ax.set_title(title, fontsize=9.5, loc="left")
        ax.tick_params(axis="x", labelsize=8)
    panels[0].set_yticks(places, [level.name for level in levels])
    panels[0].invert_yaxis()
    panels[0].set_xlabel(f"{gpu.name}, all of it; links: one direction", loc="left")
    return figure


def _words(levels):
    lines = [f"{'level':<22}{'seen by':<18}{'holds':<10}{'each':<10}{'moves':<12}clocks"]
    for level in levels:
        cells = (
            _size(level.num_bytes, "B") if level.num_bytes else "",
            _size(level.bytes_each, "B") if level.bytes_each else "",
            _size(level.bandwidth, "B/s") if level.bandwidth else "",
        )
        clocks = level.clocks or ""
        holds, each, moves = cells
        lines.append(
            f"{level.name:<22}{level.seen_by:<18}{holds:<10}{each:<10}{moves:<12}{clocks}".rstrip()
        )
    return "\n".join(lines)
