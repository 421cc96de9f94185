"""JSON logs whose requests are not one flat object each: what makes flat rows of them.

usage              {"usage": {"prompt_tokens", "completion_tokens"}}, also inside `response` and its `body`
SGLang             its requests logged as JSON: {"event": "request.finished", "out": {"meta_info": {...}}}
OpenTelemetry      spans of the GenAI conventions, each its own object or as OTLP packs them
sessions           LLMServingSim's `sub_requests`, and `requests` of Claude-Code sessions, with `t`, `in` and `out`
ShareGPT           {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}
data               {"timestamp", "data": {"input_tokens", "output_tokens"}}, as ServeGen generates them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.file_lines import refuse_line
from workloads.prompt_texts import BYTES_PER_TOKEN
from workloads.time_stamps import seconds_of

Fields = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """rows     flat rows of one object of the file; none for an object that is no request
    ordered  whether the rows come by arrival; else they are sorted
    note     what a reader of the result should know of it
    """

    rows: Callable[[Fields], Iterable[Fields]]
    ordered: bool = True
    note: str = ""


def shape_of(path: Path, line: int, row: Fields) -> Shape | None:
    """The shape of a file whose first object is `row`; None if it is flat. Raises CbbenchError for what is no log."""
    if "resourceSpans" in row or _is_span(row):
        return Shape(_spans, ordered=False)
    if isinstance(row.get("sub_requests"), list):
        note = "the turns of a session are due after its pauses alone, whether or not the one before is answered"
        return Shape(_sub_requests, ordered=False, note=note)
    if isinstance(row.get("requests"), list) and "id" in row:
        note = "each session has a clock of its own, so there are no arrival times; the sessions follow each other"
        return Shape(_coding_session, note=note)
    if isinstance(row.get("conversations"), list):
        note = (
            f"a conversation gives its first question, and as output length that of its first answer, at "
            f"{BYTES_PER_TOKEN} bytes a token"
        )
        return Shape(_sharegpt, note=note)
    if "event" in row and ("out" in row or str(row["event"]).startswith("request.")):
        return Shape(_sglang, ordered=False, note="a request arrived when it was finished less its e2e_latency")
    if _usage(row) is not None:
        return Shape(_with_usage)
    if isinstance(row.get("data"), dict) and "prompt" not in row and "messages" not in row:
        return Shape(lambda one: [_merged(one, one.get("data"))])
    if "client" in row and "dataset" in row:
        refuse_line(
            path,
            line,
            "ServeGen's histograms of a client, not its requests; generate some with ServeGen, or use a preset",
        )
    return None


def _merged(row: Fields, inner: object) -> Fields:
    return row | inner if isinstance(inner, dict) else row


def _usage(row: Fields) -> Fields | None:
    """The `usage` of a request or its response, where the row itself has no lengths."""
    places: list[Any] = [row, row.get("response"), row.get("body")]
    if isinstance(row.get("response"), dict):
        places.append(row["response"].get("body"))
    for place in places:
        if isinstance(place, dict) and isinstance(place.get("usage"), dict):
            usage: Fields = place["usage"] | {name: place[name] for name in ("created",) if name in place}
            return usage
    return None


def _with_usage(row: Fields) -> Iterator[Fields]:
    usage = _usage(row) or {}
    # What the request asked for stays, as its text is the better prompt; what was answered is its length.
    yield {name: value for name, value in row.items() if name not in ("usage", "response")} | usage


def _sglang(row: Fields) -> Iterator[Fields]:
    out = row.get("out")
    if not isinstance(out, dict) or not isinstance(out.get("meta_info"), dict):
        return  # of a request that was received, or of another event
    flat = dict(out["meta_info"])
    if "timestamp" in row:
        flat["arrival_s"] = seconds_of(row["timestamp"]) - float(flat.get("e2e_latency") or 0)
    yield flat


def _is_span(row: Fields) -> bool:
    attributes = row.get("attributes")
    named = attributes if isinstance(attributes, dict) else _attributes(attributes)
    return any(str(name).startswith("gen_ai.") for name in named)


def _spans(row: Fields) -> Iterator[Fields]:
    spans = [row]
    if "resourceSpans" in row:
        scopes = (one for each in row["resourceSpans"] for one in each.get("scopeSpans", ()))
        spans = [span for scope in scopes for span in scope.get("spans", ())]
    for span in spans:
        given = span.get("attributes")
        named = given if isinstance(given, dict) else _attributes(given)
        prompt = named.get("gen_ai.usage.input_tokens", named.get("gen_ai.usage.prompt_tokens"))
        output = named.get("gen_ai.usage.output_tokens", named.get("gen_ai.usage.completion_tokens"))
        if prompt is None or output is None:
            continue  # a span of a tool, an embedding, or a call that failed
        flat = {"prompt_tokens": int(prompt), "completion_tokens": int(output)}
        for name in ("startTimeUnixNano", "start_time", "startTime", "timestamp"):
            if name in span:
                flat["startTimeUnixNano" if name == "startTimeUnixNano" else "start_time"] = span[name]
                break
        yield flat


def _attributes(given: object) -> Fields:
    """Attributes as OTLP writes them: [{"key": name, "value": {"intValue": "12"}}]"""
    named: Fields = {}
    for one in given if isinstance(given, list) else ():
        if isinstance(one, dict) and isinstance(one.get("value"), dict):
            named[str(one.get("key"))] = next(iter(one["value"].values()), None)
    return named


def _sub_requests(session: Fields) -> Iterator[Fields]:
    at_ns = int(session.get("arrival_time_ns", 0))
    for turn in session.get("sub_requests") or [session]:
        yield {
            "input_toks": turn.get("input_toks"),
            "output_toks": turn.get("output_toks"),
            "arrival_time_ns": at_ns,
            "session": session.get("session_id"),
        }
        at_ns += int(turn.get("tool_duration_ns") or 0)


def _coding_session(session: Fields) -> Iterator[Fields]:
    """Requests of a session and of its sub-agents. Ids of blocks are the session's own if it says so."""
    local = session.get("hash_id_scope") == "local"
    for request in _requests(session):
        ids = request.get("hash_ids")
        if ids is None and "hash_ranges" in request:
            ids = [one for first, last in request["hash_ranges"] for one in range(first, last + 1)]
        flat = {"prompt_tokens": request["in"], "completion_tokens": request.get("out", 0), "session": session["id"]}
        if ids is not None:
            flat |= {
                "hash_ids": [(session["id"], one) for one in ids] if local else ids,
                "block_size": session.get("block_size"),
            }
        yield flat


def _requests(holder: Fields) -> Iterator[Fields]:
    for request in holder.get("requests") or ():
        if "in" in request:
            yield request
        yield from _requests(request)


def _sharegpt(row: Fields) -> Iterator[Fields]:
    turns = [turn for turn in row["conversations"] if isinstance(turn, dict) and turn.get("from") != "system"]
    if len(turns) < 2 or turns[0].get("from") not in ("human", "user") or not turns[0].get("value"):
        return  # no question, or no answer to it: most benchmarks leave these out too
    answer = str(turns[1].get("value", ""))
    if answer:
        yield {"prompt": turns[0]["value"], "output_tokens": max(1, -(-len(answer.encode()) // BYTES_PER_TOKEN))}
