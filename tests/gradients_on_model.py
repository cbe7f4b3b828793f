"""Parts of the programs that run backward kernels by `hopper_model`."""

import json
import sys

import numpy as np

from fa_numba.checks import Mask


def options_of(causal, mask):
    """Options of the definition, and the kernel's `Mask`, from those of a case in JSON."""
    options = {"causal": causal, **mask}
    if "alibi_slopes" in mask:
        options["alibi_slopes"] = np.array(mask["alibi_slopes"], np.float32)
    if "window_size" in mask:
        options["window_size"] = tuple(mask["window_size"])
    window_size, softcap = options.get("window_size", (-1, -1)), options.get("softcap", 0.0)
    return options, Mask(causal, window_size, softcap, "alibi_slopes" in options)


def compare(outputs, want, plain, times=3):
    """At most three times the error of plain code, or `times` times it."""
    names = ("dq", "dk", "dv", "dsinks")[: len(want)]
    for name, x, y, z in zip(names, outputs, want, plain, strict=True):
        error = np.abs(x.data - y).max()
        allowed = times * np.abs(z - y).max() + 1e-6
        print(name, error, "of", allowed)
        assert error <= allowed, f"{name}: {error} > {allowed}"


def run(main):
    np.seterr(all="ignore")  # numbers of memory that nobody has written
    main(**json.loads(sys.argv[1]))
