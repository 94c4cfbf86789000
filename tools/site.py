"""Collects the files of the site in runs/docs, for `make docs`: docs/ and the documents outside it.

The documents link to each other by their paths in the repository, which GitHub shows. The site has other
paths, so the links are rewritten. Code, results and other files to which a document links are copied
below files/. Zensical checks links to pages and anchors, but not to other files, so a link to a file
that does not exist, or to a document that the site lacks, is refused here.
"""

import posixpath
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLLECTED = ROOT / "runs" / "docs"
SITE_PATHS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "fastapi_onnx/README.md": "fastapi-onnx.md",
    "fastapi_pt/README.md": "fastapi-pt.md",
    "flask_app/README.md": "flask-app.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "licence.txt",
    "models/food11/MODEL_CARD.md": "model-card.md",
    "models/food11/confusion.png": "images/confusion.png",
    "models/sentiment/MODEL_CARD.md": "sentiment-card.md",
    "models/questions/MODEL_CARD.md": "questions-card.md",
}
"""Path in the repository -> path in the site; a file of docs/ keeps its path below docs/."""

CODE_OR_LINK = re.compile(r"^```.*?^```$|(\]\()([^)\s#:]+)(#[^)\s]*)?(\))", re.DOTALL | re.M)
"""A block of code, which stays as it is, or a relative link."""


def with_site_links(markdown: str, source: str, paths: dict[str, str]) -> str:
    """The document `source` with the site's paths in its relative links.

    `paths` maps all files of the site as `SITE_PATHS` does, and gets those to which the document links.
    A link to a file that does not exist, or to another document, raises SystemExit.
    """

    def rewritten(match: re.Match[str]) -> str:
        opening, target, anchor, closing = match.groups(default="")
        if not target:
            return match[0]
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if linked not in paths:
            if linked.endswith(".md") or not (ROOT / linked).is_file():
                raise SystemExit(f"{source} links to {target}, which is not in the site")
            paths[linked] = f"files/{linked}"
        path = posixpath.relpath(paths[linked], posixpath.dirname(paths[source]))
        return opening + path + anchor + closing

    return CODE_OR_LINK.sub(rewritten, markdown)


def main() -> None:
    """Writes runs/docs anew."""
    docs = ROOT / "docs"
    files = [*docs.glob("*.md"), *docs.glob("images/*"), docs / "site.css"]
    names = [path.relative_to(docs).as_posix() for path in files]
    paths = SITE_PATHS | {f"docs/{name}": name for name in names}
    pages = {
        path: with_site_links((ROOT / source).read_text(), source, paths)
        for source, path in list(paths.items())
        if path.endswith(".md")
    }
    shutil.rmtree(COLLECTED, ignore_errors=True)
    for source, path in paths.items():
        copy = COLLECTED / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path in pages:
            copy.write_text(pages[path])
        else:
            shutil.copyfile(ROOT / source, copy)


if __name__ == "__main__":
    main()
