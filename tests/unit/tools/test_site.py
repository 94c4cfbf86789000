"""Links of the documents, as the site has them."""

import pytest

from tools.site import with_site_links

PATHS = {
    "README.md": "index.md",
    "models/food11/confusion.png": "images/confusion.png",
    "docs/api.md": "api.md",
    "docs/protocols/rest.md": "protocols/rest.md",
}


@pytest.mark.parametrize(
    ("source", "markdown", "expected"),
    [
        ("README.md", "[API](docs/api.md#errors).", "[API](api.md#errors)."),
        ("docs/api.md", "[`x`](../README.md), [y](#errors)", "[`x`](index.md), [y](#errors)"),
        ("docs/api.md", "![c](../models/food11/confusion.png)", "![c](images/confusion.png)"),
        ("docs/protocols/rest.md", "[API](../api.md)", "[API](../api.md)"),
        ("README.md", "<https://a.b> [x](https://a.b/c.md)", "<https://a.b> [x](https://a.b/c.md)"),
        ("README.md", "```py\na[0](b)\n```\n[API](docs/api.md)", "```py\na[0](b)\n```\n[API](api.md)"),
    ],
)
def test_links_are_rewritten(source: str, markdown: str, expected: str) -> None:
    assert with_site_links(markdown, source, PATHS) == expected


@pytest.mark.parametrize("target", ["smallplates/", "missing.png", "LICENSE"])
def test_a_link_out_of_the_site_is_refused(target: str) -> None:
    with pytest.raises(SystemExit, match=f"README.md links to {target}, which is not in the site"):
        with_site_links(f"[x]({target})", "README.md", PATHS)
