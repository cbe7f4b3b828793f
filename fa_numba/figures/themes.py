"""Our HTML on a dark page: inverted pictures, and words in lighter colours.

A page says that it is dark by an attribute, as JupyterLab, Sphinx and Colab do, or by a class, as
VS Code does. A page that says nothing is white, whatever the reader's system prefers.
"""

DARK = ':is([data-jp-theme-light="false"],[data-theme="dark"],[theme="dark"],.vscode-dark)'
# Light and dark change places, hues stay: each colour of `style` keeps its contrast to the ground.
PICTURE = "fa-picture"
INVERTED = "invert(.93) hue-rotate(180deg)"
# `dark-light` tells Sphinx's theme that the picture needs no white ground.
PICTURE_CLASS = f"{PICTURE} dark-light"
PICTURE_STYLE = f"<style>{DARK} img.{PICTURE}{{filter:{INVERTED}}}</style>"
# In a file of its own a picture hears of the theme of the page around it, of GitHub's for instance.
SVG_STYLE = f"@media (prefers-color-scheme: dark){{svg{{filter:{INVERTED}}}}}"


def words_style(light, dark):
    """A style sheet with a class ``fa-NAME`` for words in each colour, and its colour in the dark.

    Parameters
    ----------
    light, dark : dict of str to str
        Colours by name.
    """
    rules = [f".fa-{name}{{color:{colour}}}" for name, colour in light.items()]
    rules += [f"{DARK} .fa-{name}{{color:{colour}}}" for name, colour in dark.items()]
    return f"<style>{''.join(rules)}</style>"
