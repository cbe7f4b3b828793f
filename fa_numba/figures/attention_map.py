"""Who looks at whom: the attention weights of one head over a piece of text."""

import numpy as np

from fa_numba.figures.style import Drawing, on_paper

POINTS = 440  # of all letters along an axis, one beside the other


@on_paper
def attention_map(p, text):
    """A dark cell where a byte (row) gives weight to another (column).

    Parameters
    ----------
    p : array of shape (len(text), len(text))
        Attention weights; 0 where masked.
    text : bytes

    Returns
    -------
    Drawing
        Its text names the heaviest key of each row.
    """
    labels = [chr(byte) if 32 < byte < 127 else "␣" if byte == 32 else "↵" for byte in text]
    best = np.argmax(p, axis=1)
    words = " ".join(f"{labels[m]}→{labels[n]}" for m, n in enumerate(best))
    figure = Drawing(8.4, 7.6, text=f"the heaviest key of each query: {words}")
    ax = figure.subplots()
    image = ax.imshow(np.ma.masked_equal(p, 0), cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(labels))
    letters = {"fontsize": min(13, POINTS / len(labels)), "family": "monospace", "weight": "bold"}
    ax.set_xticks(ticks, labels, **letters)
    ax.set_yticks(ticks, labels, **letters)
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    ax.set_title("Which byte looks at which", loc="left", fontsize=11, pad=10)
    ax.set(xlabel="keys: what is looked at", ylabel="queries: who looks")
    figure.colorbar(image, ax=ax, shrink=0.6, label="weight", fraction=0.06, pad=0.02)
    return figure
