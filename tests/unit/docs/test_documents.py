"""README.md and docs/ agree with the code: generated parts, links, and the names in them."""

import importlib.util
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from benchmarks import chapters, notebook, plots
from flask_app.settings import Settings as PageSettings
from smallplates import __version__
from smallplates.settings import ROOT, Settings
from tools import site, tables

PATTERNS = ("*.md", "docs/*.md", "f*/README.md", "models/*/*.md")
DOCUMENTS = [path for pattern in PATTERNS for path in ROOT.glob(pattern)]
NOT_SETTINGS = {"SERVING_URL", "SERVING_TEST_CHROMIUM", "SERVING_CPUS", "SERVING_MEMORY"}
"""Variables of the client, the tests and the compose files."""

every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
every_document_of_today = pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if path.name != "CHANGELOG.md"], ids=lambda path: path.name
)


def prose(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives to a document's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(path: Path) -> Iterator[tuple[Path, str]]:
    """The relative links of a document: file and anchor."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield (path.parent / file if file else path), anchor


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, texts in tables.parts().items() for name in texts]
)
def test_a_generated_part_is_up_to_date(path: str, name: str) -> None:
    document = (ROOT / path).read_text()
    assert tables.filled(document, {name: tables.parts()[path][name]}) == document, "make docs-tables"


def test_a_scope_names_settings() -> None:
    named = [name for names in tables.SCOPES.values() for name in names]
    assert len(named) == len(set(named) & set(Settings.model_fields))


@pytest.mark.parametrize("name", plots.PLOTS)
def test_a_plot_is_made_from_the_results_that_are_there(name: str) -> None:
    made_by = chapters.made_by(chapters.read(chapters.RESULTS, name))
    assert made_by in unescape((plots.IMAGES / f"{name}.svg").read_text()), "python -m benchmarks plots"


def test_a_plot_can_be_drawn_again(tmp_path: Path) -> None:
    for name in chapters.PLOTS:
        plots.draw(name, chapters.read(chapters.RESULTS, name), tmp_path / f"{name}.svg")
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()


def test_a_notebook_keeps_the_figures_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "RESULTS", tmp_path)
    monkeypatch.setattr(notebook, "API_URL", None)
    row = {"backend": "fastapi_onnx", "precision": "int8", "clients": 16}
    row |= {"p50": 1.04, "p95": 2.0, "p99": 30.26, "per_second": 412.3}
    for quick in (True, False):
        monkeypatch.setattr(notebook, "QUICK", quick)
        notebook.keep([row])
        assert [*tmp_path.iterdir()] == [tmp_path / "notebook.json"] * (not quick)
    table = chapters.backends(tmp_path)
    assert "| fastapi_onnx, int8 | 16 | 1.0 | 2.0 | 30.3 | 412 |" in table
    assert "`make notebooks`" in table


def test_a_link_to_code_leads_to_a_copy_on_the_site() -> None:
    paths = {"docs/a.md": "a.md"}
    linked = site.with_site_links("[a](../tools/site.py#L1) [b](a.md)", "docs/a.md", paths)
    assert linked == "[a](files/tools/site.py#L1) [b](a.md)"
    assert paths["tools/site.py"] == "files/tools/site.py"
    for target in ("../tools/none.py", "../tools", "../README.md"):
        with pytest.raises(SystemExit, match="not in the site"):
            site.with_site_links(f"[a]({target})", "docs/a.md", paths)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


@every_document
def test_every_link_leads_somewhere(path: Path) -> None:
    for file, anchor in links(path):
        assert file.exists(), f"{path.name} links to {file}"
        if anchor:
            assert anchor in anchors(file), f"{path.name} links to {file.name}#{anchor}"


@every_document
def test_every_setting_that_is_named_exists(path: Path) -> None:
    known = {f"SERVING_{name.upper()}" for name in Settings.model_fields}
    known |= {f"UI_{name.upper()}" for name in PageSettings.model_fields}
    named = re.findall(r"\b(?:SERVING|UI)_[A-Z_]+[A-Z]\b", path.read_text())
    assert {
        name.partition("__")[0] for name in named
    } <= known | NOT_SETTINGS  # behind it: a model's name


@every_document_of_today
def test_every_file_that_is_named_exists(path: Path) -> None:
    ours = "smallplates|fastapi_onnx|fastapi_pt|flask_app|benchmarks|training"
    rooms = f"{ours}|docker|deploy|tests|docs|tools"
    for name in re.findall(rf"(?<![\w/])(?:{rooms})/[\w./-]*\w", path.read_text()):
        if name not in ("docker/.env", "docker/secrets", "smallplates/fastapi_onnx"):
            assert (ROOT / name).exists(), f"{path.name} names {name}"


@every_document_of_today
def test_every_command_that_is_named_exists(path: Path) -> None:
    text = path.read_text()
    for module in re.findall(r"python -m (?!tf2onnx)([a-z_]+(?:\.[a-z_]+)*)", text):
        assert importlib.util.find_spec(module), f"{path.name} names python -m {module}"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^|\s)make ([a-z][a-z-]+)(?=[`\s])", text, re.MULTILINE)) <= targets


def test_every_metric_is_described() -> None:
    names = re.findall(r'"(serving_[a-z_]+)"', (ROOT / "smallplates" / "web" / "metrics.py").read_text())
    described = (ROOT / "docs" / "operations.md").read_text()
    assert [name for name in names if f"`{name}`" not in described.replace("_total`", "`")] == []


def test_the_site_has_every_document() -> None:
    outside = {path for path in DOCUMENTS if path.parent != ROOT / "docs"}
    assert outside == {ROOT / path for path in site.SITE_PATHS if path.endswith(".md")}
    pages = [site.SITE_PATHS.get(str(path.relative_to(ROOT)), path.name) for path in DOCUMENTS]
    navigation = re.findall(r'"([\w-]+\.md)"', (ROOT / "zensical.toml").read_text())
    assert sorted(navigation) == sorted(pages)


def test_everything_has_the_same_version() -> None:
    (newest, *_) = re.findall(
        r"^## (\S+), \d{4}-\d{2}-\d{2}$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    images = {
        version
        for path in (*ROOT.glob("*/Dockerfile"), *ROOT.glob("smallplates/**/Dockerfile"))
        for version in re.findall(r"^ARG VERSION=(.*)$", path.read_text(), re.M)
    }
    tags = set(re.findall(r'newTag: "(.*?)"', (ROOT / "docs" / "kubernetes.md").read_text()))
    assert {newest} == images == tags == {__version__}
