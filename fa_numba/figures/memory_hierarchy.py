"""The levels of a GPU's memory: how much each holds, and how fast it is."""

from fa_numba.analysis.devices import DEVICES
from fa_numba.figures.style import BLUE, GREEN, INK, ORANGE, PURPLE, Drawing, on_paper, plain


def levels(device):
    """(level, who sees it, bytes on the whole GPU, bytes per second or None), nearest first."""
    sms = device.num_sms
    shared = sms * device.shared_bytes_per_sm, device.shared_bandwidth
    return [
        ("registers", "one thread", sms * device.register_bytes_per_sm, None),
        ("shared memory", "one thread block", *shared),
        ("L2 cache", "every thread", device.l2_bytes, None),
        (device.memory, "every thread", device.memory_bytes, device.memory_bandwidth),
    ]


def _size(number, unit):
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.0f} {unit}"


@on_paper
def memory_hierarchy(name="A100-40GB"):
    """The size of each level of a GPU's memory, who can access it, and its bytes per second.

    Parameters
    ----------
    name : str
        A GPU of the device table.

    Returns
    -------
    Drawing
        A bandwidth is given where it follows from the vendor's figures.
    """
    rows = levels(DEVICES[name])
    lines = [f"{'level':<14}{'seen by':<18}{'holds':<10}moves"]
    for level, who, size, speed in rows:
        moves = _size(speed, "B/s") if speed else ""
        lines.append(f"{level:<14}{who:<18}{_size(size, 'B'):<10}{moves}".rstrip())
    figure = Drawing(8.5, 2.6, text="\n".join(lines))
    ax = plain(figure.subplots(), grid="x")
    places = range(len(rows))
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    ax.barh(places, [size for _, _, size, _ in rows], color=colours, height=0.6)
    for place, (_, who, size, speed) in zip(places, rows, strict=True):
        words = f"{_size(size, 'B')}, seen by {who}" + (f", {_size(speed, 'B/s')}" if speed else "")
        ax.text(size * 1.3, place, words, va="center", color=INK)
    ax.set(xscale="log", xlim=(1e6, 1e14), xlabel=f"bytes, on the whole {name}")
    ax.set_yticks(places, [level for level, *_ in rows])
    ax.invert_yaxis()
    return figure
