#!/usr/bin/env python3
"""The chat page of a running `fidelio serve` in a headless Chromium (Debian's; PyPI: playwright 1.65.2), by keyboard alone where that
can be: send, stream, probabilities, stop, regenerate, edit, reload, 400 pixels, dark; then answers of its own making: Markdown of every
kind, and what a hostile model might write. Exits 1 where something is not as it should be or the console has an error; screenshots go
to a folder to be looked at. The model needs a chat template.

    venv/bin/pip install playwright && venv/bin/python tools/check_page.py http://127.0.0.1:8000 FOLDER
"""
import json
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


FINE = """# A heading

Some *slanted*, **bold** and ~~struck~~ words, `code`, snake_case_words, 2 * 3 * 4, and https://example.org/a_b.
A [link](https://example.org "title") and \\*no slant\\*.

1. one
2. two
   - nested `x`
   - **deep**

   more of two

> quoted
> still

| left | right |
|:-----|------:|
| a    | 1     |
| b \\| c | **2** |

```python
def f(x):
    return x < 1  # **not bold**
```

---
last"""
PARTS = {"h2": "A heading", "em": "slanted", "strong": "bold", "del": "struck", "ol > li > ul > li strong": "deep", "blockquote p": "quoted\nstill",
         "th": "left", "tbody tr:nth-child(2) td": "b | c", ".code .bar span": "python", "pre code": "def f(x):\n    return x < 1  # **not bold**", "hr + p": "last"}
SCRIPT = "window.harmed = true"
HOSTILE = f"""<script>{SCRIPT}</script><img src=x onerror="{SCRIPT}"><svg onload="{SCRIPT}"><iframe src="javascript:{SCRIPT}"></iframe>
[a](javascript:{SCRIPT}) [b](JaVaScRiPt:{SCRIPT}) [c]( javascript:{SCRIPT}) [d](data:text/html,<script>{SCRIPT}</script>) [e](vbscript:x) [f](file:///etc/passwd)
![tracks](https://evil.example/pixel.png) ![bad](javascript:{SCRIPT}) <a href="javascript:{SCRIPT}" onclick="{SCRIPT}">x</a>
[g](https://x.example/" onmouseover="{SCRIPT}) <style>body {{ display: none }}</style> https://x.example/"><script>{SCRIPT}</script>
# <b onmouseover="{SCRIPT}">heading</b>

| <script>{SCRIPT}</script> | [x](javascript:{SCRIPT}) |
|---|---|
| <img src=x onerror={SCRIPT}> | `<script>` |

"""
# They would take long, or make the page wide, if they were read carelessly.
HUGE = {"columns": "|" + "a|" * 5000 + "\n|" + "-|" * 5000 + "\n" + ("|" + "b|" * 5000 + "\n") * 3, "rows": "|a|b|\n|-|-|\n" + "|1|2|\n" * 20000,
        "wide": "| " + "w" * 300 + " | " * 40 + "\n|" + "-|" * 41 + "\n", "quotes": ">" * 5000 + " deep", "lists": "".join("  " * i + "- x\n" for i in range(300)),
        "stars": "*a **b " * 3000, "brackets": "[" * 9000 + "](" * 5000, "ticks": "".join("`" * i + "a" for i in range(1, 190)), "blanks": "# " + " " * 100000 + "x",
        "dots": "https://x.example/" + ".)" * 9000 + "a", "unclosed": "```js\n" + "let x = '<script>';\n" * 200, "word": "w" * 100000, "carriage": "a\r\n\r\n- b\r\n"}


# The answers that the page gets instead of the model's, in pieces that do not care where words end.
def scripted(text):
    events = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}]}]
    step = max(3, len(text) // 60)
    for at in range(0, len(text), step):
        piece = text[at:at + step]
        token = {"token": piece, "logprob": -0.5, "bytes": [], "top_logprobs": [], "drafted": at % 2 == 1}
        events.append({"choices": [{"index": 0, "delta": {"content": piece}, "logprobs": {"content": [token]}, "finish_reason": None}]})
    events.append({"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]})
    return "".join("data: " + json.dumps(event) + "\n\n" for event in events) + "data: [DONE]\n\n"


def answer_with(page, text, seconds=20):
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=200, content_type="text/event-stream", body=scripted(text)))
    page.click("#clear")
    page.fill("#input", "Go on.")
    page.keyboard.press("Enter")
    begin = time.time()
    wait(page, "document.getElementById('send').textContent === 'Send' && document.querySelectorAll('.assistant .facts').length > 0 && document.querySelector('.assistant .tools .copy') !== null", seconds)
    return time.time() - begin


def check_unharmed(page, name):
    assert page.evaluate("window.harmed") is None, f"{name}: a script ran"
    kinds = "[...document.querySelectorAll('#messages *')].map(e => e.tagName).filter(t => ['SCRIPT', 'IMG', 'SVG', 'IFRAME', 'STYLE', 'OBJECT', 'FORM', 'VIDEO'].includes(t.toUpperCase()))"
    assert page.evaluate(kinds) == [], (name, page.evaluate(kinds))
    links = page.evaluate("[...document.querySelectorAll('#messages a')].map(a => [a.protocol, a.rel])")
    assert all(protocol in ("http:", "https:", "mailto:") and "noopener" in rel for protocol, rel in links), (name, links)
    handlers = "[...document.querySelectorAll('#messages *')].flatMap(e => [...e.attributes].map(a => a.name)).filter(n => n.startsWith('on'))"
    assert page.evaluate(handlers) == [], name
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= page.viewport_size["width"], f"{name}: {wide} pixels wide"


def check_markdown(page, folder, wrong):
    answer_with(page, FINE)
    for where, text in PARTS.items():
        found = page.locator(".assistant .body " + where).first.inner_text().strip()
        assert found == text, (where, found)
    assert page.locator(".assistant .body a").count() == 2 and "*no slant*" in page.locator(".assistant .body").inner_text()
    assert "snake_case_words, 2 * 3 * 4" in page.locator(".assistant .body").inner_text()
    assert page.evaluate("getComputedStyle(document.querySelector('pre code')).fontFamily").find("monospace") >= 0
    assert page.locator(".assistant .body th").nth(1).evaluate("e => e.style.textAlign") == "right"
    page.locator(".assistant .body strong .token").first.hover()
    assert "%" in page.locator(".tip").inner_text(), "no probability within a form"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for button, text in ((".code .copy", PARTS["pre code"]), (".assistant .tools .copy", FINE)):
        page.click(button)
        wait(page, f"document.querySelector('{button}').textContent === 'Copied'")
        assert page.evaluate("navigator.clipboard.readText()") == text, button
    for theme in ("light", "dark"):
        page.evaluate(f"theme('{theme}')")
        for width in (1280, 400):
            page.set_viewport_size({"width": width, "height": 1100})
            page.wait_for_timeout(200)
            page.mouse.move(0, 0)
            page.screenshot(path=f"{folder}/markdown-{theme}-{width}.png")
            check_unharmed(page, "markdown")
    answer_with(page, HOSTILE)
    check_unharmed(page, "hostile")
    shown = page.locator(".assistant .body").inner_text()
    assert f"<script>{SCRIPT}</script>" in shown and "[a](javascript:" in shown and "tracks" in shown, shown
    page.screenshot(path=folder + "/hostile.png")
    page.reload()
    wait(page, "document.querySelectorAll('.assistant').length === 1")
    check_unharmed(page, "hostile, reloaded")
    for name, text in HUGE.items():
        seconds = answer_with(page, text)
        check_unharmed(page, name)
        assert seconds < 10, f"{name}: {seconds:.1f} s"
    page.unroute("**/v1/chat/completions")
    assert not wrong, wrong


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
        for name, value in (("temperature", "1"), ("top_p", "0.9"), ("top_k", "40"), ("most", "900")):
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
        # The new answer may have come to lie under the pointer, which rests: then these are its own.
        under = page.evaluate("[...document.querySelectorAll('.token:hover')].flatMap(e => e.tokens.map(t => JSON.stringify(t.token)))")
        shown = page.locator(".tip").inner_text() if page.locator(".tip").is_visible() else ""
        assert not shown or (under and all(token in shown for token in under)), f"what was under the pointer is gone and its probabilities stay: {shown}"
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
            for width in (1280, 400):
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
        check_markdown(page, folder, wrong)
        browser.close()
    assert not wrong, wrong
    print("the page sends, streams, stops, regenerates, edits, reloads and draws Markdown, and what is hostile stays text; stopped:", stopped)


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2])
