"""Adds the documents outside docs/ to the site, README.md as its first page; mkdocs.yml names this hook.

The documents link to each other by their paths in the repository, which GitHub shows. The site has other
paths, so that links are rewritten while it is built; mkdocs then checks them.
"""

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
SITE_PATHS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "licence.txt",
    "models/food11/MODEL_CARD.md": "model-card.md",
    "models/food11/confusion.png": "images/confusion.png",
    "models/sentiment/MODEL_CARD.md": "sentiment-card.md",
}
"""Path in the repository -> path in the site; a file of docs/ keeps its path below docs/."""

LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Adds the files of `SITE_PATHS`."""
    from mkdocs.structure.files import File  # only the site's environment has it

    for source, path in SITE_PATHS.items():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: "Page", **_: object) -> str:
    """Rewrites the relative links of one page to the site's paths."""
    page_source = page.file.src_uri
    source = next(
        (source for source, path in SITE_PATHS.items() if path == page_source), f"docs/{page_source}"
    )

    def rewritten(match: re.Match[str]) -> str:
        opening, target, anchor, closing = match.groups(default="")
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        path = SITE_PATHS.get(wanted, wanted.removeprefix("docs/"))
        return (
            opening + posixpath.relpath(path, posixpath.dirname(page_source) or ".") + anchor + closing
        )

    return LINK.sub(rewritten, markdown)
