"""Several models: a tab for each, which keeps what was done in it, and opens when its model is ready."""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import pytest
from playwright.sync_api import Error, Locator, Page, Route, expect

from tests.browser.conftest import Opener
from tests.browser.pictures_of_food import EGG
from tests.browser.stub_api import MODEL, StubApi, until
from tests.browser.stub_models import FLOWERS, GRAPH, READER, SENTIMENT, serve_several
from tests.browser.test_access import OVERFLOW, PHONE, violations

pytestmark = pytest.mark.slow

MODELS = (MODEL, SENTIMENT, READER, FLOWERS, GRAPH)
NAMES = [str(model["name"]) for model in MODELS]
TITLES = {str(model["name"]): str(model["title"] or model["name"]) for model in MODELS}


WARMING = {**READER, "name": "warming"}


SCHEMES: list[Literal["light", "dark"]] = ["light", "dark"]


States = dict[str, str]
Several = Callable[..., tuple[Page, States]]


@pytest.fixture
def several(open_page: Opener, stub: StubApi, forgetful_url: str) -> Several:
    """Opens the page before models; returns it with their states, of which some may be given."""

    def opener(
        *models: dict[str, Any], path: str = "/", states: States | None = None, **options: Any
    ) -> tuple[Page, States]:
        known = serve_several(stub, *models)
        known.update(states or {})
        return open_page(path, url=forgetful_url, **options), known

    return opener


@pytest.fixture
def page(several: Several) -> Page:
    return several(*MODELS)[0]


def tab(page: Page, name: str) -> Locator:
    return page.get_by_role("tab", name=TITLES.get(name, name))


def choose(page: Page, name: str) -> None:
    tab(page, name).click()
    is_open(page, name)


def is_open(page: Page, name: str) -> None:
    title = TITLES.get(name, name)
    expect(page.locator("#page")).to_have_attribute("data-name", name)
    expect(page.get_by_role("tab", selected=True)).to_have_text(re.compile(f"^{re.escape(title)}"))
    expect(page.get_by_role("tabpanel", name=title)).to_be_visible()
    assert page.locator("#page").count() == 1


def test_a_proxy_may_put_the_page_below_a_path(page: Page, forgetful_url: str) -> None:
    below = f"{forgetful_url}/below/it"
    outside = []

    def strip(route: Route) -> None:
        place = route.request.url.removeprefix(below)
        if place.startswith("/"):
            route.continue_(url=f"{forgetful_url}{place}")
        else:
            outside.append(place)
            route.abort()

    page.goto("about:blank")
    page.route("**/*", strip)
    page.goto(f"{below}/reader")
    is_open(page, "reader")
    page.get_by_label("Text", exact=True).fill("The cook is Ann Lee.")
    page.get_by_label("Question").fill("Who?")
    page.get_by_label("Question").press("Enter")
    expect(page.locator(".card[data-state=done]")).to_have_count(1)
    choose(page, "food11")
    page.locator("#photos").set_input_files(EGG)
    page.get_by_role("button", name="Soup").click()
    expect(page.locator(".card[data-state=done]")).to_have_count(2)
    assert page.url == f"{below}/#food11"
    page.goto(f"{below}/feedback/undo")
    page.get_by_role("link").click()
    is_open(page, "food11")
    assert (page.url, outside) == (f"{below}/", [])


def test_the_address_keeps_the_tab_and_nothing_typed_is_lost(page: Page, forgetful_url: str) -> None:
    is_open(page, "food11")
    assert page.get_by_role("tab").all_inner_texts() == [*TITLES.values()]
    choose(page, "reader")
    assert page.url == f"{forgetful_url}/#reader"
    expect(page).to_have_title("Ask about a text")
    page.get_by_label("Question").fill("Who?")
    choose(page, "sentiment")
    page.get_by_label("Your text").fill("wonderful")
    page.reload()
    is_open(page, "sentiment")
    expect(page.locator(".card-sentence")).to_have_text("Positive, 97 %")
    page.go_back()
    is_open(page, "reader")
    expect(page.get_by_label("Question")).to_have_value("Who?")
    page.go_back()
    is_open(page, "food11")
    expect(page).to_have_title("What food is this?")
    page.go_forward()
    is_open(page, "reader")
    page.goto(f"{forgetful_url}/flowers")  # as it is without a script
    is_open(page, "flowers")
    assert page.url == f"{forgetful_url}/#flowers"
    page.goto(f"{forgetful_url}/#nothing")
    is_open(page, "food11")


def test_by_keyboard(page: Page) -> None:
    page.keyboard.press("Tab")  # they are the first stop
    expect(page.locator("[role=tab]:focus")).to_have_count(1)
    expect(tab(page, "food11")).to_be_focused()
    for key, name in [
        ("ArrowRight", "sentiment"),
        ("ArrowRight", "reader"),
        ("ArrowLeft", "sentiment"),
        ("End", "sums"),
        ("ArrowRight", "food11"),
        ("ArrowLeft", "sums"),
        ("Home", "food11"),
        ("ArrowRight", "sentiment"),
    ]:
        page.keyboard.press(key)
        is_open(page, name)
        expect(tab(page, name)).to_be_focused()
    outline = "tab => getComputedStyle(tab).outlineStyle"
    assert tab(page, "sentiment").evaluate(outline) == "solid"
    page.keyboard.press("Tab")  # the other tabs are not stops
    expect(page.get_by_label("Your text")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(tab(page, "sentiment")).to_be_focused()


def test_a_request_goes_on_while_another_tab_is_open(page: Page, stub: StubApi) -> None:
    stub.held.clear()
    page.locator("#photos").set_input_files(EGG)
    until(lambda: stub.inside == 1, "a request")
    choose(page, "sentiment")
    stub.held.set()
    expect(page.locator("#say")).to_have_text("eggs.jpg: Soup, 92 %")
    expect(page.locator(".card")).to_have_count(0)
    choose(page, "food11")
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")


def test_photos_go_to_the_tab_that_is_open(several: Several, stub: StubApi) -> None:
    page, _ = several(MODEL, {**MODEL, "name": "rooms", "title": "rooms"}, SENTIMENT)
    choose(page, "rooms")
    choose(page, "sentiment")
    paste = """() => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(9)], "pasted.png", { type: "image/png" }));
      dispatchEvent(new ClipboardEvent("paste", { clipboardData: data }));
    }"""
    page.evaluate(paste)
    choose(page, "rooms")
    page.evaluate(paste)
    expect(page.locator(".card-name")).to_have_text(["pasted.png"])
    until(lambda: stub.asked, "a request")
    choose(page, "food11")
    expect(page.locator(".card")).to_have_count(0)
    assert [asked.path for asked in stub.asked] == ["/predict/rooms?top_k=5"]


def test_a_model_that_warms_up_opens_by_itself(several: Several) -> None:
    page, states = several(MODEL, SENTIMENT, WARMING, states={"warming": "loading"})
    expect(tab(page, "warming (loading)")).to_be_visible()
    choose(page, "warming")
    expect(page.locator("#lead")).to_have_text(
        "This model is still warming up. This tab opens automatically when the model is ready."
    )
    expect(page.locator("#alarm")).to_contain_text("The model is loading.")
    assert violations(page) == []
    choose(page, "sentiment")  # the others are in service
    page.get_by_label("Your text").fill("wonderful")
    expect(page.locator(".card-sentence")).to_have_text("Positive, 97 %")
    choose(page, "warming")
    states["warming"] = "ready"
    expect(page.get_by_label("Question")).to_be_visible()
    expect(page.locator("#say")).to_have_text("The model is ready.")
    expect(page.get_by_role("tab", selected=True)).to_have_text("warming")
    choose(page, "sentiment")
    expect(page.locator(".card-sentence")).to_have_text("Positive, 97 %")


def test_a_model_that_is_asleep_says_so_and_answers(several: Several) -> None:
    page, _ = several(MODEL, SENTIMENT, states={"sentiment": "asleep"})
    expect(tab(page, "sentiment (asleep)")).to_be_visible()
    choose(page, "sentiment")
    expect(page.locator("#service-text")).to_have_text("Sentiment <asleep>.")
    expect(page.locator("#alarm")).to_be_empty()
    page.get_by_label("Your text").fill("wonderful")
    expect(page.locator(".card-sentence")).to_have_text("Positive, 97 %")
    expect(page.locator("#service-text")).to_contain_text("Ready")
    expect(tab(page, "sentiment (asleep)")).to_have_count(0)


def test_a_model_becomes_ready_in_the_answer_about_another(several: Several) -> None:
    page, states = several(MODEL, WARMING, states={"warming": "loading"})
    choose(page, "warming")
    held: list[Route] = []
    page.route("**/status?model=food11", lambda route: held.append(route))
    with page.expect_request("**/status?model=food11"):
        choose(page, "food11")
    with page.expect_response("**/status?model=warming"):
        choose(page, "warming")
    states["warming"] = "ready"
    held[0].continue_()
    expect(page.get_by_label("Question")).to_be_visible()


def test_a_model_that_fails_and_comes_back(several: Several) -> None:
    failing = {**SENTIMENT, "name": "failing"}
    page, states = several(READER, failing, states={"failing": "unavailable"})
    choose(page, "failing")
    expect(page.locator("#lead")).to_contain_text("The service says: failing <unavailable>")
    states["failing"] = "ready"
    page.get_by_label("Your text").fill("wonderful")
    expect(page.locator(".card-sentence")).to_have_text("Positive, 97 %")
    states["failing"] = "unavailable"
    page.get_by_label("Your text").fill("late")
    expect(page.locator("#service")).to_have_attribute("data-state", "unavailable")
    expect(page.locator("#service-text")).to_contain_text("The model is not available.")
    expect(page.locator(".card")).to_have_attribute("data-state", "waiting")
    expect(tab(page, "failing (not available)")).to_be_visible()
    choose(page, "reader")
    page.get_by_label("Text", exact=True).fill("von Ann Lee")
    page.get_by_label("Question").fill("Who?")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".card-sentence")).to_have_text("Ann Lee, 87 %")
    states["failing"] = "ready"
    choose(page, "failing")
    expect(page.locator(".card-sentence")).to_have_text("Negative, 91 %")


def test_other_models_come_into_service(page: Page, stub: StubApi) -> None:
    choose(page, "sentiment")
    page.get_by_label("Your text").fill("wonderful")
    serve_several(stub, MODEL, SENTIMENT, {**READER, "name": "second"})
    with suppress(Error):  # the page may be loading anew by itself
        page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.get_by_role("tab")).to_have_text(["What food is this?", "sentiment", "second"])
    is_open(page, "sentiment")
    expect(page.get_by_label("Your text")).to_have_value("wonderful")


def test_what_was_done_outlives_a_page_server_that_has_forgotten_the_model(page: Page) -> None:
    page.get_by_role("button", name="Soup").click()
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")
    model = {"view": "waiting", "shape": "x", "heading": "food11", "lead": "", "labels": []}
    models = [{"name": name, "state": "loading"} for name in NAMES]
    answer = {"state": "loading", "reason": None, "model": model, "models": models}
    page.route("**/status?model=food11", lambda route: route.fulfill(json=answer))
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.locator("#service")).to_have_attribute("data-state", "loading")
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")
    expect(page.locator("#heading")).to_have_text("What food is this?")


def test_a_tab_that_opens_slowly(page: Page) -> None:
    routes: list[Route] = []
    page.route("**/reader", lambda route: routes.append(route))  # Playwright marks it
    tab(page, "reader").click()
    expect(page.get_by_role("tab", selected=True)).to_have_text("reader")
    expect(page.locator("#page")).to_have_attribute("inert", "")  # nothing goes to the other model
    tab(page, "food11").click()
    expect(page.locator("#page")).not_to_have_attribute("inert", "")
    page.get_by_role("button", name="Soup").click()
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")
    routes.pop().continue_()
    page.unroute("**/reader")
    choose(page, "sentiment")
    choose(page, "reader")


def test_a_tab_that_cannot_be_opened(page: Page) -> None:
    page.route("**/reader", lambda route: route.abort())
    tab(page, "reader").click()
    expect(page.locator(".problem")).to_contain_text("This page's server is not responding.")
    is_open(page, "food11")
    page.unroute("**/reader")
    choose(page, "reader")


def test_models_in_service_are_watched_seldom(several: Several) -> None:
    page, states = several(*MODELS)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.install()
    page.reload()
    expect(page.locator("#service")).to_have_attribute("data-state", "ready")
    page.clock.run_for(25_000)
    assert len([url for url in asked if "/status" in url]) == 1
    states["reader"] = "loading"
    page.clock.run_for(6000)
    expect(tab(page, "reader (loading)")).to_be_visible()
    states["reader"] = "ready"
    page.clock.run_for(2000)
    expect(tab(page, "reader (loading)")).to_have_count(0)


def test_axe_finds_nothing(several: Several) -> None:
    states = {"reader": "loading", "never": "unavailable"}
    page, _ = several(*MODELS, {**READER, "name": "never"}, states=states, reduced_motion="reduce")
    for name in ("food11", "never", "sentiment"):
        choose(page, name)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert violations(page) == []


@pytest.mark.parametrize("size", [PHONE, {"viewport": {"width": 1200, "height": 740}}])
def test_many_models_with_long_names(several: Several, size: dict[str, Any]) -> None:
    names = [f"{'a-model-of-' * (place % 9)}{place}" for place in range(30)]
    page, _ = several(*({**SENTIMENT, "name": name} for name in names), **size)
    for name in (names[17], names[29], names[0]):
        page.get_by_role("tab", name=name, exact=True).click()
        is_open(page, name)
        assert page.evaluate(OVERFLOW) <= 0
        expect(tab(page, name).first).to_be_in_viewport(ratio=0.99)
    tops = page.get_by_role("tab").evaluate_all("tabs => tabs.map(t => t.getBoundingClientRect().top)")
    assert (len(set(tops)) == 1) == (size is PHONE)  # a row to scroll, or several rows


def test_a_model_that_warms_up_opens_without_script(several: Several) -> None:
    slow = {**READER, "name": "slow"}  # a name that the page's server has never seen ready
    page, states = several(
        MODEL, slow, path="/slow", states={"slow": "loading"}, java_script_enabled=False
    )
    expect(page.get_by_text("This model is still warming up.")).to_be_visible()
    states["slow"] = "ready"
    expect(page.get_by_label("Question")).to_be_visible()
