"""Where exp stops working: the scores each dtype can exponentiate."""

import math
from dataclasses import dataclass

from fa_numba.figures.style import BLUE, GREY, ORANGE, PAPER, RED, Drawing, on_paper, plain


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format: largest exponent and bits after the point."""

    max_exponent: int
    fraction_bits: int

    @property
    def largest(self):
        """The largest finite number."""
        return (2 - 2.0**-self.fraction_bits) * 2.0**self.max_exponent

    @property
    def smallest(self):
        """The smallest number above 0, subnormals included."""
        return 2.0 ** (1 - self.max_exponent - self.fraction_bits)

    @property
    def exp_limits(self):
        """Scores s between which exp(s), rounded to this format, is neither 0 nor inf."""
        half_a_step = 2.0 ** (self.max_exponent - self.fraction_bits - 1)
        return math.log(self.smallest / 2), math.log(self.largest + half_a_step)


FORMATS = {
    "float16": FloatFormat(15, 10),
    "bfloat16": FloatFormat(127, 7),
    "float32": FloatFormat(127, 23),
}


@on_paper
def overflow(scores):
    """The range of scores that exp survives, dtype by dtype, over the scores of one's own data.

    Parameters
    ----------
    scores : array
        The arguments of exp; drawn as a histogram, before and after the maximum of each
        row is subtracted.
    """
    shifted = scores - scores.max(axis=-1, keepdims=True)
    limits = {name: f.exp_limits for name, f in FORMATS.items()}
    text = "\n".join(
        [f"{name}: exp(s) is 0 below {low:.2f} and inf above {high:.2f}"
         for name, (low, high) in limits.items()]
        + [f"scores: {scores.min():.1f} to {scores.max():.1f}; "
           f"less their row's maximum: {shifted.min():.1f} to 0"]
    )  # fmt: skip
    figure = Drawing(8, 4.2, text=text)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2.6])

    edge = 150
    for y, (low, high) in enumerate(limits.values()):
        top.barh(y, low + edge, left=-edge, color=GREY, alpha=0.25, height=0.62)
        top.barh(y, high - low, left=low, color=BLUE, height=0.62)
        top.barh(y, edge - high, left=high, color=RED, alpha=0.85, height=0.62)
        top.text(high + 1.5, y, f"inf above {high:.2f}", va="center", color=PAPER)
        top.text(low - 1.5, y, f"0 below {low:.1f}", va="center", ha="right", fontsize=8)
    top.set_yticks(range(len(limits)), limits, fontsize=10)
    top.invert_yaxis()
    top.set_xlim(-edge, edge)
    top.set_title("blue: exp(s) is neither 0 nor inf", loc="left", fontsize=11)
    plain(top).tick_params(left=False, bottom=False)
    top.spines[["left", "bottom"]].set_visible(False)

    bins = [score + 1e-6 for score in range(-edge, edge + 1, 2)]  # 0 lies in the bin below it
    style = {"bins": bins, "density": True}
    bottom.hist(scores.ravel(), color=ORANGE, alpha=0.75, label="scores s", **style)
    bottom.hist(shifted.ravel(), color=BLUE, alpha=0.55, label="s − row maximum", **style)
    bottom.set_yticks([])
    bottom.set_xlabel("score")
    bottom.legend(loc="upper right")
    plain(bottom).spines["left"].set_visible(False)
    return figure
