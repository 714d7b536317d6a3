"""Settings of Sphinx. Nothing here, and nothing of the theme, loads a font or a script from another host."""

from __future__ import annotations

project = "dramatiq-outbox"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["tasklist"]
# Headings get the anchors that GitHub gives them, down to this level.
myst_heading_anchors = 4
html_theme = "furo"
html_title = "dramatiq-outbox"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00695c", "color-brand-content": "#00695c"},
    "dark_css_variables": {"color-brand-primary": "#4db6ac", "color-brand-content": "#4db6ac"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
