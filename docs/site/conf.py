"""Sphinx's settings of the site; docs/site/build.py writes the sources and calls it."""

import importlib.util
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project, author = "fa-numba", PROJECT["authors"][0]["name"]
copyright = f"{author}, MIT licence"
release = PROJECT["version"]

extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
nb_execution_mode = "off"  # build.py has run the lessons
nb_merge_streams = True
nb_render_markdown_format = "myst"  # tables in outputs
nb_ipywidgets_js = {}  # no widget, no script from another server
myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 4  # GitHub's names of headings
suppress_warnings = ["misc.highlighting_failure"]  # a traceback with our notes below has no colours
numpydoc_show_class_members = False
autodoc_typehints = "none"  # numpydoc's parameters say the types in words
python_use_unqualified_type_names = True
default_role = "py:obj"  # `flash_attn_v2` in a docstring leads to its page

# MathJax from a package, one file with all that formulas need.
MATHJAX = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static/mathjax"
mathjax_path = "tex-svg.js"

html_theme = "pydata_sphinx_theme"
html_sidebars = dict.fromkeys(["index", "docs/masks", "docs/benchmarks"], [])  # no siblings
html_title = "fa-numba"
html_static_path = ["custom.css", str(MATHJAX / "tex-svg.js")]
html_css_files = ["custom.css"]
html_copy_source = html_show_sourcelink = html_use_index = html_domain_indices = False
html_theme_options = {
    "icon_links": [
        {"name": "Repository", "url": PROJECT["urls"]["Repository"], "icon": "fa-brands fa-github"}
    ],
    "footer_start": ["copyright"],
    "footer_end": [],
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
}
