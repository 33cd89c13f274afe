"""The site of the documentation: ``make docs`` builds it. Sources are Markdown in this folder and the notebooks.

The source folder of Sphinx is the root of the checkout, so that the same relative links hold here and on a code host.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import macatensor  # noqa: E402

project = "MacaTensor"
author = "The MacaTensor developers"
release = version = macatensor.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**.md", "notebooks/*.ipynb"]
exclude_patterns = [".*", "build", "libmaca_ffi", "macatensor", "op_table", "tests"]

html_theme = "furo"
html_title = f"MacaTensor {release}"
html_extra_path = ["site"]  # build/docs/index.html leads to the root document
html_copy_source = False
html_show_sourcelink = False

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the tests execute them

autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # the text of a docstring gives dtypes, shapes and units
add_module_names = False

# What PyTorch and Python document is not linked: a build asks nothing of the network.
nitpick_ignore_regex = [(r"py:.*", r"(torch|numpy|collections|pathlib|typing|contextlib|setuptools)\b.*")]
# Its own module names it; the function that raises it is documented under the name that programs use.
nitpick_ignore = [("py:exc", "NonFiniteError")]
