"""A real Chromium without a window, driven over two pipes by its DevTools protocol. Nothing listens on a port."""

import base64
import json
import os
import select
import subprocess
import time
from collections import deque

FLAGS = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update
    --disable-sync --disable-default-apps --disable-extensions --disable-dev-shm-usage --hide-scrollbars --remote-debugging-pipe
"""
PATIENCE = 30.0  # seconds for one answer


class Browser:
    """Chromium reads commands from its descriptor 3 and writes to 4."""

    def __init__(self, program, folder):
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        redirected = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = ["bash", "-c", redirected, "bash", program, *FLAGS.split(), f"--user-data-dir={folder}", "about:blank"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), **quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._sent, self.events = b"", 0, deque()

    def ask(self, method, session=None, **parameters):
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._sent:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method, session):
        while True:
            for event in self.events:
                if event.get("method") == method and event.get("sessionId") == session:
                    return event["params"]
            self.events.append(self._next())

    def _next(self):
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self._from, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError("Chromium gave no answer.")
            self._rest += chunk
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def open(self, path, *, width=1000, height=800, scheme="light"):
        return Page(self, path, width, height, scheme)

    def close(self):
        os.close(self._to)  # it ends when nobody can command it
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            os.close(self._from)


class Page:
    """One file, opened at a size and in a colour scheme. `requests` and `complaints` are what happened since."""

    def __init__(self, browser, path, width, height, scheme):
        self._browser = browser
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        self._session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self.scheme(scheme)
        self.address = path.as_uri()
        self.ask("Page.navigate", url=self.address)
        browser.wait_for("Page.loadEventFired", self._session)

    def ask(self, method, **parameters):
        return self._browser.ask(method, self._session, **parameters)

    def scheme(self, scheme):
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, expression):
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']['exception']['description']}")
        return found["result"].get("value")

    def move(self, x, y):
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Tab": 9}.get(key, 0))

    def screenshot(self, path):
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self):
        return base64.b64decode(self.ask("Page.printToPDF", preferCSSPageSize=True, printBackground=False)["data"])

    def _seen(self, method):
        return [event["params"] for event in self._browser.events if event.get("sessionId") == self._session and event["method"] == method]

    @property
    def requests(self):
        return [seen["request"]["url"] for seen in self._seen("Network.requestWillBeSent")]

    @property
    def complaints(self):
        """Errors of scripts, what the console was told, and what the browser logged, such as a violated policy."""
        methods = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [seen for method in methods for seen in self._seen(method)]

    def close(self):
        self._browser.ask("Target.closeTarget", targetId=self._target)
