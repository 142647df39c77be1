"""The chat page in a real browser."""

import os
import re
import shutil
import time
from pathlib import Path

import pytest
from scripted import CALLS, Engine, serving

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt install chromium)"),
]

REPLY = """Why not.
</think>

# A plan

Some **bold**, *slanted* and `code`, a [link](https://example.org/a) and https://example.org/b.

1. first
2. second
   - inner

| a | b |
|---|---|
| 1 | 2 |

> quoted

```python
def hello(name):
    return f"<b>{name}</b>"
```

Done \U0001f680."""
EVIL = """</think><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>
[a](javascript:window.hacked=1) [b](data:text/html,x) ![pic](https://example.org/pic.png)
<a href="javascript:alert(1)">c</a> <iframe src="https://example.org"></iframe> `<svg onload=alert(1)>`
```html
<script>window.hacked=1</script>
```"""


def by_threes(n):
    return [3] * (n // 3 + 1)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server():
    with serving(Engine(REPLY, template=CALLS, cut=by_threes)) as server:
        yield server


@pytest.fixture
def open_page(browser):
    contexts, problems = [], []

    def opened(url, **options):
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 800}} | options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on(
            "request",
            lambda request: (
                problems.append(request.url) if not request.url.startswith((url, "data:")) else None
            ),
        )
        page.goto(url)
        page.problems = problems
        return page

    yield opened
    for context in contexts:
        context.close()


def say(page, text="Hello"):
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def finished(page, count=1):
    sync_api.expect(page.locator(".turn.assistant .numbers")).to_have_count(count, timeout=15_000)


def picture(page, name):
    """For people to look at, where SPLASHLITE_PICTURES says."""
    if folder := os.environ.get("SPLASHLITE_PICTURES"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390])
def test_a_reply_is_shown_as_markdown_in_both_themes_and_on_a_phone(server, open_page, scheme, width):
    page = open_page(server.url, color_scheme=scheme, viewport={"width": width, "height": 800})
    picture(page, f"empty-{scheme}-{width}")
    say(page)
    finished(page)
    body = page.locator(".turn.assistant .body")
    assert body.locator("h1").inner_text() == "A plan" and body.locator("strong").inner_text() == "bold"
    assert body.locator("em").inner_text() == "slanted" and body.locator("p code").inner_text() == "code"
    assert body.locator("ol > li").count() == 2 and body.locator("ol ul li").inner_text() == "inner"
    assert (
        body.locator("td").all_inner_texts() == ["1", "2"]
        and body.locator("blockquote").inner_text() == "quoted"
    )
    assert (
        'return f"<b>{name}</b>"' in body.locator("pre").inner_text()
        and "Done \U0001f680." in body.inner_text()
    )
    assert [a.get_attribute("href") for a in body.locator("a").all()] == [
        "https://example.org/a",
        "https://example.org/b",
    ]
    thinking = page.locator("details.thinking")
    assert thinking.get_attribute("open") is None and "Why not." in thinking.text_content()
    assert (
        page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        and page.locator("html").get_attribute("data-theme") == scheme
    )
    assert (
        re.search(r"\d", page.locator("#speed").inner_text())
        and page.locator("#acceptance").inner_text() != "–"
    )
    assert page.locator("#drafted").inner_text().endswith("%")
    picture(page, f"reply-{scheme}-{width}")
    page.get_by_text("Show drafted").click()
    marked = "".join(page.locator(".turn.assistant mark").all_inner_texts())
    assert len(marked) > 100 and page.locator(".body.raw").inner_text().startswith("# A plan")
    picture(page, f"tint-{scheme}-{width}")
    page.get_by_text("Show drafted").click()
    assert body.locator("h1").count() == 1
    if width < 700:
        page.get_by_label("Show chats").click()
        picture(page, f"side-{scheme}-{width}")
        sync_api.expect(page.get_by_role("button", name="New chat")).to_be_visible()
        page.get_by_label("Hide chats").click()
    page.get_by_role("button", name="Settings").click()
    picture(page, f"settings-{scheme}-{width}")
    assert page.problems == []


@pytest.mark.parametrize("width", [1100, 390])
def test_why_speculation_is_parked_stands_below_the_numbers_and_can_be_read(server, open_page, width):
    page = open_page(server.url, viewport={"width": width, "height": 800})
    why = page.locator("#speculation")
    assert not why.is_visible()
    numbers = page.locator("#live").bounding_box()["height"]
    why.evaluate("each => each.textContent = 'Speculation parked: ' + 'plain decoding is faster here '.repeat(4)")
    live, label, shown = (page.locator(each).bounding_box() for each in ("#live", "#live label", "#speculation"))
    assert shown["y"] >= label["y"] + label["height"] and shown["width"] <= live["width"]
    assert why.evaluate("each => each.scrollWidth <= each.clientWidth")
    assert live["height"] > numbers
    picture(page, f"parked-{width}")


def test_what_a_model_writes_is_never_html(server, open_page):
    server.worker.engine.say = EVIL
    page = open_page(server.url)
    say(page, "<img src=x onerror='window.hacked=1'>")
    finished(page)
    for _ in range(2):
        page.wait_for_timeout(200)
        assert page.evaluate("window.hacked") is None
        assert page.locator(".turn img, .turn script, .turn iframe, .turn svg").count() == 0
        assert {a.get_attribute("href") for a in page.locator(".turn a").all()} == {
            "https://example.org/pic.png",
            "https://example.org",
        }
        assert "<script>window.hacked=1</script>" in page.locator(".turn.assistant").inner_text()
        page.reload()
    policy = page.request.get(server.url).headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self'" in policy
    assert page.problems == []
    server.worker.engine.say = REPLY


def test_stop_edit_regenerate_and_chats_that_stay(browser, open_page):
    engine = Engine("</think>" + "word " * 4000, template=CALLS, pause_s=0.01)
    with serving(engine) as server:
        page = open_page(server.url, permissions=["clipboard-read", "clipboard-write"])
        say(page, "First question")
        sync_api.expect(page.locator(".turn.assistant .body")).to_contain_text("word word")
        page.keyboard.press("Escape")
        finished(page)
        deadline = time.monotonic() + 10
        while server.worker.busy and time.monotonic() < deadline:
            page.wait_for_timeout(20)
        left = engine.steps
        page.wait_for_timeout(300)
        assert engine.steps == left < 2000 and not server.worker.busy
        engine.say, engine.pause_s = (
            lambda prompt: "</think>Short answer to " + prompt.rsplit("<|user|>", 1)[1].split("<|")[0],
            0,
        )
        page.get_by_role("button", name="Regenerate").click()
        sync_api.expect(page.locator(".turn.assistant .body")).to_have_text("Short answer to First question")
        finished(page)
        page.locator(".turn.user").get_by_role("button", name="Edit").click()
        page.get_by_label("Edit your message").fill("Second question")
        page.keyboard.press("Enter")
        sync_api.expect(page.locator(".turn.assistant .body")).to_have_text("Short answer to Second question")
        finished(page)
        say(page, "And more")
        finished(page, 2)
        assert (
            "Short answer to Second question" in engine.order[-1] and "First question" not in engine.order[-1]
        )
        page.locator(".turn.assistant").last.get_by_role("button", name="Copy").click()
        assert page.evaluate("navigator.clipboard.readText()") == "Short answer to And more"
        page.reload()
        assert page.locator(".turn").count() == 4
        page.keyboard.press("Control+Shift+O")
        assert page.locator(".turn").count() == 0
        say(page, "Another chat")
        finished(page)
        assert page.locator("#chats li").count() == 2
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_label("Delete Another chat").click()
        assert page.locator("#chats li").count() == 1 and page.locator(".turn").count() == 4
        assert page.problems == []


def test_an_edit_that_cannot_be_sent_changes_nothing(open_page):
    engine = Engine("</think>Fine.", template=CALLS)
    with serving(engine) as server:
        page = open_page(server.url)
        say(page, "First question")
        finished(page)
        say(page, "And more")
        finished(page, 2)
        kept, asked = page.evaluate("JSON.stringify(localStorage)"), len(engine.order)
        for text in ("", "  \n "):
            page.locator(".turn.user").first.get_by_role("button", name="Edit").click()
            field = page.get_by_label("Edit your message")
            field.fill(text)
            page.keyboard.press("Enter")
            page.get_by_role("button", name="Send", exact=True).first.click()
            assert field.input_value() == text
            assert page.locator(".turn").count() == 4 and len(engine.order) == asked
            page.get_by_role("button", name="Cancel").click()
        assert page.evaluate("JSON.stringify(localStorage)") == kept
        say(page, "At last")
        finished(page, 3)
        assert all(each in engine.order[-1] for each in ("First question", "And more", "At last"))
        page.reload()
        assert page.locator(".turn").count() == 6 and page.problems == []


def test_settings_reach_the_engine_and_the_key_is_not_kept(open_page):
    engine = Engine("</think>Fine.", template=CALLS)
    with serving(engine, key="a-key-of-mine") as server:
        page = open_page(server.url)
        sync_api.expect(page.locator("dialog")).to_be_visible()
        page.get_by_label("API key").fill("a-key-of-mine")
        page.get_by_label("System prompt").fill("Be kind.")
        page.get_by_label("Temperature").fill("0.5")
        page.get_by_label("Seed").fill("7")
        page.get_by_label("Drafter").select_option("false")
        page.get_by_role("button", name="Done").click()
        sync_api.expect(page.locator("#model")).to_contain_text("scripted")
        say(page)
        finished(page)
        assert "<|system|>Be kind." in engine.order[-1]
        assert (engine.options["temperature"], engine.options["seed"], engine.options["speculative"]) == (
            0.5,
            7,
            False,
        )
        stored = page.evaluate(
            "JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie"
        )
        assert "Be kind." in stored and "a-key-of-mine" not in stored
        page.problems.clear()  # the first answer was 401, and the browser says so
        engine.say = RuntimeError("x")
        say(page)
        sync_api.expect(page.locator(".problem")).to_contain_text("the engine failed with RuntimeError")
        engine.say = "</think>Better."
        page.get_by_role("button", name="Try again").click()
        sync_api.expect(page.locator(".turn.assistant .body").last).to_have_text("Better.")


def test_a_long_reply_stays_quick(browser, open_page):
    text = "</think>" + "\n\n".join(
        f"Paragraph {i} with `code` and **bold** words.\n\n```\nline {i}\n```" for i in range(400)
    )
    with serving(Engine(text, template=CALLS, cut=lambda n: [16] * (n // 16 + 1))) as server:
        page = open_page(server.url)
        began = time.monotonic()
        say(page)
        finished(page)
        assert time.monotonic() - began < 15
        assert page.locator(".code").count() == 400 and page.problems == []
