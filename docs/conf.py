"""How the documentation becomes a site: ``make docs``."""

project = "headwise"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["benchmarks"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "headwise"
html_show_copyright = html_show_sphinx = html_show_sourcelink = html_copy_source = False
