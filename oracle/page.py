"""The server's page at `/`, driven in headless Chromium: what it does, and pictures of it to look at.

    python oracle/bench/copying_model.py /tmp/copying --tokens 8192
    python oracle/page.py target/release/fathom /tmp/copying OUT [--browser chromium]

The model copies: after words that it has seen it goes on as they did, so answers are known. Ends with an error at the first thing that
is not as it should be; OUT has a picture of each view, wide and narrow, light and dark. Needs a Chromium (Debian's package `chromium`)
and Python's own library alone: commands go through a pipe (`--remote-debugging-pipe`, the Chrome DevTools Protocol).
"""
import argparse
import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

from bench.serving import wait_ready

TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
WORDS = [f"w{100 + 7 * i}" for i in range(12)]
ASKED = " ".join(WORDS + WORDS[:3])
SIZES = {"wide": (1280, 800, False), "narrow": (390, 844, True)}


class Browser:
    """A browser with one page."""

    def __init__(self, command, folder):
        inward, self.to = os.pipe()
        self.of, outward = os.pipe()
        # The browser has its ends as 3 and 4, so they may not be those before.
        inward, outward = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (inward, outward))
        plumb = f"exec 3<&{inward} 4>&{outward} {inward}<&- {outward}>&-; exec \"$@\""
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync", "--hide-scrollbars", f"--user-data-dir={folder}", "--remote-debugging-pipe",
                 "about:blank"]
        self.process = subprocess.Popen(["bash", "-c", plumb, "browser", command, *flags], pass_fds=[inward, outward],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(inward)
        os.close(outward)
        self.last, self.answers, self.events, self.changed = 0, {}, [], threading.Condition()
        threading.Thread(target=self.listen, daemon=True).start()
        self.session = None
        pages = [target for target in self("Target.getTargets")["targetInfos"] if target["type"] == "page"]
        self.session = self("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self(domain + ".enable")

    def listen(self):
        with os.fdopen(self.of, "rb") as lines:
            rest = b""
            while piece := lines.read1(1 << 16):
                *whole, rest = (rest + piece).split(b"\0")
                with self.changed:
                    for message in map(json.loads, whole):
                        if "id" in message:
                            self.answers[message["id"]] = message
                        else:
                            self.events.append(message)
                    self.changed.notify_all()

    def __call__(self, method, **parameters):
        self.last += 1
        number, message = self.last, {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        with self.changed:
            if not self.changed.wait_for(lambda: number in self.answers, 30):
                raise SystemExit(f"no answer to {method}")
            answer = self.answers.pop(number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def evaluate(self, script):
        """What a line of JavaScript gives."""
        result = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, (script, result)
        return result["result"].get("value")

    def until(self, script, seconds=30):
        """Waits until it gives something true, and gives that; of an element, which has no value here, that it is there."""
        end = time.monotonic() + seconds
        while not (found := self.evaluate(f"(found => found instanceof Node || found)({script})")):
            assert time.monotonic() < end, f"never: {script}"
            time.sleep(0.02)
        return found

    def open(self, url):
        self("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && document.getElementById('state').className === 'dot good'")

    def mouse(self, kind, selector, **more):
        box = self.evaluate(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'nearest'}});"
                            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()")
        self("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], **more)

    def click(self, selector):
        self.mouse("mouseMoved", selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, selector, button="left", clickCount=1)

    def write(self, selector, text):
        """Types over what a field has."""
        self.evaluate(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.focus(); e.select(); }})()")
        if text:
            self("Input.insertText", text=text)
        else:
            self.evaluate(f"document.querySelector({json.dumps(selector)}).value = ''")

    def enter(self):
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r" if kind == "keyDown" else "")

    def look(self, size, scheme):
        width, height, narrow = SIZES[size]
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=narrow)
        self("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        # Where things are is asked next: it has to be of this size, and drawn.
        self.until(f"innerWidth === {width} && innerHeight === {height}")
        self.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(() => drawn())))")
        # What slides from or to its place covers what is pointed at.
        self.until("document.getAnimations().every(one => !(one instanceof CSSTransition))")

    def picture(self, path):
        # Menus slide in.
        time.sleep(0.3)
        with open(path, "wb") as file:
            file.write(base64.b64decode(self("Page.captureScreenshot", format="png")["data"]))
        assert self.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path}: wider than its window"

    def posted(self):
        """Bodies of requests to answer, in their order."""
        sent = [event["params"]["request"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [json.loads(request["postData"]) for request in sent if request["method"] == "POST"]

    def close(self):
        self.session = None
        self("Browser.close")
        self.process.wait(30)


class Server:
    """`fathom serve` of a model."""

    def __init__(self, fathom, model, port, folder):
        self.at = f"http://127.0.0.1:{port}"
        template = os.path.join(folder, "chat.jinja")
        with open(template, "w") as file:
            file.write(TEMPLATE)
        command = [fathom, "serve", model, "--port", str(port), "--name", "copying", "--memory", "2GiB", "--chat-template", template]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_ready(self.at)


IDLE = "document.getElementById('stop').hidden"
ANSWER = "[...document.querySelectorAll('.turn.assistant .text')].at(-1).textContent"
META = "[...document.querySelectorAll('.turn.assistant')].at(-1).querySelector('.meta').textContent"


def ask(page, text):
    page.write("#input", text)
    page.enter()


def settings(page, **values):
    page.click("#settings")
    page.until("document.getElementById('dialog').open")
    for name, value in values.items():
        page.write("#s-" + name, value)
    page.click("#close")
    # They are taken over by an event after that.
    page.until(" && ".join(f"String(set.{name}) === {json.dumps(value)}" for name, value in values.items()))


def talks(page):
    """A message, its answer while it is written, and what was else likely."""
    assert "What would you like" in page.evaluate("document.getElementById('turns').textContent")
    settings(page, temperature="0", max_tokens="48", seed="5", system="")
    ask(page, ASKED)
    lengths = set()
    while not page.evaluate(IDLE) or not lengths:
        lengths.add(page.evaluate(f"document.querySelector('.turn.assistant') ? {ANSWER}.length : 0"))
    assert len(lengths) >= 3, f"an answer came at once, not piece by piece: {lengths}"
    assert not page.evaluate(ANSWER)[0].isspace(), "an answer begins with the space before it"
    said = page.evaluate(ANSWER).split()
    expected = [WORDS[(3 + at) % len(WORDS)] for at in range(48)]
    assert said == expected, (said, expected)
    assert "48 tokens" in page.evaluate(META) and "first after" in page.evaluate(META), page.evaluate(META)
    body = page.posted()[-1]
    assert (body["temperature"], body["max_tokens"], body["seed"], body["logprobs"]) == (0, 48, 5, True), body
    assert body["messages"] == [{"role": "user", "content": ASKED}], body


def hovers(page):
    page.mouse("mouseMoved", "#input")
    page.mouse("mouseMoved", ".tok:nth-child(5)")
    page.until("!document.getElementById('tip').hidden")
    rows = page.evaluate("[...document.querySelectorAll('#tip .row')].map(row => row.textContent)")
    assert len(rows) >= 5 and WORDS[7] in rows[0], rows
    inside = "(() => { const b = document.getElementById('tip').getBoundingClientRect(); return b.left >= 0 && b.right <= innerWidth && b.top >= 0; })()"
    assert page.evaluate(inside)


def stops(page):
    settings(page, max_tokens="4000")
    ask(page, WORDS[3])
    page.until(f"!{IDLE} && document.querySelectorAll('.turn.assistant').length === 2 && {ANSWER}.length > 40")
    page.click("#stop")
    page.until(IDLE)
    said = page.evaluate(ANSWER)
    assert "stopped" in page.evaluate(META) and len(said) > 40
    time.sleep(0.5)
    assert page.evaluate(ANSWER) == said
    assert len(page.posted()[-1]["messages"]) == 3, "a conversation is sent whole"
    # A place that answers nothing says why, and the next question goes on.
    settings(page, max_tokens="999999999")
    ask(page, WORDS[4])
    page.until(f"{IDLE} && document.querySelector('.turn.failed')")
    assert "token" in page.evaluate(ANSWER), page.evaluate(ANSWER)
    settings(page, max_tokens="8")
    ask(page, WORDS[5])
    page.until(f"{IDLE} && document.querySelectorAll('.turn.assistant').length === 4")
    assert "8 tokens" in page.evaluate(META), page.evaluate(META)


def remembers(page, url):
    turns = page.evaluate("document.querySelectorAll('.turn').length")
    page.open(url)
    assert page.until("document.querySelectorAll('.turn').length") == turns
    assert page.evaluate("document.querySelector('.item .open').textContent") == ASKED[:60]
    page.click("#settings")
    assert page.evaluate("document.getElementById('s-max_tokens').value") == "8"
    page.click("#close")
    page.click("#new")
    page.until("document.querySelector('.welcome')")
    ask(page, " ".join(WORDS[6:9] + WORDS[6:8]))
    page.until(f"{IDLE} && document.querySelectorAll('.item').length === 2 && document.querySelector('.turn.assistant .meta span')")
    page.click(".item:last-child .open")
    page.until(f"document.querySelectorAll('.turn').length === {turns}")
    page.click(".item:first-child .drop")
    page.until("document.querySelectorAll('.item').length === 1")
    assert page.evaluate("document.querySelectorAll('.turn').length") == turns, "another conversation was deleted"


def lives(page):
    settings(page, max_tokens="4000")
    ask(page, WORDS[3])
    page.click("#tab-live")
    page.until("/Running\\s*1/.test(document.getElementById('cards').textContent.replace(/none waits/, ''))")
    page.until("document.querySelectorAll('#cards rect').length > 60")
    # A rate needs two looks.
    time.sleep(2.2)


def pictures(page, out, name):
    for size in SIZES:
        for scheme in ("light", "dark"):
            page.look(size, scheme)
            page.picture(os.path.join(out, f"{name}-{size}-{scheme}.png"))
    page.look("wide", "light")


def drive(page, url, out):
    page.look("wide", "light")
    page.open(url)
    pictures(page, out, "welcome")
    talks(page)
    pictures(page, out, "answer")
    hovers(page)
    page.picture(os.path.join(out, "hover-wide-light.png"))
    page.look("narrow", "dark")
    page.evaluate("document.getElementById('said').scrollTop = 0")
    hovers(page)
    page.picture(os.path.join(out, "hover-narrow-dark.png"))
    page.look("wide", "light")
    stops(page)
    pictures(page, out, "stopped")
    remembers(page, url)
    page.click("#settings")
    pictures(page, out, "settings")
    page.click("#close")
    page.look("narrow", "light")
    page.click("#menu")
    page.until("document.body.classList.contains('menu')")
    page.picture(os.path.join(out, "menu-narrow-light.png"))
    # Beside the menu, which covers what lies in the middle.
    for kind in ("mousePressed", "mouseReleased"):
        page("Input.dispatchMouseEvent", type=kind, x=SIZES["narrow"][0] - 20, y=300, button="left", clickCount=1)
    page.until("!document.body.classList.contains('menu')")
    page.look("wide", "light")
    lives(page)
    pictures(page, out, "live")
    page.click("#tab-talk")
    page.until(f"!document.getElementById('stop').hidden || {IDLE}")
    wrong = [event["params"] for event in page.events if event["method"] == "Runtime.exceptionThrown"]
    assert not wrong, wrong
    sent = [event["params"]["request"]["url"] for event in page.events if event["method"] == "Network.requestWillBeSent"]
    elsewhere = [address for address in sent if not address.startswith((url, "data:", "about:"))]
    assert not elsewhere, elsewhere


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fathom")
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--browser", default=shutil.which("chromium") or "chromium")
    parser.add_argument("--port", type=int, default=8140)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args.fathom, args.model, args.port, folder)
        try:
            page = Browser(args.browser, os.path.join(folder, "profile"))
            try:
                drive(page, server.at + "/", args.out)
            finally:
                page.process.terminate()
                page.process.wait(30)
        finally:
            server.process.terminate()
            server.process.wait(30)
    print(f"the page does what it should; look at {args.out}")


main()
