"""The bytes of the requests: prompts of planned lengths in the format of the API, made shortly before they are sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from secrets import token_hex

import numpy as np

from engines.remote import openai, tgi
from engines.remote.answer import Interpret
from engines.remote.config import RemoteConfig, Target
from engines.remote.headers import merged, request_id
from engines.remote.openai import RequestSpec
from workloads.plan import RequestPlan
from workloads.prompts import Prompts

WINDOW_BYTES = 8 * 1024 * 1024  # of bodies made ahead: all bodies of a plan of long prompts can take gigabytes

# Words that are one token each after a space, in every large vocabulary tried.
_WORDS_TEXT = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you
were all her she there would their we him been has when who will no more if out so said what up its about into than them
can only other new some could time these two may then do first any my now such like our over man me even most made after
also did many before must through back years where much your way well down should because each just those people how too
little state good very make world still own see men work long get here between both life being under never day same
another know while last might us great old year off come since against go came right used take three states few house
use during without again place american around however home small found thought went say part once general high upon
school every does got left number course war until always away something fact though water less public put think almost
hand enough far head yet government system better set nothing night end why called find going look later point next city
business program give group young days let room within face church power country family
"""
WORDS = _WORDS_TEXT.split()


class PromptMaker:
    """The prompt of request i. Token ids have the planned length; words have it on most servers, and the usage in the
    answer shows whether they did. A plan's own texts are sent unchanged.
    """

    def __init__(
        self,
        plan: RequestPlan,
        *,
        as_ids: bool,
        token_ids: tuple[int, int],
        prompt_seed: int,
        overhead_tokens: int = 0,
        first_id: int | None = None,
    ) -> None:
        """overhead_tokens: what the server adds to a text, such as a chat template; a text is made shorter by it.

        first_id: the first token of every prompt (index of the first word, for a text), so that no prefix cache has one
        from another plan.
        """
        self._plan = plan
        self._as_ids = as_ids
        self._overhead_tokens = 0 if as_ids else overhead_tokens
        self._first_id = first_id
        choices = np.arange(*token_ids, dtype=np.int32) if as_ids else np.arange(1, len(WORDS), dtype=np.int32)
        self._prompts = Prompts(plan, choices, prompt_seed)

    def spec(self, index: int) -> RequestSpec:
        plan = self._plan
        content = self._words(index) if plan.texts is None else plan.texts.content(index)
        return RequestSpec(
            index=index,
            prompt=content if isinstance(content, str | list) else "",
            messages=content if isinstance(content, tuple) else None,
            output_tokens=int(plan.output_tokens[index]),
            tenant=plan.tenants[int(plan.tenant[index])] if len(plan.tenants) > 1 else None,
            priority=int(plan.priority[index]),
            fields={} if plan.texts is None else plan.texts.fields(index),
        )

    def _words(self, index: int) -> str | list[int]:
        """Drawn from the seed: token ids, or a text."""
        ids: list[int] = self._prompts.ids(index).tolist()
        if self._first_id is not None:
            ids[0] = self._first_id
        if self._as_ids:
            return ids
        return " ".join(WORDS[i] for i in ids[: max(len(ids) - self._overhead_tokens, 1)])


class BodyWindow:
    """Makes bodies ahead of time, in plan order, up to `count` or WINDOW_BYTES. Call make_one() when there is time."""

    def __init__(self, make: Callable[[int], bytes], indices: Iterable[int], *, count: int) -> None:
        self._make = make
        self._left = iter(indices)
        self._count = count
        self._made: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._all_made = False
        self._newest = -1  # taken so far

    @property
    def full(self) -> bool:
        return self._all_made or len(self._made) >= self._count or self._bytes >= WINDOW_BYTES

    def make_one(self) -> None:
        index = next(self._left, None)
        if index is None:
            self._all_made = True
        else:
            body = self._make(index)
            self._made.append((index, body))
            self._bytes += len(body)

    def take(self, index: int) -> bytes:
        """The body of request `index`. Drops those before it; one that was dropped, as a turn that waited for an
        answer, is made now."""
        if index <= self._newest:
            return self._make(index)
        self._newest = index
        while self._made:
            made, body = self._made.popleft()
            self._bytes -= len(body)
            if made == index:
                return body
        for left in self._left:
            if left == index:
                break
        return self._make(index)


@dataclass(frozen=True)
class RequestFormat:
    """How requests to this server are written and its answers read."""

    config: RemoteConfig
    model: str
    as_ids: bool  # prompts are token ids; else text
    overhead_tokens: int = 0  # added by the server to every text, as by a chat template
    vocab_size: int | None = None  # None: not reported
    id_prefix: str | None = None  # of X-Request-Id; None: a request has none of ours
    notes: tuple[str, ...] = ()  # what was left out or renamed, as the server refused it

    @property
    def token_ids(self) -> tuple[int, int]:
        """Prompts draw from [low, high). The first eighth of a small vocabulary is left out: its special tokens."""
        low, high = self.config.token_ids
        if self.vocab_size is None or self.vocab_size >= high:
            return low, high
        return max(self.vocab_size // 8, 1), self.vocab_size

    def with_request_ids(self) -> RequestFormat:
        """With an X-Request-Id in each request, so that a server's log can be searched for it, unless a configured
        header has that name."""
        if any(name.lower() == "x-request-id" for name in self.config.caller):
            return self
        return replace(self, id_prefix=f"cbbench-{token_hex(4)}")

    @property
    def interpret(self) -> Interpret:
        return tgi.interpret if self.config.api == "tgi" else openai.interpret

    def body(self, spec: RequestSpec) -> bytes:
        if self.config.api == "tgi":
            return tgi.body(self.config, spec)
        make = openai.chat_body if self.config.api == "chat" else openai.completion_body
        return make(self.config, self.model, spec)

    def requests(self, plan: RequestPlan, target: Target, *, first_id: int | None = None) -> Callable[[int], bytes]:
        """A function that makes the bytes of request i of the plan. first_id: see PromptMaker."""
        prompts = PromptMaker(
            plan,
            as_ids=self.as_ids,
            token_ids=self.token_ids,
            prompt_seed=self.config.prompt_seed,
            overhead_tokens=self.overhead_tokens,
            first_id=first_id,
        )
        head, session_header = self._head(target), self.config.session_header

        def request(index: int) -> bytes:
            body = self.body(prompts.spec(index))
            name = request_id(self.id_prefix, index)
            named = b"" if name is None else b"X-Request-Id: %b\r\n" % name.encode()
            if session_header is not None and plan.session[index] >= 0:
                named += b"%b: %d\r\n" % (session_header.encode(), plan.session[index])
            return b"%b%d\r\n%b\r\n%b" % (head, len(body), named, body)

        return request

    def _head(self, target: Target) -> bytes:
        """The request line and headers, up to the value of Content-Length."""
        ours = {
            "Host": target.host_header,
            "Accept": "text/event-stream" if self.config.stream else "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "cbbench",
        }
        first = f"POST {target.paths.generate} HTTP/1.1"
        lines = [f"{name}: {value}" for name, value in merged(ours, self.config.caller.items()).items()]
        return "\r\n".join([first, *lines, "Content-Length: "]).encode("latin-1")
