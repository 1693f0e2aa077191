#!/usr/bin/env python3
"""The chat page of a running `fidelio serve` in a headless Chromium (Debian's; PyPI: playwright 1.65.2), by keyboard alone where that
can be: send, stream, probabilities, stop, regenerate, edit, reload, 400 pixels, dark. Exits 1 where something is not as it
should be or the console has an error; screenshots go to a folder to be looked at.

    venv/bin/pip install playwright && venv/bin/python tools/check_page.py http://127.0.0.1:8000 FOLDER
"""
import re
import sys
import time

from playwright.sync_api import sync_playwright


# Playwright's own wait makes a function of its text inside the page, which the page's policy forbids, as it should.
def wait(page, condition, seconds=120):
    end = time.time() + seconds
    while not page.evaluate(condition):
        assert time.time() < end, f"not within {seconds} s: {condition}"
        page.wait_for_timeout(50)


# What a keyboard reaches: Tab until the element with this text or id has the focus.
def reach(page, name):
    for _ in range(40):
        if page.evaluate("[document.activeElement.id, document.activeElement.textContent]").count(name):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not come to {name}")


def main(url, folder):
    wrong = []
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 760}, color_scheme="light")
        page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: wrong.append(str(e)))
        page.on("request", lambda r: None if r.url.startswith((url, "data:")) else wrong.append("asks " + r.url))
        page.goto(url + "/")
        wait(page, "document.getElementById('model').textContent !== 'fidelio'")
        idle = "document.getElementById('send').textContent === 'Send' && document.querySelectorAll('.assistant .token').length > 0"

        page.keyboard.type("What is 348 + 5127?")  # the box has the focus
        page.keyboard.press("Enter")
        wait(page, idle)
        first = page.locator(".assistant .body").last.inner_text() + "".join(page.locator("details.thought").all_inner_texts())
        assert first.strip(), "an answer without text"
        assert "tokens" in page.locator(".assistant .facts").inner_text()
        page.locator(".assistant .token").filter(has_text=re.compile(r"\w")).first.hover()
        assert "%" in page.locator(".tip").inner_text(), "no probability under the pointer"
        page.screenshot(path=folder + "/light.png")

        reach(page, "Settings")
        page.keyboard.press("Enter")
        for name, value in (("temperature", "1"), ("most", "900")):
            reach(page, name)
            page.keyboard.type(value)
        reach(page, "input")
        page.keyboard.type("Tell me everything.")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("Really.")
        page.keyboard.press("Enter")
        wait(page, "document.querySelectorAll('.assistant').length === 2 && document.querySelectorAll('.assistant:last-child .token').length > 2")
        page.keyboard.press("Escape")
        wait(page, idle)
        stopped = page.locator(".assistant .facts").last.inner_text()
        assert "stopped" in stopped, stopped
        reach(page, "Regenerate")
        page.keyboard.press("Enter")
        wait(page, "document.querySelectorAll('.assistant').length === 2 && document.getElementById('send').textContent === 'Stop'")
        wait(page, idle)
        again = page.locator(".assistant .facts").last.inner_text()
        assert "stopped" not in again and "tokens" in again, again
        assert page.evaluate("document.activeElement.id") == "input", "the keyboard is left nowhere"
        assert page.locator(".tip").is_hidden(), "what was under the pointer is gone and its probabilities stay"
        page.screenshot(path=folder + "/settings.png")
        page.locator(".assistant").first.locator(".body .token").first.hover()
        assert "%" in page.locator(".tip").inner_text(), "no probability in an answer before the last"

        page.reload()
        wait(page, "document.querySelectorAll('.assistant').length === 2")
        reach(page, "Edit")  # the first message's
        page.keyboard.press("Tab")
        reach(page, "Edit")
        page.keyboard.press("Enter")
        assert "Really." in page.locator("#input").input_value() and page.locator("#messages > li").count() == 2

        for theme in ("light", "dark"):
            for width in (1000, 400):
                page.set_viewport_size({"width": width, "height": 800})
                page.wait_for_timeout(200)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{wide} pixels wide at {width}"
                page.screenshot(path=f"{folder}/{theme}-{width}.png")
            reach(page, {"light": "Dark", "dark": "Light"}[theme])
            page.keyboard.press("Enter")
        reach(page, "New conversation")
        page.keyboard.press("Enter")
        assert page.locator("#messages > li").count() == 0
        browser.close()
    assert not wrong, wrong
    print("the page sends, streams, stops, regenerates, edits and reloads; stopped:", stopped)


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2])
