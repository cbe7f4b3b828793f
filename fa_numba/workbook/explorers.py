"""A drawing with controls: `explore(draw, name=values, ...)`.

Where somebody reads and ipywidgets is installed, each choice is a slider and the drawing follows
it. Elsewhere the drawing is shown for a few settings, one below the other: a page without widgets
shows these, too.
"""

from __future__ import annotations

import importlib.util
from html import escape

from fa_numba.workbook.guesses import can_ask

MOST_STILLS = 3


class Explorer:
    """A drawing for every combination of some choices.

    Attributes
    ----------
    draw : function
        Called with one value for each choice; returns a Drawing.
    choices : dict of str to tuple
        The values of each choice by its name; the first one is where it starts.
    stills : list of dict
        The settings that are shown where nothing can be chosen.
    """

    def __init__(self, draw, choices, stills):
        self.draw, self.choices, self.stills = draw, choices, stills

    def __repr__(self):
        return "\n\n".join(
            f"{label(setting)}\n{self.draw(**setting).describe()}" for setting in self.stills
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        bundle = {"text/plain": repr(self), "text/html": stacked(self)}
        if live():
            bundle |= _with_sliders(self)._repr_mimebundle_(include=include, exclude=exclude)
            bundle["text/plain"] = repr(self)
        return bundle


def explore(draw, /, *, stills=None, **choices) -> Explorer:
    """A drawing with a slider for each choice; without widgets, a few settings of it.

    Parameters
    ----------
    draw : function
        Called with one value for each choice, by name; returns a Drawing.
    stills : list of dict, optional
        Settings to show without widgets. A choice that a setting does not name has its first value.
        By default the first three values of the first choice.
    **choices : sequence
        The values of each choice; it starts at the first.

    Returns
    -------
    Explorer
        Shows itself in a notebook.
    """
    if not callable(draw):
        raise TypeError(f"draw must be a function, got {draw!r}")
    if not choices:
        raise ValueError("choices must name at least one, got none")
    choices = {name: tuple(values) for name, values in choices.items()}
    for name, values in choices.items():
        if not values:
            raise ValueError(f"{name} must have at least one value, got none")
    start = {name: values[0] for name, values in choices.items()}
    if stills is None:
        first = next(iter(choices))
        stills = [{first: value} for value in choices[first][:MOST_STILLS]]
    if not stills:
        raise ValueError("stills must have at least one setting, got none")
    for setting in stills:
        for name, value in setting.items():
            if name not in choices:
                raise ValueError(f"stills must name {', '.join(choices)}, got {name!r}")
            if value not in choices[name]:
                raise ValueError(f"{name} of stills must be one of {choices[name]}, got {value!r}")
    return Explorer(draw, choices, [start | setting for setting in stills])


def label(setting: dict) -> str:
    """A setting in words: ``"device A100-40GB, batch 8"``."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in setting.items())


def stacked(explorer: Explorer) -> str:
    """HTML of the drawings of all stills, one below the other, each below its setting."""
    captions = [f"<p>{escape(label(setting))}</p>" for setting in explorer.stills]
    drawings = [explorer.draw(**setting)._repr_html_() for setting in explorer.stills]
    if len(drawings) == 1:
        return drawings[0]
    return "\n".join(map("".join, zip(captions, drawings, strict=True)))


def live() -> bool:
    """Whether sliders can work: somebody reads, and ipywidgets is here."""
    return can_ask() and importlib.util.find_spec("ipywidgets") is not None


def _with_sliders(explorer):
    """The widget: a slider for each choice above the picture."""
    import ipywidgets

    sliders = {
        name: ipywidgets.SelectionSlider(
            options=[(str(value), value) for value in values],
            value=values[0],
            description=name.replace("_", " "),
            continuous_update=False,
            style={"description_width": "initial"},
            layout={"width": "32em"},
        )
        for name, values in explorer.choices.items()
    }
    picture = ipywidgets.HTML()  # an ipywidgets.Image has no text for who cannot see it

    def follow(change=None):
        setting = {name: slider.value for name, slider in sliders.items()}
        picture.value = explorer.draw(**setting)._repr_html_()

    for slider in sliders.values():
        slider.observe(follow, names="value")
    follow()
    return ipywidgets.VBox([*sliders.values(), picture])
