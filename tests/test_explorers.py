"""Explorers: what they draw, with sliders and without."""

import base64
import io
import re

import pytest
from matplotlib import image

from fa_numba.figures.style import Drawing
from fa_numba.workbook import explorers
from fa_numba.workbook.explorers import explore

SLIDERS = "application/vnd.jupyter.widget-view+json"


def drawn(calls):
    """A draw function that remembers its settings."""

    def draw(size, colour="red"):
        calls.append((size, colour))
        figure = Drawing(size, 1, text=f"{size} {colour}")
        figure.subplots().plot([0, size], color=colour)
        return figure

    return draw


def png_in(html):
    """The image in a page, which must have a text for who cannot see it."""
    assert re.search('<img alt="[^"]', html)
    return base64.b64decode(re.search('base64,([^"]*)"', html)[1])


def shape(png):
    return image.imread(io.BytesIO(png)).shape[:2]


@pytest.mark.parametrize("installed", [True, False])
def test_without_a_reader_it_shows_a_few_settings(monkeypatch, installed):
    found = object() if installed else None
    monkeypatch.setattr(explorers.importlib.util, "find_spec", lambda name: found)
    calls = []
    bundle = explore(drawn(calls), size=(2, 4, 3, 5), colour=("red", "blue"))._repr_mimebundle_()
    assert bundle.keys() == {"text/plain", "text/html"}
    assert set(calls) == {(2, "red"), (4, "red"), (3, "red")}
    assert bundle["text/plain"].splitlines()[:2] == ["size 2, colour red", "2 red"]
    images = bundle["text/html"].splitlines()
    assert [line.partition("<img")[0] for line in images] == [
        f"<p>size {size}, colour red</p>" for size in (2, 4, 3)
    ]
    assert [shape(png_in(line))[1] // 110 for line in images] == [2, 4, 3]


def test_a_reader_without_widgets_sees_the_same(monkeypatch):
    monkeypatch.setattr(explorers, "can_ask", lambda: True)
    monkeypatch.setattr(explorers.importlib.util, "find_spec", lambda name: None)
    assert explore(drawn([]), size=(2,))._repr_mimebundle_().keys() == {"text/plain", "text/html"}


def test_settings_of_its_own():
    made = explore(
        drawn([]), size=(2, 4), colour=("red", "blue"), stills=[{"colour": "blue"}, {"size": 4}]
    )
    assert made.stills == [{"size": 2, "colour": "blue"}, {"size": 4, "colour": "red"}]
    assert repr(made) == "size 2, colour blue\n2 blue\n\nsize 4, colour red\n4 red"


def test_sliders(monkeypatch):
    ipywidgets = pytest.importorskip("ipywidgets")
    monkeypatch.setattr(explorers, "can_ask", lambda: True)
    calls = []
    made = explore(drawn(calls), size=(2, 4), colour=("red", "blue"))
    bundle = made._repr_mimebundle_()
    assert SLIDERS in bundle and "text/html" in bundle and bundle["text/plain"] == repr(made)

    calls.clear()
    size, colour, picture = explorers._with_sliders(made).children
    assert calls == [(2, "red")] and isinstance(picture, ipywidgets.HTML)
    assert 'alt="2 red"' in picture.value
    small = picture.value
    size.value = 4
    assert calls[-1] == (4, "red") and shape(png_in(picture.value))[1] > shape(png_in(small))[1]
    colour.value = "blue"
    assert calls[-1] == (4, "blue")
    assert picture.value != small and 'alt="4 blue"' in picture.value


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "choices must name at least one"),
        ({"size": ()}, "size must have at least one value"),
        ({"size": (1,), "stills": []}, "stills must have at least one setting"),
        ({"size": (1,), "stills": [{"length": 1}]}, "stills must name size, got 'length'"),
        ({"size": (1, 2), "stills": [{"size": 3}]}, r"size of stills must be one of \(1, 2\)"),
    ],
)
def test_bad_choices(options, message):
    with pytest.raises(ValueError, match=message):
        explore(drawn([]), **options)


def test_draw_must_be_a_function():
    with pytest.raises(TypeError, match="draw must be a function"):
        explore(3, size=(1, 2))
