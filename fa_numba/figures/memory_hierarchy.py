"""The levels of a GPU's memory: how much each holds, and how fast it is."""

from fa_numba.analysis.devices import DEVICES
from fa_numba.figures.style import COLOURS, INK, figure


def levels(device):
    """(level, who shares it, bytes on the whole GPU, bytes per second or None), nearest first."""
    sms = device.num_sms
    return [
        ("registers", "one thread", sms * device.register_bytes_per_sm, None),
        (
            "shared memory",
            "one thread block",
            sms * device.shared_bytes_per_sm,
            device.shared_bandwidth,
        ),
        ("L2 cache", "the whole GPU", device.l2_bytes, None),
        (device.memory, "the whole GPU", device.memory_bytes, device.memory_bandwidth),
    ]


def _size(number, unit):
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.0f} {unit}"


def draw(name="A100-40GB"):
    """Capacity of each level on a log scale, with its bandwidth where the vendor gives one."""
    rows = levels(DEVICES[name])
    fig, ax = figure(8.5, 2.8)
    places = range(len(rows))
    ax.barh(places, [row[2] for row in rows], color=COLOURS[: len(rows)], height=0.6)
    for place, (_, who, size, speed) in zip(places, rows, strict=True):
        text = f"{_size(size, 'B')}, {who}" + (f", {_size(speed, 'B/s')}" if speed else "")
        ax.text(size * 1.3, place, text, va="center", color=INK)
    ax.set(xscale="log", xlim=(1e6, 3e13), xlabel="bytes on the whole GPU")
    ax.set_yticks(places, [row[0] for row in rows])
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(f"Memory of an {name}" if name[0] in "AH" else f"Memory of a {name}", size=10)
    return fig


def describe(name="A100-40GB"):
    """The same as a text table."""
    lines = [f"{'level':<14}{'shared by':<18}{'holds':<10}{'moves':<10}"]
    for level, who, size, speed in levels(DEVICES[name]):
        lines.append(
            f"{level:<14}{who:<18}{_size(size, 'B'):<10}{_size(speed, 'B/s') if speed else ''}"
        )
    return "\n".join(line.rstrip() for line in lines)
