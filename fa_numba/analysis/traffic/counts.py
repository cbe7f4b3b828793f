"""`Traffic`: elements that kernels load from and store to HBM."""

from collections import Counter
from dataclasses import dataclass, field

# Parameters with the dtype of q, k, v. The others are float32 or int32, whatever that dtype is.
LIKE_Q = frozenset(
    """q k v out dout dq dk dv out_a out_b k_cache v_cache latent_cache k_src v_src k_dst v_dst
    x y w values""".split()
)


@dataclass(frozen=True)
class Traffic:
    """Elements loaded from and stored to HBM by all kernels of a function.

    Where many threads read one number, each of their reads counts. The hardware makes one access
    of a warp's.

    Attributes
    ----------
    loads, stores : dict of str to int
        By name of the kernels' parameters.
    in_float32 : tuple of str
        Parameters that are float32 in this function, though elsewhere they have the dtype of q.
    in_8_bits : tuple of str
        Parameters that are bytes of e4m3.
    """

    loads: dict = field(default_factory=dict)
    stores: dict = field(default_factory=dict)
    in_float32: tuple = ()
    in_8_bits: tuple = ()

    def elements(self):
        """All loads and stores together."""
        return sum(self.loads.values()) + sum(self.stores.values())

    def bytes(self, dtype_bytes=4):
        """The same in bytes, where an element of q, k, v has `dtype_bytes`."""
        return sum(
            count * self._bytes_of(name, dtype_bytes)
            for counts in (self.loads, self.stores)
            for name, count in counts.items()
        )

    def _bytes_of(self, name, dtype_bytes):
        if name == "block_mask" or name in self.in_8_bits:  # bool, e4m3
            return 1
        return dtype_bytes if name in LIKE_Q.difference(self.in_float32) else 4


def total(parts):
    """The loads and the stores of several `Traffic` together, as two dicts."""
    loads, stores = Counter(), Counter()
    for part in parts:
        loads.update(part.loads)
        stores.update(part.stores)
    return dict(loads), dict(stores)
