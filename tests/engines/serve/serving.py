"""A real server on a real socket in a thread of its own, an executor that repeats its prompt, and a plain client."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engines.loop import Instance, WallClock
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.plan import StepPlan, StepResult
from engines.serve.api_key import ApiKeys
from engines.serve.app import ServedModel
from engines.serve.server import Server, bind
from engines.tokenizers.model_text import load_model_text
from engines.tokenizers.tokenizer import RESERVED

EOS = 2
WAIT_S = 30.0


def ids(text: str) -> list[int]:
    """The token ids of a text, a byte each, as the tokenizer of random weights has them."""
    return [RESERVED + byte for byte in text.encode()]


class EchoExecutor:
    """Output k of a request is token k of its prompt, again and again. So a test's prompt is the answer it wants."""

    def __init__(self, clock: WallClock, step_s: float = 0.0) -> None:
        self._clock = clock
        self.step_s = step_s
        self.launched: list[list[int]] = []  # indices of the requests in each step
        self.fail_at: int | None = None
        self._results: deque[StepResult] = deque()

    def submit(self, plan: StepPlan) -> None:
        if plan.step == self.fail_at:
            raise RuntimeError("the device is lost")
        start_ns = self._clock.now_ns()
        self.launched.append([request.index for request in plan.requests])
        time.sleep(self.step_s)
        tokens = []
        for row in np.flatnonzero(plan.samples).tolist():
            request = plan.requests[row]
            output = int(plan.starts[row] + plan.counts[row]) - request.prompt_tokens
            assert request.tokens is not None
            tokens.append(request.tokens[output % request.prompt_tokens])
        end_ns = self._clock.now_ns()
        self._results.append(StepResult(plan.step, np.array(tokens, np.int32), start_ns, end_ns, end_ns - start_ns))

    def collect(self) -> StepResult:
        return self._results.popleft()


@dataclass
class Running:
    """A server that runs, seen from outside."""

    server: Server
    port: int
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    error: list[BaseException] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.server.stop)

    def ended(self) -> bool:
        self.thread.join(WAIT_S)
        return not self.thread.is_alive()

    def get(self, path: str) -> tuple[int, str]:
        return self.ask("GET", path, None)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, text = self.ask("POST", path, raw)
        return status, json.loads(text)

    def ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str] | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def complete(self, prompt: str | list[int], **more: Any) -> dict[str, Any]:
        """A whole answer: {text, finish_reason, usage}."""
        status, answer = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **more})
        assert status == 200, answer
        choice = answer["choices"][0]
        return {"text": choice["text"], "finish_reason": choice["finish_reason"], "usage": answer["usage"]}

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The data of a stream's events, parsed; the mark of its end as it is."""
        with self.opened(path, body) as response:
            assert response.status == 200, response.read()
            assert response.getheader("Content-Type", "").startswith("text/event-stream")
            return [data if data == "[DONE]" else json.loads(data) for data in stream_data(response)]

    @contextmanager
    def opened(self, path: str, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request("POST", path, json.dumps({"stream": True, **body}).encode())
            yield connection.getresponse()
        finally:
            connection.close()

    def metric(self, name: str, label: str = "") -> float:
        """label: as in 'state="used"', where there are several."""
        lines = self.get("/metrics")[1].splitlines()
        (value,) = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"{name}{{") and label in line]
        return float(value)


def stream_data(response: http.client.HTTPResponse) -> Iterator[str]:
    for line in response:
        if line.strip():
            assert line.startswith(b"data: "), line
            yield line.decode().removeprefix("data: ").rstrip("\n")


@contextmanager
def serving(server: Server, drain_s: float = 10.0) -> Iterator[Running]:
    """The server in a thread; stopped at the end, and expected to end well unless it has ended before."""
    ready = threading.Event()
    running: list[Running] = []

    async def run() -> None:
        running.append(Running(server, bound.getsockname()[1], asyncio.get_running_loop(), thread))
        await server.run(bound, drain_s, ready.set)

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            running[0].error.append(error)

    with bind("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=main, daemon=True)
        thread.start()
        assert ready.wait(WAIT_S)
        try:
            yield running[0]
        finally:
            if thread.is_alive():
                running[0].stop()
            assert running[0].ended(), "the server does not stop"


def echo_server(
    step_s: float = 0.0, depth: int = 0, keys: ApiKeys | None = None, **settings: Any
) -> tuple[Server, EchoExecutor]:
    config = SchedulerConfig(**{"kv_blocks": 64, "max_model_len": 512, "max_num_seqs": 8} | settings)
    clock = WallClock()
    executor = EchoExecutor(clock, step_s)
    instance = Instance(config.build(frozenset({EOS})), executor, depth)
    served = ServedModel("echo", 512, config.max_model_len, config.kv_blocks * config.block_size)
    return Server(instance, clock, load_model_text(None), served, keys), executor


@contextmanager
def echoing(step_s: float = 0.0, drain_s: float = 10.0, **settings: Any) -> Iterator[tuple[Running, EchoExecutor]]:
    server, executor = echo_server(step_s, **settings)
    with serving(server, drain_s) as running:
        yield running, executor


def eventually(condition: Callable[[], bool], within_s: float = WAIT_S) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
