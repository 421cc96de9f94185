"""Setup: all that is known about how to ask this server, and the bytes of a request made from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engines.remote import openai, tgi
from engines.remote.answer import Interpret
from engines.remote.bodies import PromptMaker
from engines.remote.config import PATHS, RemoteConfig, Target
from engines.remote.headers import merged
from engines.remote.openai import Asked
from workloads.plan import RequestPlan


@dataclass(frozen=True)
class Setup:
    config: RemoteConfig
    model: str
    as_ids: bool  # prompts are token ids; else text
    overhead_tokens: int = 0  # what the server adds to a text
    vocab_size: int | None = None  # of the server, None if it does not say

    @property
    def token_ids(self) -> tuple[int, int]:
        """Prompts draw from [low, high). In a small vocabulary the first eighth is left to special tokens, as these
        come first wherever a vocabulary is small enough for it to matter."""
        low, high = self.config.token_ids
        if self.vocab_size is None or self.vocab_size >= high:
            return low, high
        return max(self.vocab_size // 8, 1), self.vocab_size

    @property
    def interpret(self) -> Interpret:
        return tgi.interpret if self.config.api == "tgi" else openai.interpret

    def body(self, asked: Asked) -> bytes:
        if self.config.api == "tgi":
            return tgi.body(self.config, asked)
        make = openai.chat_body if self.config.api == "chat" else openai.completion_body
        return make(self.config, self.model, asked)

    def requests(self, plan: RequestPlan, target: Target, *, first_id: int | None = None) -> Callable[[int], bytes]:
        """Makes the bytes of request i of the plan. first_id: see PromptMaker."""
        prompts = PromptMaker(
            plan,
            as_ids=self.as_ids,
            token_ids=self.token_ids,
            prompt_seed=self.config.prompt_seed,
            overhead_tokens=self.overhead_tokens,
            first_id=first_id,
        )
        head = self._head(target)

        def request(index: int) -> bytes:
            body = self.body(prompts.asked(index))
            return b"%b%d\r\n\r\n%b" % (head, len(body), body)

        return request

    def _head(self, target: Target) -> bytes:
        """Up to the number of bytes in the body."""
        ours = {
            "Host": target.host_header,
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "cbbench",
        }
        first = f"POST {target.base_path}{PATHS[self.config.api]} HTTP/1.1"
        lines = [f"{name}: {value}" for name, value in merged(ours, self.config.caller.items()).items()]
        return "\r\n".join([first, *lines, "Content-Length: "]).encode("latin-1")
