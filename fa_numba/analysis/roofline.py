"""The roofline: computing and moving bytes overlap, and the slower of the two sets the pace.

A kernel of F FLOPs that moves B bytes to and from HBM takes at least

    max(F / peak, B / bandwidth)

so it runs at no more than min(peak, I · bandwidth) FLOP/s, where I = F / B is its arithmetic
intensity. The two meet at the ridge, I = peak / bandwidth: below it a kernel is bound by memory,
above it by its arithmetic.
"""

from dataclasses import dataclass

from fa_numba.analysis import devices
from fa_numba.analysis.devices import Device


@dataclass(frozen=True)
class Point:
    """The point of one launch under a roofline.

    Attributes
    ----------
    kernel : str
    intensity : float
        FLOP per byte.
    attainable : float
        Most FLOP/s.
    seconds : float
        The least time.
    bound : str
        "memory" or "arithmetic".
    """

    kernel: str
    intensity: float
    attainable: float
    seconds: float
    bound: str


@dataclass(frozen=True)
class Roofline:
    """The roofline of a GPU for arithmetic in one dtype.

    Parameters
    ----------
    device : Device or str, default=None
        As for `devices.device`: None is the GPU in this machine.
    dtype : str or NumPy dtype, default="float32"
        float32 without tensor cores; float16, bfloat16, float8 with them.

    Raises
    ------
    ValueError
        An unknown GPU, or one whose bandwidth or peak is not known.

    Examples
    --------
    >>> roofline = Roofline("A100-40GB", "float16")
    >>> round(roofline.ridge)
    201
    >>> roofline.bound(64)
    'memory'
    """

    device: Device | str | None = None
    dtype: str = "float32"

    def __post_init__(self):
        gpu = devices.device(self.device)
        object.__setattr__(self, "device", gpu)
        gpu.peak(self.dtype)  # raises if it is not known
        if gpu.memory_bandwidth is None:
            raise ValueError(f"the memory bandwidth of {gpu.name} is not known")

    @property
    def peak(self):
        """FLOP/s of the flat roof."""
        return self.device.peak(self.dtype)

    @property
    def bandwidth(self):
        """Bytes per second of HBM: the slope of the roof."""
        return self.device.memory_bandwidth

    @property
    def ridge(self):
        """FLOP per byte where the roofs meet."""
        return self.peak / self.bandwidth

    def attainable(self, intensity):
        """FLOP/s that a kernel of this arithmetic intensity (FLOP per byte) can reach at most."""
        return min(self.peak, intensity * self.bandwidth)

    def seconds(self, flops, num_bytes):
        """The least time for so many FLOPs and so many bytes of HBM traffic."""
        return max(flops / self.peak, num_bytes / self.bandwidth)

    def bound(self, intensity):
        """Whether "memory" or "arithmetic" limits a kernel of this intensity."""
        return "memory" if intensity < self.ridge else "arithmetic"

    def place(self, trace):
        """The `Point` of a launch, from the FLOPs and bytes that `simt.trace` counted.

        All FLOPs are assumed to run at this peak, whatever their type; `trace.flops.by_dtype` has
        them by type.
        """
        moved = trace.load_bytes + trace.store_bytes
        return Point(
            trace.kernel,
            trace.intensity,
            self.attainable(trace.intensity),
            self.seconds(trace.flops.total, moved),
            self.bound(trace.intensity),
        )
