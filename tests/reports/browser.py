"""A real headless Chromium, driven over the DevTools protocol: what a report looks like, and what it asks for."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-port=0", "about:blank",
)  # fmt: skip
PATIENCE_S = 60.0


@dataclass
class Page:
    """One tab. `errors` are console errors and exceptions, `requests` the addresses it asked for."""

    socket: aiohttp.ClientWebSocketResponse
    session: str = ""
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _number: int = 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        await self.socket.send_json(message)
        while True:
            said = json.loads((await self.socket.receive(PATIENCE_S)).data)
            if said.get("id") == message["id"]:
                assert "error" not in said, said["error"]
                return said["result"]
            self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        what, params = said.get("method"), said.get("params", {})
        if what == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif what == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif what == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif what == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(" ".join(str(one.get("value", one.get("description"))) for one in params["args"]))

    async def value(self, expression: str) -> Any:
        """What the expression comes to; a promise is awaited."""
        said = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def open(self, path: Path, *, dark: bool = False, width: int = 1200) -> None:
        """The page, once all its charts are drawn or have failed."""
        self.errors.clear()
        self.requests.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=scheme)
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        await self.call("Page.navigate", url=path.resolve().as_uri())
        for _ in range(int(PATIENCE_S * 10)):
            if await self.value("document.documentElement?.dataset.drawn === 'yes'"):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{path}: the charts were never drawn; {self.errors}")

    async def screenshot(self, path: Path) -> None:
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        said = await self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(said["data"]))

    async def pdf(self, path: Path) -> None:
        path.write_bytes(base64.b64decode((await self.call("Page.printToPDF", printBackground=True))["data"]))


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    """A page of a new Chromium with its profile in `folder`. The browser and its children are gone afterwards."""
    assert CHROMIUM is not None
    command = [CHROMIUM, f"--user-data-dir={folder}", *FLAGS]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        port = folder / "DevToolsActivePort"
        for _ in range(int(PATIENCE_S * 20)):
            if port.exists() and port.read_text().count("\n") == 1:
                break
            assert process.poll() is None, "Chromium ended at once"
            await asyncio.sleep(0.05)
        number, path = port.read_text().split("\n")
        address = f"ws://127.0.0.1:{number}{path}"
        async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
            page = Page(socket)
            target = (await page.call("Target.createTarget", url="about:blank"))["targetId"]
            page.session = (await page.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                await page.call(f"{domain}.enable")
            yield page
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
