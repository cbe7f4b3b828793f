"""How full an SM gets: occupancy against the size of the thread block."""

from fa_numba.analysis.occupancy import occupancy
from fa_numba.figures.style import COLOURS, Drawing, on_paper, plain


@on_paper
def occupancy_by_block(kernels):
    """One line per kernel; its own thread block is marked, with the resource that limits it.

    Parameters
    ----------
    kernels : dict of str to Occupancy
        By name. Registers and shared memory are constant while the thread block varies.
    """
    device = next(iter(kernels.values())).device
    figure = Drawing(8, 3.9, text="\n".join(f"{name}: {own}" for name, own in kernels.items()))
    ax = plain(figure.subplots(), grid="y")
    sizes = range(device.warp_size, device.threads_per_block + 1, device.warp_size)
    for (name, own), colour in zip(kernels.items(), COLOURS, strict=False):
        shares = [
            occupancy(size, own.registers, own.shared_bytes, device=device).fraction
            for size in sizes
        ]
        label = (
            f"{name}: {own.threads} threads, {own.registers} registers, "
            f"{own.shared_bytes:,} bytes shared; limit: {' and '.join(own.limiters)}"
        )
        ax.step(sizes, shares, where="mid", color=colour, linewidth=1.7)
        ax.plot(own.threads, own.fraction, "o", color=colour, markersize=8, label=label)
    ax.set_xticks([n for n in sizes if n % 128 == 0])
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    ax.set(xlim=(0, device.threads_per_block + 24), ylim=(0, 1.05))
    ax.set_xlabel("threads of a thread block")
    ax.set_ylabel(f"warps on an SM, of {device.threads_per_sm // device.warp_size}")
    ax.set_title(f"occupancy on the {device.name}", loc="left", fontsize=10.5)
    figure.legend(loc="outside lower center", fontsize=8.5)
    return figure
