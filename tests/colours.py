"""The contrast of colours, and colours on a dark page."""

import numpy as np

from fa_numba.figures import themes


def luminance(rgb):
    rgb = np.asarray(rgb)
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(one, two):
    """As the web's accessibility guidelines define it, from 1 to 21."""
    one, two = luminance(one) + 0.05, luminance(two) + 0.05
    return np.maximum(one / two, two / one)


def in_the_dark(rgb):
    """Colours after the filter of `themes.INVERTED`, by the matrices of CSS's Filter Effects."""
    assert themes.INVERTED == "invert(.93) hue-rotate(180deg)"
    red, green, blue = 0.213, 0.715, 0.072
    rotation = 2 * np.array([[red, green, blue]] * 3) - np.eye(3)  # cos = -1, sin = 0
    return np.clip((0.93 - 0.86 * np.asarray(rgb)) @ rotation.T, 0, 1)
